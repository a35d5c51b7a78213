"""The built-in steps, imported when they are first used.

from curate.steps import Validate, Dedup
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from curate.steps.canonicalize import Canonicalize
    from curate.steps.curriculum import Curriculum
    from curate.steps.decontaminate import Decontaminate
    from curate.steps.dedup import Dedup
    from curate.steps.difficulty import Difficulty
    from curate.steps.normalize import Normalize
    from curate.steps.review import Review
    from curate.steps.validate import Validate

__all__ = [
    "Canonicalize",
    "Curriculum",
    "Decontaminate",
    "Dedup",
    "Difficulty",
    "Normalize",
    "Review",
    "Validate",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"curate.steps has no step '{name}'; it has {', '.join(__all__)}")
    from curate.step import load_step

    return load_step(name.lower())

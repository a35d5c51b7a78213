"""nl2sql-curate: curate NL2SQL training data and emit staged curriculum shards.

from curate.steps import Validate, Dedup
result = Dedup(max_paraphrases=4).run(frame, databases="data/databases")
result.kept, result.dropped

import curate
curate.run("pipeline.yaml")
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from curate.api import load, run
    from curate.step import Context, Output, Result, Step, decide

__version__ = "0.1.0"
__all__ = ["Context", "Output", "Result", "Step", "__version__", "decide", "load", "run"]

_WHERE = {"load": "curate.api", "run": "curate.api"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'curate' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_WHERE.get(name, "curate.step")), name)

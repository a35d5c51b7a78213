"""The unit of work: one step over one range, named by what it depends on, computed once."""

import resource
import sys
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import polars as pl

from curate.databases import Databases
from curate.ledger import decisions
from curate.step import Context, Step
from curate.store import DEAD, DECISIONS, Part, Range, Table, content_key, fingerprint, pack, to_parquet

FORMAT = 1  # of a part file


@dataclass(frozen=True)
class Task:
    """`step` over the live rows of `range` of `input`. `dry`: only say whether the part is there."""

    step: Step
    table: Table
    input: str
    range: Range
    folder: Path
    databases: Databases
    seed: int
    comparison: str
    references: tuple[str, ...] = ()
    dry: bool = False
    also: tuple[str, ...] = field(default=())  # optional columns that an earlier step wrote


@dataclass(frozen=True, slots=True)
class Done:
    """`part` is None when a dry task found nothing stored."""

    part: Part | None
    cached: bool
    rows: int
    seconds: float
    peak_mb: float


class StepFailed(Exception):
    """A step raised on a part."""


def run_part(task: Task) -> Done:
    """Load what the step reads, and compute the part unless it is stored already.

    Raises StepFailed naming step, input and range when the step itself raises.
    """
    started = time.perf_counter()
    step = task.step
    wanted = (*step.reads, *task.also)
    frame = task.table.read(task.input, task.range, wanted)
    references = {
        name: task.table.read(name, Range(0, 16**32), wanted, dead_too=True) for name in task.references
    }
    path = task.folder / f"{_key(task, frame, references)}.parquet"
    cached = path.exists()
    if task.dry and not cached:
        return Done(None, False, frame.height, time.perf_counter() - started, peak_mb())
    if cached:
        dead = int(pl.scan_parquet(path, glob=False).select(pl.col(DEAD).sum()).collect().item())
    else:
        packed = _computed(task, frame, references)
        if step.scope == "table" and not step.writes:  # nothing to say of most rows: keep the rest small
            packed = packed.filter(pl.col(DECISIONS).is_not_null())
        to_parquet(packed, path)
        dead = int(packed[DEAD].sum())
    part = Part(task.input, task.range, path, frame.height, dead)
    return Done(part, cached, frame.height, time.perf_counter() - started, peak_mb())


def _computed(task: Task, frame: pl.DataFrame, references: dict[str, pl.DataFrame]) -> pl.DataFrame:
    step = task.step
    ctx = Context(task.databases, task.seed, task.comparison, references)
    try:
        output = step.apply(frame, ctx)
        said = output.decisions
        if said is not None and task.input != "train":
            # A reference is taken as it is: what a step finds there is a flag, never a removal.
            said = said.with_columns(pl.lit("flag").alias("action"))
        return pack(frame["row_id"], output.columns, said, step.writes)
    except OSError:
        raise
    except Exception as error:
        where = f"input '{task.input}', row_ids {task.range.first} to {task.range.last}"
        raise StepFailed(f"step '{step.name}' failed on {where}: {type(error).__name__}: {error}") from error


def lost_part(task: Task, reason: str) -> Done:
    """The part of a task whose worker died twice: every row of it is an error, and nothing is cached.

    It has none of the step's columns. Raises StepFailed for a part of a reference: a reference with a hole in
    it would let leaks through unseen.
    """
    step = task.step
    if task.input != "train":
        raise StepFailed(f"step '{step.name}' failed on reference '{task.input}': {reason}")
    frame = task.table.read(task.input, task.range, (*task.step.reads, *task.also))
    said = decisions(
        [{"row_id": r, "action": "error", "reason": "worker_lost", "detail": reason} for r in frame["row_id"]]
    )
    path = task.folder / f"lost-{_key(task, frame, {})}.parquet"
    to_parquet(pack(frame["row_id"], None, said, ()), path)
    return Done(Part(task.input, task.range, path, frame.height, frame.height), False, frame.height, 0.0, 0.0)


def _key(task: Task, frame: pl.DataFrame, references: dict[str, pl.DataFrame]) -> str:
    step = task.step
    resources: dict[str, object] = {}
    if "databases" in step.uses and "db_id" in frame.columns:
        db_ids = frame["db_id"].unique().sort().to_list()
        resources["databases"] = {db_id: task.databases.digest(db_id) for db_id in db_ids}
    if "comparison" in step.uses:
        resources["comparison"] = task.comparison
    if "seed" in step.uses:
        resources["seed"] = task.seed
    return content_key(
        FORMAT,
        step.name,
        step.version,
        step.key_config(),
        step.writes,
        {library: version(library) for library in step.libraries},
        fingerprint(frame),
        {name: fingerprint(reference) for name, reference in references.items()},
        task.input == "train",
        resources,
    )


def peak_mb() -> float:
    """Largest resident size this process has had, in MB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak / 1e3

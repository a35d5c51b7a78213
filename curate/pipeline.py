"""Run a pipeline: rows, then step after step, then the ledger, the rejects and the shards."""

import fcntl
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import polars as pl

from curate.atomic import sweep
from curate.config import Pipeline
from curate.databases import Databases
from curate.engine.local import LocalEngine, Lost
from curate.ingest import TRAIN, Ingested, ingest
from curate.ledger import counts
from curate.part import Done, Task, lost_part, run_part
from curate.progress import Reporter
from curate.step import Step
from curate.store import WHOLE, Layer, Part, Range, Table, ranges

IN_PROCESS_ROWS = 2_000  # below this, starting workers costs more than it saves


class RunFailed(Exception):
    """The run could not be finished; the message says why and what to do. Finished parts are kept."""


@dataclass
class StepReport:
    """One line of the closing table. Counts are of train rows; `parts_*` are of every input."""

    name: str
    scope: str
    read: int = 0
    kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    flagged: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    peak_memory_mb: float = 0.0
    parts_cached: int = 0
    parts_run: int = 0

    @property
    def rows_per_second(self) -> float:
        return self.read / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class Curated:
    """A finished table: what `curate.output` writes down."""

    pipeline: Pipeline
    ingested: Ingested
    table: Table
    databases: Databases
    steps: list[StepReport]
    seconds: float


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Only one run at a time in an output directory; the lock dies with its process."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunFailed(
                f"another run is at work in {out}; wait for it or choose another output.path"
            ) from None
        yield


def limited(pipeline: Pipeline, limit: int | None) -> Pipeline:
    """A run over `limit` rows is a trial and must not overwrite the real output."""
    if limit is None:
        return pipeline
    return replace(pipeline, output=pipeline.output.with_name(f"{pipeline.output.name}-limit-{limit}"))


def curate(
    pipeline: Pipeline,
    *,
    workers: int | None = None,
    limit: int | None = None,
    reporter: Reporter | None = None,
) -> Curated:
    """Read the inputs and apply every step. Parts that are stored already are not computed again.

    workers: processes; by default one a core, or none for so few rows that starting them would cost more.

    Raises curate.data.InputError, curate.part.StepFailed, RunFailed, or OSError (a full disk).
    """
    reporter = reporter or Reporter(quiet=True)
    store = pipeline.output / "store"
    started = time.perf_counter()
    sweep(store)
    ingested = ingest(pipeline, store, limit)
    reporter.say(_said_of(ingested))
    databases = Databases.open(pipeline.databases)
    if pipeline.databases is not None:
        databases = databases.digested(ingested.db_ids, store / "databases.json")
    table = Table((ingested.layer,))
    reports = []
    total = sum(p.rows for p in ingested.layer.parts)
    if workers is None and total < IN_PROCESS_ROWS:
        workers = 1
    with LocalEngine(workers) as engine:
        for step in pipeline.steps:
            table, report = _apply(step, table, pipeline, databases, engine, reporter)
            reports.append(report)
    return Curated(pipeline, ingested, table, databases, reports, time.perf_counter() - started)


def _said_of(ingested: Ingested) -> str:
    return "; ".join(
        f"{name}: {one['rows']:,} rows" + (f", {one['rejected']:,} refused" if one["rejected"] else "")
        for name, one in ingested.read.items()
    )


def _apply(
    step: Step,
    table: Table,
    pipeline: Pipeline,
    databases: Databases,
    engine: LocalEngine,
    reporter: Reporter,
) -> tuple[Table, StepReport]:
    started = time.perf_counter()
    report = StepReport(step.name, step.scope)
    tasks = tasks_for(step, table, pipeline, databases)
    parts: list[Part] = []
    with reporter.task(step.name, sum(_covered(table, t) for t in tasks)) as advance:
        for i, done in engine.run(run_part, tasks):
            if isinstance(done, Lost):
                done = lost_part(tasks[i], done.reason)
            _count(report, tasks[i].input, done)
            parts.append(_part(done))
            advance(_covered(table, tasks[i]))
    layer = Layer(step.name, step.writes, tuple(sorted(parts, key=lambda p: (p.input, p.range))))
    table = table.with_layer(layer)
    said = table.decisions(len(table.layers) - 1, TRAIN)
    report.dropped, report.flagged = counts(said, "drop"), counts(said, "flag")
    report.errors = counts(said, "error")
    report.kept = report.read - sum(p.dead for p in parts if p.input == TRAIN)
    report.seconds = time.perf_counter() - started
    reporter.say(line(report))
    return table, report


def _part(done: Done) -> Part:
    if done.part is None:
        raise RunFailed("a part was not written")
    return done.part


def _covered(table: Table, task: Task) -> int:
    return sum(p.rows for p in table.layers[0].covering(task.input, task.range))


def _count(report: StepReport, input: str, done: Done) -> None:
    report.read += done.rows if input == TRAIN else 0
    report.peak_memory_mb = max(report.peak_memory_mb, done.peak_mb)
    report.parts_cached += done.cached
    report.parts_run += not done.cached


def line(report: StepReport) -> str:
    """One step in a plain line of a log."""
    gone = ", ".join(f"{reason} {n:,}" for reason, n in {**report.dropped, **report.errors}.items())
    parts = f"{report.parts_run} parts run, {report.parts_cached} cached"
    return (
        f"{report.name}: {report.read:,} -> {report.kept:,} rows"
        + (f" ({gone})" if gone else "")
        + f", {report.seconds:.1f} s, {report.rows_per_second:,.0f} rows/s, {parts}"
    )


def tasks_for(step: Step, table: Table, pipeline: Pipeline, databases: Databases) -> list[Task]:
    """The step's tasks: one a part for row and group steps, one in all for a table step."""
    inputs = [TRAIN, *(pipeline.references if step.on_references and step.scope != "table" else ())]
    also = tuple(c for c in step.optional if c in table.columns)
    tasks = []
    for name in inputs:
        for span in _spans(step, table, name, pipeline.part_rows):
            references = step.needs_references() if step.scope == "table" else ()
            tasks.append(
                Task(
                    step=step,
                    table=table.restricted(name, span, references),
                    input=name,
                    range=span,
                    folder=pipeline.output / "store" / step.name,
                    databases=databases.within(span)
                    if "databases" in step.uses
                    else Databases(databases.root),
                    seed=pipeline.seed,
                    comparison=pipeline.comparison,
                    references=references,
                    also=also,
                )
            )
    return tasks


def _spans(step: Step, table: Table, input: str, part_rows: int) -> list[Range]:
    if step.scope == "table":
        return [WHOLE]
    rows = table.layers[0]
    if step.scope == "row":
        return [p.range for p in rows.parts if p.input == input]
    ids = pl.concat(
        [pl.scan_parquet(p.path, glob=False).select("row_id") for p in rows.parts if p.input == input]
    ).collect()["row_id"]
    return ranges(ids, part_rows, whole_databases=True) or [WHOLE]


@dataclass(frozen=True)
class Planned:
    """What a run would do for one step.

    `waiting`: parts that a table step before them may or may not change; a run finds most of them cached.
    """

    name: str
    cached: int
    run: int
    waiting: int
    rows: int  # rows of the parts that would run or wait
    seconds: float | None  # estimate from the last run's rates, or None where there is none


def plan(pipeline: Pipeline, rates: dict[str, float], limit: int | None = None) -> list[Planned]:
    """Which parts are stored and which would run. Computes no step; writes only the input's parts."""
    store = pipeline.output / "store"
    ingested = ingest(pipeline, store, limit)
    databases = Databases.open(pipeline.databases)
    if pipeline.databases is not None:
        databases = databases.digested(ingested.db_ids, store / "databases.json")
    table = Table((ingested.layer,))
    changed: list[tuple[str, Range]] = []  # parts that will run: what reads them will run too
    unsure = False  # a table step will run: which of its decisions change is not known before
    planned = []
    for step in pipeline.steps:
        parts: list[Part] = []
        running, waiting, rows = 0, 0, 0
        table_runs = False
        for task in tasks_for(step, table, pipeline, databases):
            sees = [(task.input, task.range), *((name, WHOLE) for name in task.references)]
            if any(name == n and span.overlaps(s) for name, span in sees for n, s in changed):
                running += 1
            elif unsure:
                waiting += 1
            elif (done := run_part(replace(task, dry=True))).part is not None:
                parts.append(done.part)
                continue
            else:
                running += 1
                if step.scope != "table":
                    changed.append((task.input, task.range))
            rows += _covered(table, task)
            table_runs |= step.scope == "table"
        unsure |= table_runs
        rate = rates.get(step.name)
        seconds = 0.0 if not rows else rows / rate if rate else None
        planned.append(Planned(step.name, len(parts), running, waiting, rows, seconds))
        table = table.with_layer(Layer(step.name, step.writes, tuple(parts)))
    return planned


def restart(pipeline: Pipeline) -> None:
    """Forget every stored part of the output directory."""
    shutil.rmtree(pipeline.output / "store", ignore_errors=True)

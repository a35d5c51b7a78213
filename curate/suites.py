"""Test suites of the databases that are emitted: built once, kept in the store, shipped with the shards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import sqlglot

from curate.atomic import replace_folder
from curate.engine.local import LocalEngine, Lost
from curate.pipeline import Curated, RunFailed
from curate.progress import Reporter
from curate.sql.sandbox import Sandbox
from curate.sql.schema import SchemaError
from curate.sql.testsuite import VERSION, Suite, build_suite, load_suite
from curate.store import content_key


@dataclass(frozen=True)
class _Task:
    db_id: str
    database: Path
    golds: tuple[str, ...]
    folder: Path
    seed: int
    mode: str


def built_suites(
    curated: Curated, rows: pl.DataFrame, *, workers: int | None, reporter: Reporter
) -> dict[str, Suite]:
    """The suite of every database of the emitted rows, by db_id; those the store holds are not built again.

    Raises RunFailed where a database cannot be read, OSError.
    """
    tasks = _tasks(curated, rows)
    with (
        LocalEngine(workers if len(tasks) > 1 else 1) as engine,
        reporter.task("suites", sum(len(t.golds) for t in tasks)) as advance,
    ):
        for i, trouble in engine.run(_build, tasks):
            if isinstance(trouble, Lost):
                trouble = trouble.reason
            if trouble:
                raise RunFailed(f"no test suite can be made of database '{tasks[i].db_id}': {trouble}")
            advance(len(tasks[i].golds))
    suites = {task.db_id: load_suite(task.folder) for task in tasks}
    return {db_id: suite for db_id, suite in suites.items() if suite is not None}


def summary(suites: Sequence[Suite]) -> dict[str, Any]:
    """What the suites are worth, in counts; see curate.sql.testsuite.Suite."""
    return {
        "neighbours": sum(s.databases for s in suites),
        "golds": sum(s.golds for s in suites),
        "steady": sum(s.steady for s in suites),
        "mutants": sum(s.mutants for s in suites),
        "told_by_database": sum(s.original for s in suites),
        "known_to_differ": sum(s.known for s in suites),
        "told_by_suite": sum(s.killed for s in suites),
    }


def said_of(about: Mapping[str, Any]) -> str:
    known, killed = about["known_to_differ"], about["told_by_suite"]
    return (
        f"test suites: {about['neighbours']:,} neighbour databases for {about['golds']:,} golds; of "
        f"{about['mutants']:,} near-misses the databases let {known:,} through that differ on other rows, "
        f"and the suites tell {killed:,} of them"
    )


def _tasks(curated: Curated, rows: pl.DataFrame) -> list[_Task]:
    golds: dict[str, set[str]] = {}
    executed = rows.filter(pl.col("dialect") == "sqlite")
    for db_id, sql, others in executed.select("db_id", "sql", "gold_sqls").iter_rows():
        golds.setdefault(db_id, set()).update([sql, *(others or ())])
    store, pipeline = curated.pipeline.output / "store" / "suites", curated.pipeline
    tasks = []
    for db_id, sqls in sorted(golds.items()):
        database = curated.databases.path(db_id)
        if database is None:
            raise RunFailed(f"database '{db_id}' is gone; it was there when its gold was executed")
        wanted = tuple(sorted(sqls))
        key = content_key(
            VERSION,
            sqlglot.__version__,
            curated.databases.digest(db_id),
            wanted,
            pipeline.seed,
            pipeline.comparison,
        )
        tasks.append(_Task(db_id, database, wanted, store / key, pipeline.seed, pipeline.comparison))
    return tasks


def _build(task: _Task) -> str | None:
    """Build a suite unless it stands; why not, where the database is unreadable."""
    if load_suite(task.folder) is not None:
        return None

    def fill(folder: Path) -> None:
        with Sandbox() as sandbox:
            build_suite(task.database, task.golds, folder, sandbox, seed=task.seed, mode=task.mode)

    try:
        replace_folder(task.folder, fill)
    except SchemaError as error:
        return str(error)
    return None

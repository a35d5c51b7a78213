"""validate: execute every gold SQL on its database."""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import polars as pl
from pydantic import Field

from curate.ledger import decisions
from curate.sql.sandbox import Execution, Limits, Query, Sandbox
from curate.step import Context, Output, Step, Use

# What a status of the sandbox means for a gold: (action, reason).
REFUSED = {
    "error": ("drop", "gold_fails"),
    "timeout": ("drop", "gold_timeout"),
    "too_many_rows": ("drop", "gold_too_many_rows"),
    "denied": ("drop", "gold_denied"),
    "no_database": ("error", "no_database"),
    "crashed": ("error", "worker_crashed"),
}


class Validate(Step):
    """Execute the gold SQL read-only, in a sandbox, and keep the rows whose gold runs.

    Writes gold_digest (digest of the result under the run's comparison mode, typed) and gold_rows (rows of
    the result). Drops `gold_fails`, `gold_timeout`, `gold_too_many_rows`, `gold_denied` (not a single
    read-only query). Errors `no_database` (missing, or not a SQLite file), `worker_crashed`,
    `unsupported_dialect`. An empty result is flagged `empty_result`, or dropped with `on_empty: drop`; a
    further accepted SQL of the row that does not run is flagged `alternative_fails`.

    timeout_s: seconds a query may take. max_rows: rows a result may have (by default
    what the trainer allows, so that no gold kept here fails there).
    """

    name: ClassVar[str] = "validate"
    reads: ClassVar[tuple[str, ...]] = ("db_id", "sql", "gold_sqls", "dialect")
    writes: ClassVar[tuple[str, ...]] = ("gold_digest", "gold_rows")
    uses: ClassVar[tuple[Use, ...]] = ("databases", "comparison")

    timeout_s: float = Field(5.0, gt=0)
    max_rows: int = Field(Limits().max_rows, ge=1)
    on_empty: Literal["flag", "drop", "keep"] = "flag"

    def apply(self, frame: pl.DataFrame, ctx: Context) -> Output:
        rows = list(frame.select("row_id", "db_id", "sql", "gold_sqls", "dialect").iter_rows())
        found = self._execute(rows, ctx)
        said: list[dict[str, Any]] = []
        digests: list[str | None] = []
        sizes: list[int | None] = []
        for row_id, db_id, sql, golds, dialect in rows:
            done = found.get((db_id, sql))
            said += self._judged(row_id, db_id, dialect, done)
            said += _alternatives(row_id, [(g, found.get((db_id, g))) for g in golds or () if g != sql])
            digests.append(done.digest if done is not None and done.status == "ok" else None)
            sizes.append(done.row_count if done is not None and done.status == "ok" else None)
        columns = frame.select(
            "row_id",
            pl.Series("gold_digest", digests, dtype=pl.String),
            pl.Series("gold_rows", sizes, dtype=pl.Int64),
        )
        return Output(columns, decisions(said))

    def _execute(self, rows: list[tuple[Any, ...]], ctx: Context) -> dict[tuple[str, str], Execution]:
        wanted = dict.fromkeys(
            (db_id, gold)
            for _, db_id, sql, golds, dialect in rows
            if dialect == "sqlite"
            for gold in (sql, *(golds or ()))
        )
        pairs, queries = [], []
        for db_id, sql in wanted:
            path = ctx.databases.path(db_id)
            if path is not None:
                pairs.append((db_id, sql))
                queries.append(Query(str(path), sql))
        if not queries:
            return {}
        limits = Limits(timeout_s=self.timeout_s, max_rows=self.max_rows)
        with Sandbox(workers=1, limits=limits) as sandbox:
            return dict(zip(pairs, sandbox.run(queries, digest=ctx.comparison), strict=True))

    def _judged(
        self, row_id: str, db_id: str, dialect: str, done: Execution | None
    ) -> Iterator[dict[str, Any]]:
        if dialect != "sqlite":
            detail = f"dialect '{dialect}' cannot be executed; only sqlite can"
            yield {"row_id": row_id, "action": "error", "reason": "unsupported_dialect", "detail": detail}
        elif done is None:
            detail = f"no database '{db_id}' below the databases root"
            yield {"row_id": row_id, "action": "error", "reason": "no_database", "detail": detail}
        elif done.status != "ok":
            action, reason = REFUSED[done.status]
            yield {"row_id": row_id, "action": action, "reason": reason, "detail": done.error}
        elif done.row_count == 0 and self.on_empty != "keep":
            yield {"row_id": row_id, "action": self.on_empty, "reason": "empty_result"}


def _alternatives(row_id: str, found: list[tuple[str, Execution | None]]) -> Iterator[dict[str, Any]]:
    for gold, done in found:
        if done is not None and done.status != "ok":
            detail = f"{done.status}: {done.error}: {gold}"
            yield {"row_id": row_id, "action": "flag", "reason": "alternative_fails", "detail": detail}

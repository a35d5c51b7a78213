"""canonicalize: one key for queries that differ only in spelling."""

from typing import Any, ClassVar

import polars as pl

from curate.ledger import decisions
from curate.sql.canonical import Canonical, SqlParseError, canonicalize
from curate.step import Context, Output, Step, Use
from curate.text.shingle import fold_sql


class Canonicalize(Step):
    """Canonical SQL and its skeletons, computed once for each distinct (database, SQL) of a part.

    Writes sql_canonical (equal for queries that differ only in spelling), sql_masked (literals masked) and
    sql_skeleton (literals and identifiers masked). Flags `unparsed` (the key is then the SQL with case and
    space folded) and `unqualified` (a column could not be resolved against the schema; the key is the
    unqualified form). Drops nothing: whether SQL is good is for validate to say.
    """

    name: ClassVar[str] = "canonicalize"
    version: ClassVar[int] = 2
    reads: ClassVar[tuple[str, ...]] = ("db_id", "sql", "dialect")
    writes: ClassVar[tuple[str, ...]] = ("sql_canonical", "sql_masked", "sql_skeleton")
    uses: ClassVar[tuple[Use, ...]] = ("databases",)
    libraries: ClassVar[tuple[str, ...]] = ("sqlglot",)
    on_references: ClassVar[bool] = True

    def apply(self, frame: pl.DataFrame, ctx: Context) -> Output:
        known: dict[tuple[str, str, str], Canonical | str] = {}
        said: list[dict[str, Any]] = []
        keys: list[tuple[str | None, str | None, str | None]] = []
        for row_id, db_id, sql, dialect in frame.select("row_id", "db_id", "sql", "dialect").iter_rows():
            if not sql:  # a reference may be a question only
                keys.append((None, None, None))
                continue
            pair = (db_id, sql, dialect)
            if pair not in known:
                known[pair] = _canonical(sql, db_id, dialect, ctx)
            found = known[pair]
            if isinstance(found, str):
                folded = fold_sql(sql)
                keys.append((folded, folded, folded))
                said.append({"row_id": row_id, "action": "flag", "reason": "unparsed", "detail": found})
                continue
            keys.append((found.sql, found.masked, found.skeleton))
            if not found.qualified:
                said.append(
                    {"row_id": row_id, "action": "flag", "reason": "unqualified", "detail": found.note}
                )
        columns = pl.DataFrame(keys, schema=dict.fromkeys(self.writes, pl.String), orient="row")
        return Output(pl.DataFrame({"row_id": frame["row_id"]}).hstack(columns), decisions(said))


def _canonical(sql: str, db_id: str, dialect: str, ctx: Context) -> Canonical | str:
    """The canonical form, or why there is none."""
    try:
        return canonicalize(sql, ctx.databases.schema(db_id), dialect)
    except SqlParseError as error:
        return str(error)

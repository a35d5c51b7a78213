"""difficulty: structural features of the gold, Spider's hardness, and our score."""

import json
from dataclasses import asdict
from typing import Any, ClassVar

import polars as pl

from curate.ledger import decisions
from curate.sql.canonical import SqlParseError, parse
from curate.sql.features import difficulty, features, hardness, rule_stage
from curate.step import Context, Output, Step


class Difficulty(Step):
    """Structural features, hardness and difficulty, computed once for each distinct SQL of a part.

    Writes features (JSON text, see curate.sql.features.Features), hardness (Spider's easy, medium, hard,
    extra), difficulty (our score in [0, 1]) and rule_stage (1 single table, no aggregate; 2 joins,
    aggregates, GROUP BY, ORDER, LIMIT; 3 nested, set operations, CTEs, window functions). Flags `unscored`
    where the SQL cannot be parsed: the columns are then null.
    """

    name: ClassVar[str] = "difficulty"
    version: ClassVar[int] = 2
    reads: ClassVar[tuple[str, ...]] = ("sql", "dialect")
    writes: ClassVar[tuple[str, ...]] = ("features", "hardness", "difficulty", "rule_stage")
    libraries: ClassVar[tuple[str, ...]] = ("sqlglot",)
    on_references: ClassVar[bool] = True

    def apply(self, frame: pl.DataFrame, ctx: Context) -> Output:
        known: dict[tuple[str, str], tuple[str, str, float, int] | str] = {}
        said: list[dict[str, Any]] = []
        values: list[tuple[Any, ...]] = []
        for row_id, sql, dialect in frame.select("row_id", "sql", "dialect").iter_rows():
            pair = (sql, dialect)
            if pair not in known:
                known[pair] = _scored(sql, dialect)
            found = known[pair]
            if isinstance(found, str):
                values.append((None, None, None, None))
                if sql:
                    said.append({"row_id": row_id, "action": "flag", "reason": "unscored", "detail": found})
            else:
                values.append(found)
        schema = {
            "features": pl.String,
            "hardness": pl.String,
            "difficulty": pl.Float64,
            "rule_stage": pl.Int64,
        }
        columns = pl.DataFrame(values, schema=schema, orient="row")
        return Output(pl.DataFrame({"row_id": frame["row_id"]}).hstack(columns), decisions(said))


def _scored(sql: str, dialect: str) -> tuple[str, str, float, int] | str:
    """(features, hardness, difficulty, stage), or why there are none."""
    try:
        tree = parse(sql, dialect)
    except SqlParseError as error:
        return str(error)
    found = features(tree)
    level = hardness(tree, dialect=dialect)
    return json.dumps(asdict(found), sort_keys=True), level, difficulty(found), rule_stage(found)

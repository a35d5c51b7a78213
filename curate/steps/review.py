"""review: apply what a person decided on rows, after `curate audit`."""

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import polars as pl
from pydantic import ValidationInfo, field_serializer, field_validator

from curate.ledger import decisions
from curate.review import Reviewed, read_reviews
from curate.step import Context, Output, Step


class Review(Step):
    """Apply a file of decisions: `keep` a row, `drop` it, or `fix` its gold SQL.

    decisions: a CSV file, as `curate audit` writes it, with the column `decision` filled in. Put the step before
    `validate`, so that a fixed SQL is executed and examined like any other. Writes sql and gold_sqls (those of a
    fixed row are its new SQL alone) and reviewed (`keep`, `fix` or null). A check that would drop a row by doubt
    only flags a reviewed one. Drops `reviewed_drop`; flags `reviewed_keep` and `reviewed_fix` (detail: the SQL
    it had). A row keeps its row_id. Decisions on rows that are not in the input are told when the run ends.
    """

    name: ClassVar[str] = "review"
    reads: ClassVar[tuple[str, ...]] = ("sql", "gold_sqls")
    writes: ClassVar[tuple[str, ...]] = ("sql", "gold_sqls", "reviewed")

    decisions: Path

    @field_validator("decisions")
    @classmethod
    def _readable(cls, value: Path, info: ValidationInfo) -> Path:
        read_reviews(value)
        return value

    @field_serializer("decisions")
    def _name_only(self, value: Path) -> str:
        return value.name

    @cached_property
    def reviews(self) -> dict[str, Reviewed]:
        return read_reviews(self.decisions)

    def key_config(self) -> dict[str, Any]:
        return {"decisions": hashlib.blake2b(self.decisions.read_bytes(), digest_size=16).hexdigest()}

    def apply(self, frame: pl.DataFrame, ctx: Context) -> Output:
        rows = list(frame.select("row_id", "sql", "gold_sqls").iter_rows())
        said: list[dict[str, Any]] = []
        sqls: list[str] = []
        golds: list[list[str]] = []
        reviewed: list[str | None] = []
        for row_id, sql, accepted in rows:
            found = self.reviews.get(row_id)
            fixed = found.sql if found is not None else None
            sqls.append(fixed or sql)
            golds.append([fixed] if fixed else list(accepted or [sql]))
            reviewed.append(found.decision if found is not None and found.decision != "drop" else None)
            if found is not None:
                said.append(
                    {
                        "row_id": row_id,
                        "action": "drop" if found.decision == "drop" else "flag",
                        "reason": f"reviewed_{found.decision}",
                        "detail": "; ".join(filter(None, [found.note, f"it was: {sql}" if fixed else ""]))
                        or None,
                    }
                )
        columns = frame.select(
            "row_id",
            pl.Series("sql", sqls, dtype=pl.String),
            pl.Series("gold_sqls", golds, dtype=pl.List(pl.String)),
            pl.Series("reviewed", reviewed, dtype=pl.String),
        )
        return Output(columns, decisions(said))

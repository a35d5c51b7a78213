"""curriculum: the stage, weight and place (train or validation) of every live row."""

import hashlib
from typing import Any, ClassVar, Literal

import polars as pl
from pydantic import BaseModel, ConfigDict, Field

from curate.step import Context, Output, Step, Use


class Schedule(BaseModel):
    """When each stage is drawn, in optimiser steps (see train.schedule for the exact shares).

    Until `warmup_steps` only the first stage is drawn. Then, at the start of every interval of
    `interval_steps`, the share of later stages grows by `increment`; a stage that was drawn before never
    falls below `floor`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["step"] = "step"
    warmup_steps: int = Field(20, ge=0)
    interval_steps: int = Field(20, ge=1)
    increment: float = Field(0.15, gt=0, le=1)
    floor: float = Field(0.2, ge=0, le=1)


class Validation(BaseModel):
    """Live rows held back to watch training. All phrasings of one SQL go to the same side.

    share: of the live rows. max_rows: at most so many.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    share: float = Field(0.05, ge=0, lt=1)
    max_rows: int = Field(500, ge=0)


class Curriculum(Step):
    """Stages for training, and what the shards are made of. Must be the last step.

    Writes stage (from the stage rule; SQL that could not be scored goes to the last stage), weight (mean 1
    over the rows emitted for training) and validation (held back). Emitting the shards follows.

    schema_style: how the prompt shows a database, `compact` or `ddl`; schema_samples: example values a
    column.
    """

    name: ClassVar[str] = "curriculum"
    scope: ClassVar[Any] = "table"
    reads: ClassVar[tuple[str, ...]] = ("db_id", "sql_canonical", "rule_stage")
    optional: ClassVar[tuple[str, ...]] = ("weight",)
    writes: ClassVar[tuple[str, ...]] = ("stage", "weight", "validation")
    uses: ClassVar[tuple[Use, ...]] = ("seed",)

    stages: Literal["rule"] = "rule"
    schedule: Schedule = Schedule()
    validation: Validation = Validation()
    schema_style: Literal["compact", "ddl"] = "compact"
    schema_samples: int = Field(0, ge=0)

    def apply(self, frame: pl.DataFrame, ctx: Context) -> Output:
        last = 3
        held = self._held_back(frame, ctx.seed)
        columns = frame.select(
            "row_id",
            pl.col("rule_stage").fill_null(last).cast(pl.Int64).alias("stage"),
            (pl.col("weight") if "weight" in frame.columns else pl.lit(1.0)).alias("weight"),
            pl.Series("validation", held, dtype=pl.Boolean),
        )
        trained = columns.filter(~pl.col("validation"))["weight"].sum()
        count = columns.height - sum(held)
        scale = count / trained if trained else 1.0
        return Output(columns.with_columns(pl.col("weight") * scale))

    def _held_back(self, frame: pl.DataFrame, seed: int) -> list[bool]:
        """Whole (database, canonical SQL) groups in hash order, until the share is filled."""
        pairs = list(frame.select("db_id", "sql_canonical").iter_rows())
        room = min(self.validation.max_rows, round(self.validation.share * len(pairs)))
        sizes: dict[tuple[str, str], int] = {}
        for pair in pairs:
            sizes[pair] = sizes.get(pair, 0) + 1
        chosen: set[tuple[str, str]] = set()
        for pair in sorted(sizes, key=lambda p: _order(seed, *p)):
            if sizes[pair] <= room:
                chosen.add(pair)
                room -= sizes[pair]
            if room <= 0:
                break
        return [pair in chosen for pair in pairs]


def _order(seed: int, db_id: str, sql: str) -> bytes:
    return hashlib.blake2b(f"{seed}\x1fvalidation\x1f{db_id}\x1f{sql}".encode(), digest_size=16).digest()

"""Decisions, and the ledger: every decision of a run.

A decision is (row_id, step, action, reason, detail, partner_id, score). `drop`: the row leaves, for a
reason. `error`: the step could not decide (worker lost, database missing); the row is neither good nor bad.
`flag`: a finding that does not remove the row. Live rows are those without a drop or an error.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import polars as pl

Action = Literal["drop", "flag", "error"]

DECISION: dict[str, pl.DataType] = {
    "row_id": pl.String(),
    "action": pl.String(),
    "reason": pl.String(),
    "detail": pl.String(),
    "partner_id": pl.String(),
    "score": pl.Float64(),
}

LEDGER: dict[str, pl.DataType] = {
    "row_id": pl.String(),
    "step": pl.String(),
    "action": pl.String(),
    "reason": pl.String(),
    "detail": pl.String(),
    "partner_id": pl.String(),
    "score": pl.Float64(),
}


def decide(
    frame: pl.DataFrame,
    action: Action,
    reason: str | pl.Expr,
    *,
    detail: pl.Expr | str | None = None,
    partner: pl.Expr | None = None,
    score: pl.Expr | None = None,
) -> pl.DataFrame:
    """One decision for each row of `frame` (which must hold `row_id`)."""
    literal = pl.lit(reason) if isinstance(reason, str) else reason
    text = pl.lit(detail, dtype=pl.String) if detail is None or isinstance(detail, str) else detail
    return frame.select(
        pl.col("row_id"),
        pl.lit(action).alias("action"),
        literal.alias("reason"),
        text.cast(pl.String).alias("detail"),
        (pl.lit(None, dtype=pl.String) if partner is None else partner).alias("partner_id"),
        (pl.lit(None, dtype=pl.Float64) if score is None else score.cast(pl.Float64)).alias("score"),
    )


def decisions(rows: Sequence[Mapping[str, Any]] = ()) -> pl.DataFrame:
    """Decisions from dicts; absent keys are null."""
    return pl.DataFrame([{k: row.get(k) for k in DECISION} for row in rows], schema=DECISION)


def ledger(by_step: Iterable[tuple[str, pl.DataFrame]]) -> pl.DataFrame:
    """The ledger of (step name, its decisions), in step order and by `row_id` within a step."""
    frames = [
        lines.with_columns(pl.lit(step).alias("step"))
        .select(pl.col(c).cast(t) for c, t in LEDGER.items())
        .sort(["row_id", "action", "reason", "detail", "partner_id"], nulls_last=True)
        for step, lines in by_step
    ]
    return pl.concat(frames) if frames else pl.DataFrame(schema=LEDGER)


def counts(lines: pl.DataFrame, action: Action) -> dict[str, int]:
    """Distinct rows by reason, most frequent first."""
    grouped = (
        lines.filter(pl.col("action") == action)
        .group_by("reason")
        .agg(pl.col("row_id").n_unique().alias("rows"))
        .sort(["rows", "reason"], descending=[True, False])
    )
    return dict(grouped.iter_rows())


def removed(lines: pl.DataFrame) -> pl.DataFrame:
    """Rows that left: `row_id` with the step, reason, detail, partner_id and score of the decision that did it.

    A row may be refused for several reasons by one step: the first in alphabetical order speaks for it.
    """
    return (
        lines.filter(pl.col("action") != "flag")
        .unique("row_id", keep="first", maintain_order=True)
        .select("row_id", "step", "action", "reason", "detail", "partner_id", "score")
    )


def flags(lines: pl.DataFrame) -> pl.DataFrame:
    """`row_id` and its flags (sorted distinct reasons)."""
    return (
        lines.filter(pl.col("action") == "flag")
        .group_by("row_id")
        .agg(pl.col("reason").unique().sort().alias("flags"))
        .sort("row_id")
    )

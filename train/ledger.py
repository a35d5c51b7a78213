"""What became of each training prompt: how often it was drawn, how often it was solved, its rewards.

Saved with every checkpoint, so that a resumed run counts on from where it stands.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from train.shards import Example

COUNTS = ("drawn", "completions", "scored", "right", "reward_sum", "reward_squares")


class Ledger:
    """Counts of every training row, by its position in `examples`."""

    def __init__(self, examples: Sequence[Example]):
        self._about = pl.DataFrame(
            {
                "row_id": [e.row_id for e in examples],
                "db_id": [e.db_id for e in examples],
                "stage": [e.stage for e in examples],
            },
            schema={"row_id": pl.String, "db_id": pl.String, "stage": pl.Int64},
        )
        self._counts: dict[str, list[float]] = {name: [0.0] * len(examples) for name in COUNTS}

    def record(self, row: int, rewards: Sequence[float], right: Sequence[float]) -> None:
        """One group: total reward and execution of each completion, NaN where undecided."""
        known = [(r, x) for r, x in zip(rewards, right, strict=True) if not math.isnan(x)]
        for name, value in (
            ("drawn", 1),
            ("completions", len(rewards)),
            ("scored", len(known)),
            ("right", sum(x for _, x in known)),
            ("reward_sum", sum(r for r, _ in known)),
            ("reward_squares", sum(r * r for r, _ in known)),
        ):
            self._counts[name][row] += value

    def frame(self) -> pl.DataFrame:
        """One line a prompt: drawn, completions, pass_rate, reward_mean, reward_std (population)."""
        scored = pl.col("scored")
        mean = pl.col("reward_sum") / scored
        return self._state().select(
            "row_id",
            "db_id",
            "stage",
            pl.col("drawn", "completions").cast(pl.Int64),
            pl.when(scored > 0).then(pl.col("right") / scored).alias("pass_rate"),
            pl.when(scored > 0).then(mean).alias("reward_mean"),
            pl.when(scored > 0)
            .then((pl.col("reward_squares") / scored - mean**2).clip(lower_bound=0).sqrt())
            .alias("reward_std"),
        )

    def _state(self) -> pl.DataFrame:
        return self._about.with_columns(pl.Series(name, values) for name, values in self._counts.items())

    def save(self, path: Path) -> None:
        self._state().write_parquet(path)

    def load(self, path: Path) -> None:
        """Raises FileNotFoundError without a saved ledger, ValueError for one of other rows."""
        saved = pl.read_parquet(path)
        if not saved["row_id"].equals(self._about["row_id"]):
            raise ValueError(f"{path}: is of other rows than these shards")
        self._counts = {name: saved[name].to_list() for name in COUNTS}

import math

import pytest

from train.ledger import Ledger
from train.shards import Example


def examples(count: int) -> list[Example]:
    return [Example(f"r{i}", "p", "s", ("s",), "d", "x", "sqlite", 1, 1.0) for i in range(count)]


def test_groups_are_counted_by_prompt():
    ledger = Ledger(examples(3))
    ledger.record(1, [1.0, 0.4, 0.2, math.nan], [1.0, 0.0, 0.0, math.nan])
    ledger.record(1, [1.0, 1.0, 1.0, 1.0], [1.0] * 4)
    row = ledger.frame().row(1, named=True)
    assert (row["row_id"], row["drawn"], row["completions"]) == ("r1", 2, 8)
    assert row["pass_rate"] == pytest.approx(5 / 7)
    values = [1.0, 0.4, 0.2, 1.0, 1.0, 1.0, 1.0]
    mean = sum(values) / 7
    assert row["reward_mean"] == pytest.approx(mean)
    assert row["reward_std"] == pytest.approx(math.sqrt(sum((v - mean) ** 2 for v in values) / 7))
    assert ledger.frame().row(0, named=True)["pass_rate"] is None


def test_a_saved_ledger_counts_on(tmp_path):
    ledger = Ledger(examples(2))
    ledger.record(0, [1.0, 0.0], [1.0, 0.0])
    ledger.save(tmp_path / "l.parquet")
    again = Ledger(examples(2))
    again.load(tmp_path / "l.parquet")
    again.record(0, [1.0, 1.0], [1.0, 1.0])
    assert again.frame().row(0, named=True)["pass_rate"] == 0.75
    with pytest.raises(ValueError, match="other rows"):
        Ledger(examples(3)).load(tmp_path / "l.parquet")

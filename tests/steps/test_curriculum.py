import polars as pl
import pytest

from curate.steps import Curriculum
from tests.conftest import small_rows


def run(rows, **config):
    return Curriculum(**config).run(rows)


def test_weights_average_one_over_the_rows_for_training():
    kept = run(small_rows(), validation={"share": 0.2}).kept
    train = kept.filter(~pl.col("validation"))
    assert train["weight"].mean() == pytest.approx(1)
    assert set(kept["stage"]) == {1, 2, 3}


def test_all_phrasings_of_one_sql_are_on_one_side():
    rows = [{**r, "question": q} for r in small_rows() for q in (r["question"], f"So: {r['question']}")]
    kept = run(rows, validation={"share": 0.3}).kept
    sides = kept.group_by("db_id", "sql_canonical").agg(pl.col("validation").n_unique().alias("n"))
    assert sides["n"].max() == 1
    assert kept["validation"].sum() == pytest.approx(0.3 * kept.height, abs=2)


def test_the_number_held_back_is_limited_and_seeded():
    rows = small_rows()
    first = Curriculum(validation={"share": 0.5, "max_rows": 10}).run(rows, seed=1).kept
    again = Curriculum(validation={"share": 0.5, "max_rows": 10}).run(rows[::-1], seed=1).kept
    other = Curriculum(validation={"share": 0.5, "max_rows": 10}).run(rows, seed=2).kept
    assert first["validation"].sum() == 10
    assert first.equals(again)
    assert not first.equals(other)


def test_no_rows_and_one_row():
    assert run([{"question": "q", "sql": "SELECT 1", "db_id": "d"}]).kept["weight"].to_list() == [1.0]
    empty = pl.DataFrame(schema=dict.fromkeys(["question", "sql", "db_id"], pl.String))
    assert run(empty).kept.height == 0

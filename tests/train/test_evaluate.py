import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.evaluate import Rate, Rendering, read_records, rendering_of, summarize
from train.rewards import Verdict
from train.shards import Example, ShardError, read_shards


def test_the_wilson_interval_matches_known_values():
    """statsmodels' proportion_confint(50, 100, method="wilson") and (0, 20)."""
    assert Rate(50, 100).interval() == pytest.approx((0.40383153, 0.59616847), abs=1e-6)
    assert Rate(0, 20).interval() == pytest.approx((0.0, 0.16112516), abs=1e-6)
    assert Rate(0, 0).interval() == (0.0, 1.0)


@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_holds_the_rate(counts):
    rate = Rate(*counts)
    low, high = rate.interval()
    assert 0 <= low <= rate.ex + 1e-12
    assert rate.ex - 1e-12 <= high <= 1


def example(db_id: str, stage: int) -> Example:
    return Example("r", "p", "s", ("s",), db_id, "x", "sqlite", stage, 1.0)


def test_rates_are_split_by_stage_and_by_database_and_leave_out_the_undecided():
    right, wrong = Verdict(True, True, False, "right"), Verdict(False, True, False, "wrong")
    examples = [example("a", 1), example("a", 2), example("b", 2), example("b", 3)]
    found = summarize(examples, [right, wrong, right, None], {"a"})
    assert found.overall == Rate(2, 3)
    assert found.by_stage == {1: Rate(1, 1), 2: Rate(1, 2)}
    assert found.by_database == {"seen": Rate(1, 2), "unseen": Rate(1, 1)}
    assert found.undecided == 1
    assert found.reasons == {"right": 2, "wrong": 1}
    assert summarize(examples, [right] * 4).by_database == {}
    json.dumps(found.as_json())


def test_held_out_rows_get_the_prompts_that_were_trained_on(shards, databases, tmp_path):
    trained = read_shards(shards)
    rendering = rendering_of(trained)
    assert rendering == Rendering("compact", 0)
    row = trained.train.row(0, named=True)
    file = tmp_path / "held.jsonl"
    file.write_text(json.dumps({k: row[k] for k in ("question", "sql", "db_id")}) + "\n\n")
    (read,) = read_records(file, databases, rendering)
    assert read.prompt == trained.examples(trained.train)[0].prompt
    assert read.stage == row["stage"]


@pytest.mark.parametrize(
    "line, message",
    [
        ("{", "line 1: not valid JSON"),
        ('{"question": "q", "sql": "SELECT 1"}', "line 1: no db_id"),
        ('{"question": "q", "sql": "SELECT 1", "db_id": "gone"}', "line 1: database 'gone' not found"),
        ('{"question": "q", "sql": "SELECT FROM (", "db_id": "shop"}', "line 1: "),
        ("", "no rows"),
    ],
)
def test_held_out_rows_that_cannot_be_read_are_named(databases, tmp_path, line, message):
    file = tmp_path / "held.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(ShardError, match=message):
        read_records(file, databases, Rendering())

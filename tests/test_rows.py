import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.rows import SCHEMA, as_rows, frame_of, row_id

text = st.text(alphabet="ab李 '\n\"", max_size=5)
record = st.fixed_dictionaries(
    {"question": text, "sql": text, "db_id": text, "evidence": st.none() | text, "colour": text}
)


@given(st.lists(record, max_size=12), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_row_ids_are_distinct_and_do_not_depend_on_order(records, random):
    frame = frame_of(records)
    assert frame["row_id"].n_unique() == len(records)
    assert frame["row_id"].is_sorted()
    shuffled = records.copy()
    random.shuffle(shuffled)
    assert frame_of(shuffled).equals(frame)


def test_row_id_is_a_function_of_the_five_fields_and_the_occurrence():
    base = ("spider", "train", "db", "q", "s")
    made = {row_id(*base)}
    made |= {row_id(*base[:i], "other", *base[i + 1 :]) for i in range(5)}
    made |= {row_id(*base, occurrence=1)}
    assert len(made) == 7
    assert all(len(r) == 32 for r in made)


def test_no_rows_give_an_empty_frame_in_the_schema():
    assert frame_of([]).schema == pl.Schema(SCHEMA)


def test_gold_sqls_begin_with_sql_and_unknown_columns_are_kept():
    row = frame_of([{"question": "q", "sql": "a", "db_id": "d", "gold_sqls": ["b", "a"], "note": 7}]).row(
        0, named=True
    )
    assert row["gold_sqls"] == ["a", "b"]
    assert row["extra"] == '{"note": 7}'


def test_a_notebook_frame_becomes_rows_and_keeps_its_columns():
    frame = pl.DataFrame({"question": ["q1", "q2"], "sql": ["a", "b"], "db_id": ["d", "d"], "note": [1, 2]})
    rows = as_rows(frame)
    assert {r["question"]: r["note"] for r in rows.to_dicts()} == {"q1": 1, "q2": 2}
    assert rows["row_id"].to_list() == frame_of(frame.drop("note").to_dicts())["row_id"].to_list()
    with pytest.raises(ValueError, match="'sql'"):
        as_rows(pl.DataFrame({"question": ["q"], "db_id": ["d"]}))

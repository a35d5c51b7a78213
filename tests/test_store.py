import hashlib

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.ledger import decisions
from curate.rows import row_id
from curate.store import (
    WHOLE,
    Layer,
    Part,
    Table,
    content_key,
    fingerprint,
    pack,
    ranges,
    to_parquet,
)


def ids(count: int, databases: int = 5) -> pl.Series:
    made = [row_id("s", "train", f"db{i % databases}", f"question {i}", f"sql {i % 7}") for i in range(count)]
    return pl.Series("row_id", sorted(made))


def in_range(series: pl.Series, span) -> list[str]:
    return [r for r in series if span.first <= r <= span.last]


@given(st.integers(0, 400), st.integers(1, 50))
@settings(max_examples=40, deadline=None)
def test_ranges_cover_every_row_once_and_hold_at_most_part_rows(count, part_rows):
    series = ids(count)
    spans = ranges(series, part_rows)
    held = [r for span in spans for r in in_range(series, span)]
    assert held == series.to_list()
    assert all(1 <= len(in_range(series, span)) <= part_rows for span in spans)


def test_adding_rows_changes_only_the_ranges_they_fall_in():
    series = ids(2000)
    before = ranges(series, 64)
    added = [hashlib.blake2b(f"new {i}".encode(), digest_size=16).hexdigest() for i in range(5)]
    after = ranges(pl.Series("row_id", sorted([*series, *added])), 64)
    touched = [span for span in before if any(span.first <= r <= span.last for r in added)]
    assert set(before) - set(after) <= set(touched)


def test_a_group_range_never_separates_rows_of_one_database():
    series = ids(500, databases=6)
    spans = ranges(series, 50, whole_databases=True)
    for span in spans:
        for prefix in {r[:8] for r in in_range(series, span)}:
            assert [r for r in series if r[:8] == prefix] == [
                r for r in in_range(series, span) if r[:8] == prefix
            ]


def test_rows_of_one_database_and_one_sql_are_neighbours():
    made = sorted(row_id("s", "t", "db", f"q{i}", f"sql{i % 3}") for i in range(30))
    prefixes = [r[:16] for r in made]
    assert len(set(prefixes)) == 3
    assert prefixes == sorted(prefixes)


def test_fingerprint_sees_values_types_and_nulls():
    frame = pl.DataFrame({"a": ["x", None]})
    assert fingerprint(frame) == fingerprint(pl.DataFrame({"a": ["x", None]}))
    different = [
        pl.DataFrame({"a": ["x", ""]}),
        pl.DataFrame({"b": ["x", None]}),
        pl.DataFrame({"a": [None, "x"]}),
        pl.DataFrame({"a": [None, None]}, schema={"a": pl.String}),
        pl.DataFrame({"a": ["x"]}),
    ]
    assert len({fingerprint(f) for f in [frame, *different]}) == len(different) + 1
    assert fingerprint(pl.DataFrame({"a": [1]})) != fingerprint(pl.DataFrame({"a": ["1"]}))


def test_fingerprint_does_not_depend_on_chunks():
    whole = pl.DataFrame({"a": list(range(10))})
    assert fingerprint(pl.concat([whole[:3], whole[3:]], rechunk=False)) == fingerprint(whole)


def test_content_key_depends_on_every_value():
    assert content_key("a", {"x": 1}) == content_key("a", {"x": 1})
    assert content_key("a", {"x": 1}) != content_key("a", {"x": 2})
    assert content_key("ab", "c") != content_key("a", "bc")


def test_the_same_frame_gives_the_same_bytes(tmp_path):
    frame = pl.DataFrame({"row_id": ids(300), "n": range(300)})
    to_parquet(frame, tmp_path / "a.parquet")
    to_parquet(pl.concat([frame[:100], frame[100:]], rechunk=False), tmp_path / "b.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.parquet", "b.parquet"]


def test_pack_refuses_what_a_step_must_not_return():
    given_ids = pl.Series("row_id", ["a", "b"])
    with pytest.raises(ValueError, match="names row 'z'"):
        pack(given_ids, None, decisions([{"row_id": "z", "action": "drop", "reason": "r"}]), ())
    with pytest.raises(ValueError, match="must be drop, flag or error"):
        pack(given_ids, None, decisions([{"row_id": "a", "action": "remove", "reason": "r"}]), ())
    with pytest.raises(ValueError, match="returned no columns"):
        pack(given_ids, None, None, ("x",))
    with pytest.raises(ValueError, match=r"\['y'\]"):
        pack(given_ids, pl.DataFrame({"row_id": ["a"], "x": [1]}), None, ("x", "y"))
    with pytest.raises(ValueError, match="a row twice"):
        pack(given_ids, pl.DataFrame({"row_id": ["a", "a"], "x": [1, 2]}), None, ("x",))
    with pytest.raises(ValueError, match="a row it was not given"):
        pack(given_ids, pl.DataFrame({"row_id": ["c"], "x": [1]}), None, ("x",))


def table(tmp_path, drops=("b",)) -> Table:
    rows = pl.DataFrame({"row_id": ["a", "b", "c"], "q": ["1", "2", "3"]})
    to_parquet(rows, tmp_path / "rows.parquet")
    said = decisions([{"row_id": r, "action": "drop", "reason": "bad"} for r in drops])
    said = pl.concat([said, decisions([{"row_id": "c", "action": "flag", "reason": "odd", "score": 0.5}])])
    packed = pack(rows["row_id"], rows.select("row_id", x=pl.col("q") + "!"), said, ("x",))
    to_parquet(packed, tmp_path / "step.parquet")
    return Table(
        (
            Layer("rows", ("row_id", "q"), (Part("train", WHOLE, tmp_path / "rows.parquet", 3, 0),)),
            Layer("step", ("x",), (Part("train", WHOLE, tmp_path / "step.parquet", 3, len(drops)),)),
        )
    )


def test_a_table_reads_live_rows_and_later_columns(tmp_path):
    made = table(tmp_path)
    assert made.read("train", WHOLE, ["q", "x"]).to_dicts() == [
        {"row_id": "a", "q": "1", "x": "1!"},
        {"row_id": "c", "q": "3", "x": "3!"},
    ]
    assert made.read("train", WHOLE, ["x"], dead_too=True)["row_id"].to_list() == ["a", "b", "c"]
    assert made.decisions(1, "train").to_dicts() == [
        {"row_id": "b", "action": "drop", "reason": "bad", "detail": None, "partner_id": None, "score": None},
        {"row_id": "c", "action": "flag", "reason": "odd", "detail": None, "partner_id": None, "score": 0.5},
    ]


def test_a_flag_is_no_removal(tmp_path):
    assert table(tmp_path, drops=()).read("train", WHOLE, ["q"]).height == 3

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.sql.compare import MODES, compare, digest

value = (
    st.none()
    | st.integers(-3, 3)
    | st.integers(-(2**62), 2**62)
    | st.sampled_from([0.0, 1.0, 0.5, -2.25, 1e-7, 1e300, math.inf])
    | st.text(alphabet="ab1 '李", max_size=3)
    | st.binary(max_size=2)
)
rows = st.integers(1, 3).flatmap(lambda width: st.lists(st.tuples(*[value] * width), max_size=5))


@pytest.mark.parametrize(
    ("predicted", "gold", "match"),
    [
        ([(1, "a")], [(1, "a")], True),
        ([(1,), (2,)], [(2,), (1,)], True),
        ([(1,), (1,)], [(1,)], False),
        ([(1, 2)], [(2, 1)], False),
        ([(None,)], [("",)], False),
        ([(None,)], [(0,)], False),
        ([("1",)], [(1,)], False),
        ([(1.0,)], [(1,)], True),
        ([(0.1 + 0.2,)], [(0.3,)], True),
        ([(1000000.5,)], [(1000000.6,)], True),
        ([(100.5,)], [(100.6,)], False),
        ([(2**60,)], [(2**60 + 1,)], False),
        ([(b"a",)], [("a",)], False),
        ([("a",)], [("A",)], False),
        ([], [], True),
        ([], [(1,)], False),
        ([(1, 2)], [(1,)], False),
        ([(math.inf,)], [(math.inf,)], True),
        ([(1.0000001, "x"), (1.0, "y")], [(1.0, "y"), (1.0, "x")], True),
    ],
)
def test_strict(predicted, gold, match):
    verdict = compare(predicted, gold, "strict")
    assert verdict.match is match
    assert verdict.reason


def test_strict_looks_at_the_order_only_when_gold_orders():
    assert compare([(1,), (2,)], [(2,), (1,)], "strict").match
    verdict = compare([(1,), (2,)], [(2,), (1,)], "strict", ordered=True)
    assert not verdict.match
    assert "another order" in verdict.reason


def test_bird_is_a_set_of_rows():
    assert compare([(1,), (1,), (2,)], [(2,), (1,)], "bird", ordered=True).match
    assert not compare([(1, 2)], [(2, 1)], "bird").match
    assert compare([(1.0,)], [(1,)], "bird").match


def test_spider_allows_a_permutation_of_columns_and_counts_rows():
    assert compare([(1, "a"), (2, "b")], [("b", 2), ("a", 1)], "spider").match
    assert not compare([(1, "a"), (2, "b")], [("a", 2), ("b", 1)], "spider").match
    assert not compare([(1,), (1,)], [(1,)], "spider").match
    assert not compare([(1, 5), (2, 6)], [(6, 2), (5, 1)], "spider", ordered=True).match
    assert compare([(1, 5), (2, 6)], [(5, 1), (6, 2)], "spider", ordered=True).match


def test_spider_is_quick_on_many_equal_columns():
    wide = [tuple([1] * 30) for _ in range(50)]
    assert compare(wide, wide, "spider").match
    assert not compare(wide, [*wide[:-1], tuple([1] * 29 + [2])], "spider").match


@given(rows, st.sampled_from(MODES), st.booleans())
@settings(deadline=None)
def test_a_result_matches_itself(result, mode, ordered):
    assert compare(result, result, mode, ordered=ordered).match


@given(rows, rows, st.sampled_from(MODES), st.booleans())
@settings(deadline=None, max_examples=300)
def test_verdicts_are_symmetric_and_digests_agree(a, b, mode, ordered):
    match = compare(a, b, mode, ordered=ordered).match
    assert compare(b, a, mode, ordered=ordered).match is match
    same = digest(a, mode, ordered=ordered) == digest(b, mode, ordered=ordered)
    if mode == "strict" and same:
        assert match
    if mode == "bird":
        assert same is match
    if mode == "spider" and match:
        assert same


@given(rows, st.randoms(use_true_random=False), st.sampled_from(MODES))
@settings(deadline=None)
def test_the_order_of_rows_does_not_matter_unless_gold_orders(result, random, mode):
    shuffled = result.copy()
    random.shuffle(shuffled)
    assert compare(shuffled, result, mode).match
    assert digest(shuffled, mode) == digest(result, mode)


def test_digests_are_typed():
    cells = [None, "", 0, "0", "null", b"", b"0", 0.5, "0.5"]
    assert len({digest([(c,)]) for c in cells}) == len(cells)
    assert digest([("a", "b")]) != digest([("ab",)])
    assert digest([(1,)]) == digest([(1.0,)])


def test_an_unknown_mode_is_told():
    with pytest.raises(ValueError, match="one of bird, spider, strict"):
        compare([], [], "exact")
    with pytest.raises(ValueError, match="one of"):
        digest([], "exact")

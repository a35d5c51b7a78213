import itertools
import json
import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.sql.compare import MODES, compare, digest, orders, soft_f1
from curate.sql.mutate import Mutant, mutants
from curate.sql.sandbox import Limits, Pair, Query, Sandbox
from curate.sql.schema import read_sqlite

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


def test_keys_let_tied_rows_change_places():
    gold, keys = [("a",), ("b",), ("c",)], [(2,), (1,), (1,)]
    assert compare([("a",), ("c",), ("b",)], gold, ordered=True, keys=keys).match
    assert not compare([("b",), ("a",), ("c",)], gold, ordered=True, keys=keys).match
    assert not compare([("a",), ("c",), ("d",)], gold, ordered=True, keys=keys).match
    assert not compare([("a",), ("c",), ("b",)], gold, ordered=True).match


@pytest.mark.parametrize(
    ("sql", "strict", "spider"),
    [
        ("SELECT a FROM t ORDER BY a", True, True),
        ("SELECT a FROM t", False, False),
        ("SELECT a FROM (SELECT a FROM t ORDER BY a LIMIT 3)", False, True),
        ("SELECT 'order by'", False, True),
        ("SELECT a FROM t UNION SELECT b FROM t ORDER BY 1", True, True),
        ("not a query order by", False, True),
    ],
)
def test_when_a_gold_orders(sql, strict, spider):
    assert (orders(sql, "strict"), orders(sql, "spider"), orders(sql, "bird")) == (strict, spider, False)


@pytest.mark.parametrize(
    ("predicted", "gold", "score"),
    [
        ([], [], 1.0),
        ([(1,)], [], 0.0),
        ([], [(1,)], 0.0),
        ([(1, "a")], [(1, "a")], 1.0),
        ([(1, "a"), (1, "a")], [(1, "a")], 1.0),
        ([("a", 1)], [(1, "a")], 1.0),  # cells of a row are a set to BIRD
        ([(1, "b")], [(1, "a")], 0.5),  # P = R = 1/2
        ([(1,), (2,)], [(1,)], 2 / 3),  # P = 1/2, R = 1
        ([(1, 2, 3)], [(1, 2)], 0.8),  # P = 2/3, R = 1
    ],
)
def test_soft_f1(predicted, gold, score):
    assert soft_f1(predicted, gold) == pytest.approx(score)


@given(rows, rows, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_soft_f1_is_a_share_and_looks_at_no_order(a, b, random):
    score = soft_f1(a, b)
    assert 0 <= score <= 1
    shuffled = a.copy()
    random.shuffle(shuffled)
    assert soft_f1(shuffled, b) == score
    assert soft_f1(a, a) == 1
    if compare(a, b, "bird").match:
        assert score == 1


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


# The official evaluators, restated from their published rules.


def official_bird(predicted, gold):
    return set(predicted) == set(gold)


def official_spider(gold, predicted, order_matters):
    """result_eq of the test-suite evaluator: tries every permutation of the columns."""
    if not gold and not predicted:
        return True
    if len(gold) != len(predicted) or len(gold[0]) != len(predicted[0]):
        return False
    for permutation in itertools.permutations(range(len(gold[0]))):
        permuted = [tuple(row[i] for i in permutation) for row in predicted]
        if order_matters and gold == permuted:
            return True
        if not order_matters and Counter(gold) == Counter(permuted):
            return True
    return False


@pytest.mark.slow
def test_parity_with_the_official_evaluators_on_golds_and_mutants(nl2sql_data):
    """Over 5,000 pairs of Spider's golds and their near-misses; the restated rules read the rows themselves."""
    data = nl2sql_data / "spider"
    pairs, schemas = [], {}
    golds = {(r["db_id"], r["query"]) for r in json.loads((data / "train.json").read_text(encoding="utf-8"))}
    for name, gold in sorted(golds)[::3]:
        path = data / "database" / name / f"{name}.sqlite"
        if name not in schemas:
            schemas[name] = read_sqlite(path)
        pairs += [
            (str(path), m.sql, gold) for m in [Mutant("same", f"{gold} "), *mutants(gold, schemas[name])][:6]
        ]
    assert len(pairs) > 5_000
    with Sandbox(2, Limits(max_rows=2_000)) as sandbox:
        rows = sandbox.run([Query(d, s) for d, p, g in pairs for s in (p, g)])
        both = list(zip(rows[::2], rows[1::2], strict=True))
        judged = {m: sandbox.judge([Pair(d, p, (g,)) for d, p, g in pairs], m) for m in ("bird", "spider")}
    compared, right, differ = 0, Counter(), []
    for i, ((_, sql, gold), (mine, theirs)) in enumerate(zip(pairs, both, strict=True)):
        if not (mine.ok and theirs.ok):
            assert not any(judged[m][i].match for m in judged)
            continue
        wide = len(theirs.columns) > 6 and len(mine.columns) == len(theirs.columns)
        official = {"bird": official_bird(mine.rows, theirs.rows)}
        if not wide:  # 7! permutations
            official["spider"] = official_spider(
                list(theirs.rows), list(mine.rows), "order by" in gold.lower()
            )
        for mode, verdict in official.items():
            compared += 1
            right[mode] += verdict
            if judged[mode][i].match != verdict:
                differ.append((mode, sql, gold))
    assert compared > 10_000
    assert min(right.values()) > 1_000
    assert differ == []

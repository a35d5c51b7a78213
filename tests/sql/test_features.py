import csv
import json
import math
from dataclasses import asdict, fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.sql.canonical import parse
from curate.sql.features import WEIGHTS, Features, difficulty, features, hardness, rule_stage
from curate.sql.schema import Column, Schema, Table


def found(sql: str) -> dict[str, int]:
    return {name: n for name, n in asdict(features(sql)).items() if n}


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT a FROM t", {"tables": 1, "columns": 1}),
        ("SELECT a, b FROM t, u", {"tables": 2, "columns": 2, "inner_joins": 1}),
        (
            "SELECT * FROM t LEFT JOIN u ON t.x = u.x",
            {"tables": 2, "columns": 1, "outer_joins": 1, "predicates": 1},
        ),
        (
            "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.x = t.x)",
            {"tables": 2, "columns": 1, "predicates": 2, "subqueries": 1, "nesting_depth": 1, "correlated": 1}
            | {"literals": 1, "exists": 1, "where_subqueries": 1},
        ),
        (
            "WITH c AS (SELECT a FROM t) SELECT a FROM c",
            {"tables": 2, "columns": 1, "ctes": 1, "nesting_depth": 1},
        ),
        ("SELECT rank() OVER (ORDER BY a), sum(b) OVER () FROM t", {"tables": 1, "columns": 2, "windows": 2}),
        (
            "SELECT IIF(a, 1, 2), CASE WHEN a THEN 3 END FROM t",
            {"tables": 1, "columns": 2, "cases": 2, "literals": 3},
        ),
        ("SELECT strftime('%Y', d) FROM t", {"tables": 1, "columns": 1, "functions": 1, "literals": 1}),
        (
            "SELECT count(DISTINCT a) FROM t GROUP BY b, c HAVING count(*) > 1 ORDER BY 1 LIMIT 3",
            {"tables": 1, "columns": 1, "aggregates": 2, "distinct": 1, "group_keys": 2, "having": 1}
            | {"predicates": 1, "order_keys": 1, "limits": 1, "literals": 3},
        ),
        (
            "SELECT a FROM t UNION SELECT b FROM u INTERSECT SELECT c FROM v",
            {"tables": 3, "columns": 1, "set_operations": 2},
        ),
        (
            "SELECT a FROM t WHERE NOT (a = 1 OR (b = 2 AND c = 3))",
            {
                "tables": 1,
                "columns": 1,
                "predicates": 3,
                "boolean_depth": 3,
                "disjunctions": 1,
                "negations": 1,
            }
            | {"literals": 3},
        ),
        (
            "SELECT a FROM (SELECT a FROM (SELECT a FROM t))",
            {"tables": 1, "columns": 1, "subqueries": 2, "from_subqueries": 2, "nesting_depth": 2},
        ),
        (
            "SELECT (SELECT max(b) FROM t) FROM t GROUP BY a HAVING a > (SELECT 1)",
            {"tables": 2, "columns": 1, "subqueries": 2, "select_subqueries": 1, "having_subqueries": 1}
            | {
                "nesting_depth": 1,
                "aggregates": 1,
                "group_keys": 1,
                "having": 1,
                "predicates": 1,
                "literals": 1,
            },
        ),
        (
            "SELECT a FROM t WHERE a NOT LIKE 'x' AND b NOT IN (1) AND c BETWEEN 1 AND 2 AND d IS NOT NULL",
            {"tables": 1, "columns": 1, "predicates": 4, "likes": 1, "ins": 1, "betweens": 1, "is_tests": 1}
            | {"negations": 3, "boolean_depth": 2, "literals": 4},
        ),
        ("SELECT a + b * 2 FROM t", {"tables": 1, "columns": 1, "arithmetic": 2, "literals": 1}),
    ],
)
def test_features(sql, expected):
    assert found(sql) == expected


def test_a_column_of_the_outer_query_is_recognised_without_its_table():
    schema = Schema("s", (Table("t", (Column("a", "int"),)), Table("u", (Column("b", "int"),))))
    outer = "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u WHERE b = a)"
    assert features(outer, schema).correlated == 1
    assert features("SELECT a FROM t WHERE a IN (SELECT b FROM u WHERE b = 1)", schema).correlated == 0


def test_features_of_a_long_chain_take_one_walk():
    long = parse("SELECT a FROM t WHERE " + " OR ".join(["a = 1"] * 2000))
    assert features(long).predicates == 2000
    assert hardness(long) == "extra"


@pytest.mark.parametrize(
    ("sql", "level"),
    [
        # two clauses (WHERE, LIKE); plurals: conditions, and aggregates where NOT counts as one
        ("SELECT max(a) FROM t WHERE b NOT LIKE 'x' AND c = 'y'", "extra"),
        ("SELECT max(a) FROM t WHERE b LIKE 'x' AND c = 'y'", "medium"),
    ],
)
def test_hardness_counts_a_negated_like_as_spiders_script_does(sql, level):
    assert hardness(sql) == level


@pytest.mark.parametrize(
    ("sql", "stage"),
    [
        ("SELECT DISTINCT a FROM t WHERE b = 1 AND c LIKE 'x%'", 1),
        ("SELECT a FROM t LIMIT 1", 2),
        ("SELECT a FROM t, u", 2),
        ("SELECT max(a) FROM t", 2),
        ("SELECT a FROM t WHERE b > (SELECT avg(b) FROM t)", 3),
        ("SELECT a FROM t EXCEPT SELECT a FROM u", 3),
        ("SELECT row_number() OVER () FROM t", 3),
        ("WITH c AS (SELECT 1 AS x) SELECT x FROM c", 3),
    ],
)
def test_stage(sql, stage):
    assert rule_stage(features(sql)) == stage


@given(st.builds(Features, **{f.name: st.integers(0, 20) for f in fields(Features)}), st.data())
def test_difficulty_is_in_range_and_grows_with_every_feature(base, data):
    name = data.draw(st.sampled_from([f.name for f in fields(Features)]))
    harder = replace(base, **{name: getattr(base, name) + 1})
    assert 0 <= difficulty(base) <= difficulty(harder) <= 1
    assert difficulty(Features()) == 0


def test_every_feature_has_a_positive_weight():
    assert set(WEIGHTS) == {f.name for f in fields(Features)}
    assert min(WEIGHTS.values()) > 0
    assert difficulty(replace(Features(), windows=1)) == pytest.approx(1 - math.exp(-WEIGHTS["windows"] / 5))


def test_hardness_is_spiders_on_every_label(nl2sql_data):
    spider = nl2sql_data / "spider"
    rows = {s: json.loads((spider / f"{s}.json").read_text(encoding="utf-8")) for s in ("train", "dev")}
    with (spider / "hardness.csv").open() as file:
        labels = [(r["split"], int(r["index"]), r["hardness"]) for r in csv.DictReader(file)]
    labels = [label for label in labels if label[2] in ("easy", "medium", "hard", "extra")]
    wrong = [
        (rows[split][index]["query"], hardness(rows[split][index]["query"]), label)
        for split, index, label in labels
        if hardness(rows[split][index]["query"]) != label
    ]
    assert wrong == []
    assert len(labels) == 5990


@pytest.mark.parametrize(
    "sql",
    [
        "WITH c AS (SELECT 1 AS x) SELECT x FROM c",
        "SELECT a FROM t LEFT JOIN u USING (x) WHERE EXISTS (SELECT 1 FROM v)",
        "SELECT CASE WHEN a > 1 THEN 'x' ELSE 'y' END FROM t",
        "SELECT rank() OVER (ORDER BY a) FROM t",
    ],
)
def test_hardness_of_what_spiders_parser_cannot_read(sql):
    assert hardness(sql) in ("easy", "medium", "hard", "extra")

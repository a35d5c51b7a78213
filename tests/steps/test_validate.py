import pytest

from curate.steps import Validate


def run(database, *sqls: str, **config):
    rows = [{"question": f"q{i}", "sql": s, "db_id": "town"} for i, s in enumerate(sqls)]
    return Validate(**config).run(rows, databases=database.parent.parent)


def reasons(frame) -> dict[str, str]:
    return dict(frame.select("sql", "reason").iter_rows())


def test_gold_that_runs_stays_with_its_digest(database):
    result = run(database, "SELECT name FROM person WHERE age > 30", "SELECT count(*) FROM pet")
    assert result.kept.height == 2
    assert dict(result.kept.select("sql", "gold_rows").iter_rows()) == {
        "SELECT name FROM person WHERE age > 30": 2,
        "SELECT count(*) FROM pet": 1,
    }
    assert result.kept["gold_digest"].null_count() == 0


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT nme FROM person", "gold_fails"),
        ("SELECT name FROM", "gold_fails"),
        ("SELECT * FROM nowhere", "gold_fails"),
        ("DELETE FROM person", "gold_denied"),
        ("ATTACH 'x.sqlite' AS x", "gold_denied"),
        (
            "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT max(x) FROM c",
            "gold_timeout",
        ),
        ("SELECT a.id FROM person a, person b, person c", "gold_too_many_rows"),
    ],
)
def test_gold_that_does_not_run_leaves_with_its_reason(database, sql, reason):
    good = "SELECT name FROM person"
    result = run(database, sql, good, timeout_s=0.5, max_rows=20)
    assert reasons(result.dropped) == {sql: reason}
    assert result.kept["sql"].to_list() == [good]
    assert all(result.dropped["detail"].is_not_null())


def test_a_check_flags_drops_or_is_off(database):
    sql = "SELECT name FROM person WHERE age > 99"
    assert reasons(run(database, sql).flagged) == {sql: "empty_result"}
    assert reasons(run(database, sql, checks={"empty_result": "drop"}).dropped) == {sql: "empty_result"}
    assert run(database, sql, checks={"empty_result": "off"}).decisions.is_empty()


def test_an_unknown_check_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="unknown check 'empty_results'; did you mean empty_result"):
        Validate(checks={"empty_results": "drop"})


@pytest.mark.parametrize(
    ("sql", "check", "evidence"),
    [
        ("SELECT name FROM person WHERE name = 'ann'", "literal_absent", "'Ann' is: other case"),
        ("SELECT name FROM person WHERE name = 'Ann '", "literal_absent", "'Ann' is: other spaces"),
        ("SELECT name FROM person WHERE name IN ('Ann', 'Annn')", "literal_absent", "the nearest is 'Ann'"),
        ("SELECT name FROM person ORDER BY age DESC LIMIT 1", "tie_at_limit", "2 rows share"),
        ("SELECT name AS n FROM person ORDER BY 0 - age LIMIT 1", "tie_at_limit", "2 rows share"),
        ("SELECT name FROM person LIMIT 2", "order_dependent", "read backwards"),
        (
            "SELECT count(*) FROM person WHERE random() > 0 OR random() < 0 AND id = 1",
            "nondeterministic",
            "RANDOM",
        ),
        ("SELECT max(age) FROM person WHERE age > 99", "all_null", "NULL (rows: 1)"),
        ("SELECT random()", "unstable", "two runs"),
    ],
)
def test_what_only_the_database_shows(database, sql, check, evidence):
    flagged = run(database, sql).flagged
    found = dict(flagged.select("reason", "detail").iter_rows())
    assert evidence in found[check]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT name FROM person ORDER BY age LIMIT 1",  # one is youngest
        "SELECT age FROM person ORDER BY age DESC LIMIT 1",  # two are oldest, and equal
        "SELECT name FROM person ORDER BY age DESC LIMIT 2",  # both of them
        "SELECT name FROM person WHERE name = 'Ann'",
        "SELECT kind, count(*) FROM pet GROUP BY kind",
        "SELECT name FROM person WHERE id IN (SELECT owner FROM pet WHERE kind = 'dog')",
    ],
)
def test_sound_gold_has_no_finding(database, sql):
    assert run(database, sql).decisions.is_empty()


def test_a_failing_gold_is_explained(database):
    result = run(
        database, "SELECT nme FROM person", "SELECT name FROM persons", "SELECT getdate() FROM person"
    )
    details = dict(result.dropped.select("sql", "detail").iter_rows())
    assert "the nearest is name" in details["SELECT nme FROM person"]
    assert "the nearest is person" in details["SELECT name FROM persons"]
    assert "it reads as tsql" in details["SELECT getdate() FROM person"]


def test_a_missing_or_broken_database_is_an_error_and_no_drop(database):
    root = database.parent.parent
    broken = root / "broken" / "broken.sqlite"
    broken.parent.mkdir()
    broken.write_bytes(b"this is no database" * 100)
    rows = [
        {"question": "q", "sql": "SELECT 1 FROM person", "db_id": d} for d in ("absent", "broken", "town")
    ]
    result = Validate().run(rows, databases=root)
    assert dict(result.errors.select("db_id", "reason").iter_rows()) == {
        "absent": "no_database",
        "broken": "no_database",
    }
    assert result.kept["db_id"].to_list() == ["town"]
    assert result.dropped.is_empty()


def test_a_failing_alternative_is_flagged_and_the_row_stays(database):
    rows = [
        {
            "question": "q",
            "sql": "SELECT name FROM person",
            "gold_sqls": ["SELECT name FROM person", "SELECT nme FROM person"],
            "db_id": "town",
        }
    ]
    result = Validate().run(rows, databases=database.parent.parent)
    assert result.kept.height == 1
    assert result.flagged["reason"].to_list() == ["alternative_fails"]


def test_an_alternative_with_another_result_is_flagged(database):
    golds = ["SELECT name FROM person WHERE age > 30", "SELECT name FROM person WHERE age >= 30"]
    rows = [{"question": "q", "sql": golds[0], "gold_sqls": golds, "db_id": "town"}]
    result = Validate().run(rows, databases=database.parent.parent)
    assert result.flagged["reason"].to_list() == ["alternative_differs"]
    assert result.flagged["detail"].to_list() == [f"3 rows, gold has 2: {golds[1]}"]


def test_a_gold_that_its_near_misses_equal_is_told_on_request(database):
    loose, tight = "SELECT name FROM person WHERE age > 30", "SELECT name FROM person"
    assert reasons(run(database, loose, tight).flagged) == {}
    found = run(database, loose, tight, checks={"indistinguishable": "flag"}).flagged
    assert set(reasons(found).values()) == {"indistinguishable"}
    told = dict(found.select("sql", "detail").iter_rows())[loose]
    assert (
        told == "this has the same result here: SELECT DISTINCT name FROM person WHERE age > 30 (and 1 more)"
    )
    dropped = run(database, loose, tight, checks={"indistinguishable": "drop"}).dropped
    assert loose in dropped["sql"].to_list()


def test_alternatives_that_only_a_neighbour_tells_apart_are_flagged_on_request(database):
    golds = ["SELECT name FROM person WHERE age > 30", "SELECT name FROM person WHERE age > 31"]
    rows = [{"question": "q", "sql": golds[0], "gold_sqls": golds, "db_id": "town"}]
    root = database.parent.parent
    assert Validate().run(rows, databases=root).flagged.is_empty()
    found = Validate(checks={"indistinguishable": "flag"}).run(rows, databases=root).flagged
    told = dict(found.select("reason", "detail").iter_rows())
    assert "right on the database, not on its neighbour" in told["alternative_differs"]


def test_an_alternative_that_orders_ties_otherwise_or_rounds_is_the_same(database):
    golds = [
        "SELECT name FROM person ORDER BY age DESC",
        "SELECT name FROM person ORDER BY age DESC, name DESC",
    ]
    floats = ["SELECT sum(age) / 3.0 FROM person", "SELECT sum(age) * (1 / 3.0) FROM person"]
    rows = [{"question": "q", "sql": g[0], "gold_sqls": g, "db_id": "town"} for g in (golds, floats)]
    assert Validate().run(rows, databases=database.parent.parent).flagged.is_empty()


def test_another_dialect_cannot_be_decided(database):
    rows = [{"question": "q", "sql": "SELECT 1", "db_id": "town", "dialect": "postgres"}]
    result = Validate().run(rows, databases=database.parent.parent)
    assert result.errors["reason"].to_list() == ["unsupported_dialect"]


def test_no_rows_and_one_row(database):
    assert run(database).kept.height == 0
    assert run(database, "SELECT name FROM person").kept.height == 1

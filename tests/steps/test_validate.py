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


def test_empty_results_are_flagged_dropped_or_kept(database):
    sql = "SELECT name FROM person WHERE age > 99"
    assert reasons(run(database, sql).flagged) == {sql: "empty_result"}
    assert reasons(run(database, sql, on_empty="drop").dropped) == {sql: "empty_result"}
    assert run(database, sql, on_empty="keep").decisions.is_empty()


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


def test_another_dialect_cannot_be_decided(database):
    rows = [{"question": "q", "sql": "SELECT 1", "db_id": "town", "dialect": "postgres"}]
    result = Validate().run(rows, databases=database.parent.parent)
    assert result.errors["reason"].to_list() == ["unsupported_dialect"]


def test_no_rows_and_one_row(database):
    assert run(database).kept.height == 0
    assert run(database, "SELECT 1").kept.height == 1

import json
import re
import sqlite3
from collections import defaultdict

import pytest

from curate.sql.canonical import SqlParseError, canonicalize, outermost_order, parse, repair_quotes
from curate.sql.schema import Column, Schema, Table, read_sqlite

TOWN = Schema(
    "town",
    (
        Table("person", (Column("id", "int", True), Column("name", "text"), Column("age", "int"))),
        Table("pet", (Column("id", "int", True), Column("owner", "int"), Column("kind", "text"))),
    ),
)


def key(sql: str) -> str:
    found = canonicalize(sql, TOWN)
    assert found.qualified, found.note
    return found.sql


SAME = [
    ("SELECT name FROM person", "select NAME from Person ;"),
    ("SELECT name FROM person", 'SELECT "name" FROM `person` -- why'),
    ("SELECT name FROM person", "SELECT T1.name AS n FROM person AS T1"),
    ("SELECT name FROM person WHERE age > 3", "SELECT name FROM person WHERE 3 < age"),
    ("SELECT name FROM person WHERE age != 3", "SELECT name FROM person WHERE (age <> 3)"),
    ("SELECT name FROM person WHERE age = 3 AND id = 1", "SELECT name FROM person WHERE id = 1 AND age = 3"),
    ("SELECT name FROM person WHERE name = 'Ann'", 'SELECT name FROM person WHERE name = "Ann"'),
    ("SELECT name FROM person WHERE age IN (1, 2)", "SELECT name FROM person WHERE age IN (2, 1)"),
    (
        "SELECT a.name FROM person a JOIN pet b ON a.id = b.owner WHERE b.kind = 'cat'",
        "SELECT x.name FROM person x, pet y WHERE y.kind = 'cat' AND y.owner = x.id",
    ),
    (
        "SELECT name, count(*) AS n FROM person GROUP BY name ORDER BY n",
        "SELECT name, COUNT(*) FROM person GROUP BY name ORDER BY count(*) ASC",
    ),
    (
        "SELECT name FROM person WHERE id IN (SELECT owner FROM pet WHERE kind = 'cat')",
        "SELECT p.name FROM person p WHERE p.id IN (SELECT q.owner FROM pet q WHERE 'cat' = q.kind)",
    ),
    (
        "SELECT count(*) FROM (SELECT name FROM person) AS x",
        "SELECT count(*) FROM (SELECT name FROM person) AS y",
    ),
]

DIFFERENT = [
    ("SELECT name FROM person", "SELECT DISTINCT name FROM person"),
    ("SELECT name FROM person", "SELECT age FROM person"),
    ("SELECT name, age FROM person", "SELECT age, name FROM person"),
    ("SELECT name FROM person WHERE age > 3", "SELECT name FROM person WHERE age >= 3"),
    ("SELECT name FROM person WHERE age > 3", "SELECT name FROM person WHERE age < 3"),
    ("SELECT name FROM person WHERE age = 1", "SELECT name FROM person WHERE age = '1'"),
    ("SELECT name FROM person WHERE age = 1", "SELECT name FROM person WHERE age = 1.0"),
    ("SELECT name FROM person WHERE name = 'a'", "SELECT name FROM person WHERE name = 'A'"),
    ("SELECT name FROM person ORDER BY age", "SELECT name FROM person ORDER BY age DESC"),
    ("SELECT name FROM person ORDER BY age LIMIT 1", "SELECT name FROM person ORDER BY age LIMIT 2"),
    ("SELECT max(age) FROM person", "SELECT min(age) FROM person"),
    ("SELECT count(age) FROM person", "SELECT count(DISTINCT age) FROM person"),
    (
        "SELECT name FROM person UNION SELECT kind FROM pet",
        "SELECT name FROM person UNION ALL SELECT kind FROM pet",
    ),
    (
        "SELECT name FROM person EXCEPT SELECT kind FROM pet",
        "SELECT kind FROM pet EXCEPT SELECT name FROM person",
    ),
    (
        "SELECT a.name FROM person a JOIN pet b ON a.id = b.owner",
        "SELECT a.name FROM person a LEFT JOIN pet b ON a.id = b.owner",
    ),
    (
        "SELECT a.name FROM person a LEFT JOIN pet b ON a.id = b.owner AND b.kind = 'cat'",
        "SELECT a.name FROM person a LEFT JOIN pet b ON a.id = b.owner WHERE b.kind = 'cat'",
    ),
    (
        "SELECT name FROM person WHERE age = 1 OR (id = 2 AND name = 'x')",
        "SELECT name FROM person WHERE (age = 1 OR id = 2) AND name = 'x'",
    ),
    ("SELECT name FROM person WHERE age - (id - 1) > 0", "SELECT name FROM person WHERE (age - id) - 1 > 0"),
    (
        "SELECT name FROM person WHERE NOT (age = 1 AND id = 2)",
        "SELECT name FROM person WHERE NOT age = 1 AND id = 2",
    ),
    (
        "SELECT a.name FROM person a WHERE a.age > (SELECT avg(b.age) FROM person b WHERE b.name = a.name)",
        "SELECT a.name FROM person a WHERE a.age > (SELECT avg(b.age) FROM person b WHERE b.name = b.name)",
    ),
    (
        "SELECT a.name FROM person a, person b WHERE a.id < b.age",
        "SELECT b.name FROM person a, person b WHERE a.id < b.age",
    ),
]


@pytest.mark.parametrize(("a", "b"), SAME)
def test_spelling_does_not_matter(a, b):
    assert key(a) == key(b)


@pytest.mark.parametrize(("a", "b"), DIFFERENT)
def test_meaning_does(a, b):
    assert key(a) != key(b)


@pytest.mark.parametrize("sql", sorted({sql for pair in SAME + DIFFERENT for sql in pair}))
def test_the_canonical_form_is_its_own(sql):
    assert key(key(sql)) == key(sql)


def test_skeletons():
    a = canonicalize("SELECT name FROM person WHERE age > 3", TOWN)
    b = canonicalize("SELECT name FROM person WHERE age > 44", TOWN)
    c = canonicalize("SELECT kind FROM pet WHERE owner > 44", TOWN)
    assert a.sql != b.sql
    assert a.masked == b.masked != c.masked
    assert a.skeleton == b.skeleton == c.skeleton


def test_a_quoted_name_that_names_a_column_stays_one():
    fixed = repair_quotes(parse('SELECT "name" FROM person WHERE "age" > 1 AND name = "age x"'), TOWN)
    assert fixed.sql(dialect="sqlite") == 'SELECT "name" FROM person WHERE "age" > 1 AND name = \'age x\''


def test_what_cannot_be_resolved_is_keyed_as_it_is():
    found = canonicalize("SELECT p.nme FROM person p", TOWN)
    assert not found.qualified
    assert "nme" in (found.note or "")
    assert canonicalize("SELECT a FROM t").note == "no schema"


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("", "no query"),
        ("SELECT 1; SELECT 2", "2 statements"),
        ("DROP TABLE x", "not a query"),
        ("SELEC x FRM y", ""),
        ("SELECT (", ""),
        ("SELECT 'unclosed", ""),
    ],
)
def test_what_is_no_query_is_told_in_one_line(sql, said):
    with pytest.raises(SqlParseError) as caught:
        parse(sql)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT " + "(" * 3000 + "1" + ")" * 3000,
        "SELECT * FROM " + "(SELECT * FROM " * 3000 + "t" + ")" * 3000,
        "SELECT 1 FROM t WHERE " + " AND ".join(["a = 1"] * 1000),
        "SELECT 1 FROM t " + "JOIN t ON 1 = 1 " * 1000,
        "SELECT " + "NOT " * 3000 + "1",
        "SELECT '" + "x" * 1_000_000 + "'",
    ],
    ids=lambda sql: sql[:24],
)
def test_endless_sql_is_refused_and_takes_nothing_with_it(sql):
    with pytest.raises(SqlParseError):
        canonicalize(sql, TOWN)
    assert outermost_order(sql) is False


def test_only_the_outermost_order_counts():
    assert outermost_order("SELECT a FROM t ORDER BY a")
    assert outermost_order("SELECT a FROM t UNION SELECT b FROM u ORDER BY 1")
    assert not outermost_order("SELECT a FROM (SELECT a FROM t ORDER BY a LIMIT 3)")
    assert not outermost_order("SELECT rank() OVER (ORDER BY a) FROM t")
    assert not outermost_order("not sql at all (")


def mutants(sql: str) -> set[str]:
    made = {
        re.sub(r"<(?![>=])", ">", sql, count=1),
        re.sub(r"(?<![<])>(?!=)", "<", sql, count=1),
        re.sub(r"(?i)\bdistinct\b", "", sql, count=1),
        re.sub(r"(?i)\bmax\(", "min(", sql, count=1),
        re.sub(r"(?i)\bavg\(", "sum(", sql, count=1),
        re.sub(r"(?i)\bdesc\b", "ASC", sql, count=1),
        re.sub(r"(?i)\bintersect\b", "EXCEPT", sql, count=1),
        re.sub(r"\b(\d+)\b", lambda m: str(int(m.group(1)) + 1), sql, count=1),
        re.sub(r"(?i)\bAND\b", "OR", sql, count=1) if "BETWEEN" not in sql.upper() else sql,
    }
    return made - {sql}


def outcome(connection, sql: str) -> str | None:
    """The result as a multiset, or None where it fails."""
    try:
        return repr(sorted(map(repr, connection.execute(sql).fetchall())))
    except sqlite3.Error:
        return None


@pytest.mark.slow
def test_spider_golds_and_mutants_of_one_form_have_one_result(nl2sql_data):
    spider = nl2sql_data / "spider"
    by_database = defaultdict(list)
    for row in json.loads((spider / "train.json").read_text(encoding="utf-8")):
        by_database[row["db_id"]].append(row["query"])
    qualified = total = merged = 0
    for db_id, golds in sorted(by_database.items()):
        path = spider / "database" / db_id / f"{db_id}.sqlite"
        schema = read_sqlite(path, db_id)
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        connection.text_factory = bytes
        groups = defaultdict(set)
        for sql in sorted(set(golds)):
            found = canonicalize(sql, schema)
            total += golds.count(sql)
            qualified += golds.count(sql) * found.qualified
            groups[found.sql].add(sql)
            for mutant in mutants(sql):
                try:
                    groups[canonicalize(mutant, schema).sql].add(mutant)
                except SqlParseError:
                    continue
        for members in groups.values():
            if len(members) > 1:
                merged += 1
                assert len({outcome(connection, sql) for sql in members}) == 1, members
        connection.close()
    assert (qualified, total) == (6789, 6790)
    assert merged > 5

import json
import random
import re
import sqlite3
from collections import defaultdict
from dataclasses import replace

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
SAME += [
    ("SELECT name FROM person WHERE name NOT LIKE 'a%'", "SELECT name FROM person WHERE NOT name LIKE 'a%'"),
    ("SELECT a.name FROM person a JOIN pet", "SELECT person.name FROM person, pet"),
    ("SELECT a.* FROM person a, pet b", "SELECT x.* FROM person x CROSS JOIN pet"),
    ("SELECT CAST(age AS FLOAT) FROM person", "SELECT cast(age as real) FROM person"),
    (
        "SELECT name FROM person p WHERE EXISTS (SELECT 1 FROM pet WHERE owner = p.id)"
        " AND age IN (SELECT id FROM pet)",
        "SELECT name FROM person p WHERE age IN (SELECT id FROM pet)"
        " AND EXISTS (SELECT 1 FROM pet WHERE p.id = owner)",
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


DIFFERENT += [
    ("SELECT a.* FROM person a, pet b", "SELECT a.* FROM person b, pet a"),
    ("SELECT CAST(age AS NUMERIC) FROM person", "SELECT CAST(age AS REAL) FROM person"),
    ("SELECT CAST(age AS BOOLEAN) FROM person", "SELECT CAST(age AS INTEGER) FROM person"),
    ("SELECT CAST(name AS DATE) FROM person", "SELECT date(name) FROM person"),
    (
        "SELECT name FROM person WHERE id IN (SELECT owner FROM pet)",
        "SELECT name FROM person WHERE id IN ((SELECT owner FROM pet))",
    ),
    ("SELECT 'rowid' FROM person", 'SELECT "name" FROM person'),
]

# Pairs that the schema cannot resolve, or that sqlglot reads otherwise than SQLite.
DIFFERENT_UNRESOLVED = [
    ("SELECT * FROM person JOIN pet USING (id)", "SELECT * FROM person JOIN pet ON person.id = pet.id"),
    ("SELECT name FROM person WHERE +name = 1", "SELECT name FROM person WHERE name = 1"),
    ("SELECT CAST(age AS STRING) FROM person", "SELECT CAST(age AS TEXT) FROM person"),
    ("SELECT mod(age, 2) FROM person", "SELECT age % 2 FROM person"),
    ('SELECT name FROM person WHERE name = "Kind"', 'SELECT name FROM person WHERE name = "kind"'),
    (
        "SELECT name AS age FROM person ORDER BY age || 'x'",
        "SELECT name FROM person ORDER BY name || 'x'",
    ),
    ("SELECT *, age FROM person ORDER BY 2", "SELECT *, age FROM person ORDER BY age"),
    ("SELECT age, 1 AS n FROM person ORDER BY n", "SELECT age, 1 FROM person ORDER BY 1"),
    (
        "SELECT name FROM person WHERE 1 = age BETWEEN 0 AND 2",
        "SELECT name FROM person WHERE 1 = (age BETWEEN 0 AND 2)",
    ),
]


@pytest.mark.parametrize(("a", "b"), DIFFERENT_UNRESOLVED)
def test_what_is_not_sure_is_not_merged(a, b):
    assert canonicalize(a, TOWN).sql != canonicalize(b, TOWN).sql


def test_without_a_schema_a_quoted_name_stays_as_it_is():
    quoted = ['SELECT "name" FROM person', "SELECT 'name' FROM person", 'SELECT "Name" FROM person']
    assert len({canonicalize(sql).sql for sql in quoted}) == 3


def test_a_comparison_of_columns_is_not_turned_where_they_declare_collations():
    a, b = "SELECT * FROM person WHERE name = age", "SELECT * FROM person WHERE age = name"
    assert key(a) == key(b)
    collated = replace(TOWN, collated=True)
    assert canonicalize(a, collated).sql != canonicalize(b, collated).sql


def test_masks_do_not_depend_on_what_they_mask():
    a = canonicalize("SELECT name FROM person WHERE age = 1 OR age > 50", TOWN)
    b = canonicalize("SELECT name FROM person WHERE age > 2 OR age = 90", TOWN)
    assert a.masked == b.masked
    assert a.skeleton == b.skeleton


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
        "SELECT 1 FROM t" + " JOIN t" * 300,
        "SELECT 1 FROM t" + " LEFT JOIN t AS x" * 300,
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


def rows(connection, sql: str) -> list[tuple]:
    return sorted(connection.execute(sql).fetchall(), key=repr)


@pytest.mark.slow
def test_the_canonical_form_of_a_spider_gold_has_its_result(nl2sql_data):
    spider = nl2sql_data / "spider"
    pairs = {
        (r["db_id"], r["query"]) for r in json.loads((spider / "train.json").read_text(encoding="utf-8"))
    }
    opened, compared = {}, 0
    for db_id, sql in sorted(pairs):
        if db_id not in opened:
            path = spider / "database" / db_id / f"{db_id}.sqlite"
            connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
            connection.text_factory = bytes
            opened[db_id] = (read_sqlite(path, db_id), connection)
        schema, connection = opened[db_id]
        try:
            expected = rows(connection, sql)
        except sqlite3.Error:
            continue
        assert rows(connection, canonicalize(sql, schema).sql) == expected, sql
        compared += 1
    assert compared > 3800


class Grammar:
    """Random queries over TOWN's tables, with names that clash and values that compare across types."""

    tables = {"person": ("id", "name", "age"), "pet": ("id", "owner", "kind")}  # noqa: RUF012

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)

    def one(self, *choices: str) -> str:
        return self.draw.choice(choices)

    def column(self, scope: list[tuple[str, str]]) -> str:
        alias, table = self.draw.choice(scope)
        name = self.draw.choice(self.tables[table])
        clear = sum(name in self.tables[t] for _, t in scope) == 1
        return name.upper() if clear and self.draw.random() < 0.5 else f"{alias}.{name}"

    def value(self, scope: list[tuple[str, str]], depth: int) -> str:
        kind = self.draw.random()
        if depth <= 0 or kind < 0.4:
            return self.column(scope)
        if kind < 0.6:
            return self.one("1", "2.0", "'1'", "'cat'", '"cat"', "NULL", "-1", "TRUE")
        if kind < 0.75:
            operator = self.one("+", "-", "*", "/", "%", "||", "&", "<<")
            return f"{self.value(scope, depth - 1)} {operator} {self.value(scope, depth - 1)}"
        if kind < 0.85:
            return f"({self.value(scope, depth - 1)})"
        call = self.one(
            "CAST({} AS REAL)", "CAST({} AS DATE)", "substr({}, 1, 1)", "ifnull({}, 5)", "-{}", "+{}"
        )
        return call.format(self.value(scope, depth - 1))

    def condition(self, scope: list[tuple[str, str]], depth: int) -> str:
        kind = self.draw.random()
        left = self.value(scope, depth - 1)
        negated = self.one("", "NOT ")
        if depth <= 0 or kind < 0.4:
            operator = self.one("=", "<>", "!=", "<", ">", "<=", ">=", "IS", "IS NOT")
            return f"{left} {operator} {self.value(scope, depth - 1)}"
        if kind < 0.6:
            connector = self.one("AND", "OR")
            return f"{self.condition(scope, depth - 1)} {connector} {self.condition(scope, depth - 1)}"
        if kind < 0.7:
            return f"{negated}({self.condition(scope, depth - 1)})"
        if kind < 0.8:
            return f"{left} {negated}LIKE 'c%'"
        if kind < 0.9:
            return f"{left} {negated}IN (2, '1', {self.value(scope, 0)})"
        return f"{left} {negated}IN ({self.query(depth - 1, scope, outputs=1)})"

    def query(self, depth: int, outer: list[tuple[str, str]] | None = None, outputs: int = 0) -> str:
        own, sources = [], ""
        for alias in ("a", "b")[: self.draw.choice((1, 1, 2))]:
            alias = alias if outer is None else self.one(alias, f"{alias}{depth}")
            table = self.one(*self.tables)
            joined = self.one(", ", " JOIN ", " INNER JOIN ", " LEFT JOIN ") if sources else ""
            sources += f"{joined}{table} {alias}"
            own.append((alias, table))
            if "JOIN" in joined:
                sources += f" ON {self.condition(own, 1)}"
        scope = own + [s for s in outer or [] if s[0] not in {alias for alias, _ in own}]
        chosen = [self.value(scope, depth - 1) for _ in range(outputs or self.draw.choice((1, 2, 3)))]
        named = [
            f"{e} AS {self.one('n', 'm', 'age', 'kind')}" if self.draw.random() < 0.4 else e for e in chosen
        ]
        if not outputs and self.draw.random() < 0.1:
            named.append(self.one("*", f"{own[0][0]}.*"))
        sql = f"SELECT {self.one('', 'DISTINCT ')}{', '.join(named)} FROM {sources}"
        if self.draw.random() < 0.6:
            sql += f" WHERE {self.condition(scope, depth)}"
        if self.draw.random() < 0.4:
            sql += f" ORDER BY {self.one('1', '2', 'n', 'age', 'kind', self.column(own))}"
            sql += self.one("", " DESC", " ASC")
        return sql


def test_the_canonical_form_of_a_random_query_has_its_result():
    connection = sqlite3.connect(":memory:")
    connection.executescript(
        "CREATE TABLE person (id INTEGER PRIMARY KEY, name TEXT, age INTEGER);"
        "CREATE TABLE pet (id INTEGER PRIMARY KEY, owner INTEGER, kind TEXT);"
        "INSERT INTO person VALUES (1, 'cat', 1), (2, '1', 2), (3, NULL, NULL), (4, 'Cat', 2);"
        "INSERT INTO pet VALUES (1, 1, 'cat'), (2, 1, '1'), (3, NULL, 'dog'), (5, 2, NULL);"
    )
    grammar, qualified, compared = Grammar(0), 0, 0
    for _ in range(1200):
        sql = grammar.query(3)
        try:
            expected = rows(connection, sql)
        except sqlite3.Error:  # an ambiguous name, a position out of range
            continue
        found = canonicalize(sql, TOWN)
        assert rows(connection, found.sql) == expected, (sql, found)
        compared += 1
        qualified += found.qualified
    assert compared > 800
    assert qualified > compared / 2

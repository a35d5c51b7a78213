import sqlite3

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.sql.mutate import KINDS, mutants
from curate.sql.schema import read_sqlite
from tests.conftest import make_database


@pytest.fixture
def schema(database):
    return read_sqlite(database, "town")


WANTED = [
    ("SELECT name FROM person WHERE age > 30", "comparison", "SELECT name FROM person WHERE age >= 30"),
    ("SELECT name FROM person WHERE age > 30", "literal", "SELECT name FROM person WHERE age > 31"),
    ("SELECT name FROM person WHERE age > 30", "condition", "SELECT name FROM person"),
    ("SELECT name FROM person WHERE age > 30 AND id < 4", "connective", "(age > 30 OR id < 4)"),
    (
        "SELECT name FROM person WHERE age > 30 AND id < 4",
        "condition",
        "SELECT name FROM person WHERE id < 4",
    ),
    ("SELECT max(age) FROM person", "aggregate", "SELECT MIN(age) FROM person"),
    ("SELECT count(kind) FROM pet", "aggregate", "SELECT COUNT(DISTINCT kind) FROM pet"),
    ("SELECT DISTINCT kind FROM pet", "distinct", "SELECT kind FROM pet"),
    ("SELECT kind FROM pet", "distinct", "SELECT DISTINCT kind FROM pet"),
    ("SELECT age FROM person", "column", "SELECT id FROM person"),
    ("SELECT p.name FROM person p JOIN pet t ON t.owner = p.id", "join", "LEFT JOIN pet"),
    ("SELECT name FROM person ORDER BY age LIMIT 1", "limit", "SELECT name FROM person ORDER BY age LIMIT 2"),
    ("SELECT name FROM person ORDER BY age LIMIT 1", "order", "ORDER BY age DESC"),
    ("SELECT kind, count(*) FROM pet GROUP BY kind", "group", "SELECT kind, COUNT(*) FROM pet"),
    ("SELECT id FROM person EXCEPT SELECT owner FROM pet", "set_operation", "SELECT owner FROM pet EXCEPT"),
    (
        "SELECT name FROM person WHERE name LIKE '%n%'",
        "literal",
        "SELECT name FROM person WHERE name LIKE 'n%'",
    ),
    ("SELECT name FROM person WHERE id IN (SELECT owner FROM pet)", "negation", "NOT id IN"),
    ("SELECT name FROM person WHERE NOT age = 3", "negation", "SELECT name FROM person WHERE age = 3"),
]


@pytest.mark.parametrize(("sql", "kind", "part"), WANTED)
def test_the_near_miss_is_made(schema, sql, kind, part):
    found = [m.sql for m in mutants(sql, schema) if m.kind == kind]
    assert any(part in text for text in found), found


def test_every_kind_has_an_example():
    assert {kind for _, kind, _ in WANTED} == set(KINDS)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id FROM person INTERSECT SELECT owner FROM pet",
        "SELECT count(*) FROM pet",
        "SELECT name FROM person WHERE id IN (SELECT owner FROM pet)",
    ],
)
def test_distinct_is_not_set_where_it_changes_nothing(schema, sql):
    inner = [m.sql for m in mutants(sql, schema) if m.kind == "distinct"]
    assert not [t for t in inner if "SELECT DISTINCT owner" in t or "SELECT DISTINCT COUNT" in t]


def test_what_cannot_be_parsed_has_no_mutants(schema):
    assert mutants("SELECT FROM WHERE", schema) == []


PARTS = st.tuples(
    st.sampled_from(["name", "age", "count(*)", "max(age)", "DISTINCT age", "id, name"]),
    st.sampled_from(["person", "person JOIN pet ON pet.owner = person.id"]),
    st.sampled_from(["", " WHERE age > 26", " WHERE age BETWEEN 20 AND 40 OR name = 'Ann'"]),
    st.sampled_from(["", " ORDER BY age", " ORDER BY age DESC LIMIT 2", " GROUP BY age HAVING count(*) > 1"]),
).map(lambda p: f"SELECT {p[0]} FROM {p[1]}{p[2]}{p[3]}".replace("id, name", "person.id, name"))


@settings(max_examples=60, deadline=None)
@given(PARTS)
def test_mutants_run_and_differ_from_the_query_and_each_other(tmp_path_factory, sql):
    path = tmp_path_factory.getbasetemp() / "mutate" / "town.sqlite"
    if not path.exists():
        make_database(path)
    schema = read_sqlite(path, "town")
    found = mutants(sql, schema)
    texts = [m.sql for m in found]
    assert len(set(texts)) == len(texts)
    assert sql not in texts
    assert found == mutants(sql, schema)
    connection = sqlite3.connect(path)
    for text in texts:
        connection.execute(text).fetchall()
    connection.close()

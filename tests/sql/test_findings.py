from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.sql.findings import CHECKS, examine, foreign_dialect
from curate.sql.schema import Column, ForeignKey, Schema, Table

SHOP = Schema(
    "shop",
    (
        Table(
            "customer",
            (
                Column("id", "INTEGER", True),
                Column("name", "TEXT"),
                Column("city", "VARCHAR(20)"),
                Column("credit", "REAL"),
            ),
        ),
        Table(
            "orders",
            (
                Column("id", "INTEGER", True),
                Column("customer_id", "INTEGER"),
                Column("item_id", "INTEGER"),
                Column("amount", "INTEGER"),
            ),
        ),
        Table("item", (Column("id", "INTEGER", True), Column("title", "TEXT"), Column("price", "REAL"))),
    ),
    (
        ForeignKey("orders", ("customer_id",), "customer", ("id",)),
        ForeignKey("orders", ("item_id",), "item", ("id",)),
    ),
)

FIRES = {
    "unparsable": ["SELECT FROM WHERE", "DELETE FROM customer", ""],
    "unknown_table": [
        "SELECT name FROM customers",
        "SELECT x.name FROM customer AS c",
        "SELECT id FROM item WHERE id IN (SELECT item_id FROM order_line)",
    ],
    "unknown_column": [
        "SELECT nam FROM customer",
        "SELECT c.title FROM customer AS c",
        "SELECT name FROM customer WHERE id IN (SELECT buyer FROM orders)",
    ],
    "quoted_name_is_text": [
        'SELECT "nmae" FROM customer',
        "SELECT name FROM customer WHERE \"ctiy\" = 'Oslo'",
        'SELECT count(*) FROM customer GROUP BY "cty"',
    ],
    "constant_query": ["SELECT 1", "SELECT 'a', 2 FROM customer"],
    "constant_condition": [
        "SELECT name FROM customer WHERE 1 = 1",
        "SELECT name FROM customer WHERE id = id",
    ],
    "whole_table": ["SELECT * FROM customer", "SELECT id, title, price FROM item ORDER BY price"],
    "nondeterministic": [
        "SELECT name FROM customer ORDER BY random() LIMIT 1",
        "SELECT count(*) FROM orders WHERE date('now') > '2020-01-01'",
        "SELECT CURRENT_TIMESTAMP FROM item",
    ],
    "limit_without_order": [
        "SELECT name FROM customer LIMIT 1",
        "SELECT name FROM customer WHERE id = (SELECT customer_id FROM orders LIMIT 1)",
    ],
    "type_mismatch": [
        "SELECT name FROM customer WHERE city > 5",
        "SELECT title FROM item WHERE price = 'cheap'",
        "SELECT name FROM customer JOIN orders ON customer.city = orders.customer_id",
        "SELECT title FROM item WHERE price BETWEEN 'low' AND 'high'",
    ],
    "unused_join": [
        "SELECT c.name FROM customer c JOIN orders o ON o.customer_id = c.id",
        "SELECT o.amount FROM orders o JOIN customer c ON o.customer_id = c.id WHERE o.amount > 3",
    ],
    "cartesian_join": [
        "SELECT c.name, i.title FROM customer c, item i",
        "SELECT c.name, i.title FROM customer c JOIN orders o ON o.customer_id = c.id JOIN item i ON i.id = i.id",
    ],
    "bare_column": [
        "SELECT name, count(*) FROM customer GROUP BY city",
        "SELECT name, avg(credit) FROM customer",
        "SELECT c.name FROM orders o JOIN customer c ON o.customer_id = c.id GROUP BY o.item_id",
    ],
    "fan_out": [
        "SELECT sum(c.credit) FROM customer c JOIN orders o ON o.customer_id = c.id WHERE o.amount > 2",
        "SELECT avg(price) FROM item JOIN orders ON item.id = orders.item_id",
    ],
}

SOUND = [
    "SELECT name FROM customer",
    'SELECT name FROM customer WHERE city = "Oslo"',
    "SELECT name FROM customer WHERE credit > 3.5 AND city = 5",
    "SELECT count(*) FROM orders",
    "SELECT city, count(*) FROM customer GROUP BY city",
    "SELECT city AS c, count(*) FROM customer GROUP BY c",
    "SELECT city, count(*) FROM customer GROUP BY 1",
    "SELECT name, max(credit) FROM customer",  # SQLite: the row of the maximum
    "SELECT c.name, sum(o.amount) FROM customer c JOIN orders o ON o.customer_id = c.id GROUP BY c.id",
    "SELECT c.name, sum(o.amount) FROM customer c JOIN orders o ON o.customer_id = c.id GROUP BY o.customer_id",
    "SELECT c.name, i.title FROM customer c JOIN orders o ON o.customer_id = c.id JOIN item i ON o.item_id = i.id",
    "SELECT c.name, count(*) FROM customer c JOIN orders o ON o.customer_id = c.id GROUP BY c.name",
    "SELECT a.name FROM customer a, customer b WHERE a.city = b.city AND b.name = 'Ann'",
    "SELECT name FROM customer ORDER BY credit LIMIT 3",
    "SELECT max(city, name) FROM customer WHERE id < 3",
    "SELECT name FROM customer WHERE EXISTS (SELECT 1 FROM orders WHERE customer_id = customer.id)",
    "WITH big AS (SELECT customer_id AS who FROM orders WHERE amount > 5) SELECT who FROM big",
    "SELECT t.n FROM (SELECT name AS n FROM customer) AS t",
    "SELECT name FROM customer LEFT JOIN orders ON orders.customer_id = customer.id",
    "SELECT avg(o.amount) FROM customer c JOIN orders o ON o.customer_id = c.id WHERE c.city = 'Oslo'",
    "SELECT rowid FROM item",
]


def fires() -> Iterator[tuple[str, str]]:
    yield from ((check, sql) for check, sqls in FIRES.items() for sql in sqls)


@pytest.mark.parametrize(("check", "sql"), fires())
def test_a_check_fires_with_evidence(check, sql):
    found = {f.check: f.evidence for f in examine(sql, SHOP)}
    assert check in found
    assert found[check]


def test_every_check_has_an_example():
    assert FIRES.keys() == CHECKS.keys()


@pytest.mark.parametrize("sql", SOUND)
def test_sound_sql_has_no_finding(sql):
    assert examine(sql, SHOP) == []


def test_the_nearest_name_is_told():
    (found,) = examine("SELECT nam FROM customer", SHOP)
    assert found.evidence == "no column nam in any table of the query; the nearest is name"
    (found,) = examine("SELECT c.title FROM customer c", SHOP)
    assert found.evidence == "no column title in customer; item has it"


@pytest.mark.parametrize(
    ("sql", "error", "dialect"),
    [
        ("SELECT TOP 5 name FROM t", 'near "5": syntax error', "tsql"),
        ("SELECT getdate()", "no such function: getdate", "tsql"),
        ("SELECT date_trunc('day', d) FROM t", "no such function: date_trunc", "postgres"),
        ("SELECT zap(d) FROM t", "no such function: zap", None),
        ("SELECT name FROM t", "no such table: t", None),
        ("SELECT name FROM WHERE", 'near "WHERE": syntax error', None),
    ],
)
def test_another_dialect_is_recognised(sql, error, dialect):
    assert foreign_dialect(sql, error) == dialect


WORDS = [
    "SELECT",
    "FROM",
    "WHERE",
    "customer",
    "orders",
    "name",
    "c",
    ".",
    ",",
    "(",
    ")",
    "*",
    "=",
    "'x'",
    "1",
]
WORDS += [
    "JOIN",
    "ON",
    "GROUP BY",
    "ORDER BY",
    "LIMIT",
    "count(*)",
    "UNION",
    "AS",
    '"city"',
    "IN",
    "NOT",
    "id",
    "WITH",
]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=16).map(" ".join) | st.text(max_size=60))
def test_no_text_makes_it_raise(sql):
    found = examine(sql, SHOP)
    assert {f.check for f in found} <= CHECKS.keys()

import os
import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.sql.schema import (
    SchemaError,
    find_database,
    read_spider_tables,
    read_sqlite,
    render,
    render_prompt,
    safe_name,
)


@pytest.fixture
def odd(tmp_path):
    path = tmp_path / "odd.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(
        'CREATE TABLE "Order Item" ("Order Id" INTEGER, line INTEGER, note TEXT, '
        'PRIMARY KEY ("Order Id", line), FOREIGN KEY ("Order Id") REFERENCES orders);'
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, total REAL, data BLOB);"
        "CREATE VIEW big AS SELECT id FROM orders WHERE total > 10;"
        "INSERT INTO orders VALUES (1, 2.5, x'00ff'), (2, 20, NULL);"
    )
    connection.close()
    return path


def test_tables_views_and_keys(odd):
    schema = read_sqlite(odd, "odd")
    assert [t.name for t in schema.tables] == ["Order Item", "orders", "big"]
    assert [c.name for c in schema.tables[0].columns if c.primary_key] == ["Order Id", "line"]
    (key,) = schema.foreign_keys
    assert (key.table, key.columns, key.ref_table, key.ref_columns) == (
        "Order Item",
        ("Order Id",),
        "orders",
        ("id",),
    )
    assert schema.has_column("ORDER ID")
    assert schema.has_table("big")
    assert not schema.has_column("nope")
    assert schema.mapping()["orders"] == {"id": "INTEGER", "total": "REAL", "data": "BLOB"}


def test_samples_are_a_few_values(odd):
    orders = read_sqlite(odd, samples=1).tables[1]
    assert [c.samples for c in orders.columns] == [("1",), ("2.5",), ("<2 bytes>",)]


def test_the_ddl_rendering_is_sql_that_makes_the_same_schema(odd, tmp_path):
    schema = read_sqlite(odd, "odd", samples=2)
    again = tmp_path / "again.sqlite"
    connection = sqlite3.connect(again)
    connection.executescript(render(schema, "ddl"))
    connection.close()
    made = read_sqlite(again, "odd")
    assert [(t.name, [c.name for c in t.columns]) for t in made.tables] == [
        (t.name, [c.name for c in t.columns]) for t in schema.tables
    ]
    assert made.foreign_keys == schema.foreign_keys


def test_the_compact_rendering(database):
    assert render(read_sqlite(database), "compact") == (
        "person(id int*, name text, age int)\npet(id int*, owner int, kind text)\npet.owner=person.id"
    )


def test_the_prompt_ends_without_a_space(database):
    prompt = render_prompt(" Who? ", "t(a)", evidence="hint")
    assert prompt == "t(a)\nHint: hint\nQuestion: Who?\nSQL:"
    assert render_prompt("Who?", "t(a)") == "t(a)\nQuestion: Who?\nSQL:"


def test_errors_name_the_file(tmp_path):
    with pytest.raises(SchemaError, match=r"absent\.sqlite: no such"):
        read_sqlite(tmp_path / "absent.sqlite")
    bad = tmp_path / "bad.sqlite"
    bad.write_bytes(b"no database at all, just text" * 50)
    with pytest.raises(SchemaError, match=r"bad\.sqlite"):
        read_sqlite(bad)
    tables = tmp_path / "tables.json"
    tables.write_text('[{"db_id": "x"}]')
    with pytest.raises(SchemaError, match=r"tables\.json: entry 0"):
        read_spider_tables(tables)


@given(st.text(min_size=1, max_size=12))
def test_a_safe_name_is_one_file_name_and_tells_ids_apart(db_id):
    name = safe_name(db_id)
    assert "/" not in name
    assert "\0" not in name
    assert name not in ("", ".", "..")
    assert safe_name(name) != name or "%" not in name


def test_databases_are_found_and_never_outside_the_root(tmp_path):
    root = tmp_path / "root"
    for path in (
        "a/a.sqlite",
        "b/other.db",
        "c.sqlite",
        "two/x.db",
        "two/y.db",
        "new\nline/new\nline.sqlite",
    ):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"")
    (tmp_path / "secret.sqlite").write_bytes(b"")
    assert find_database(root, "a") == root / "a" / "a.sqlite"
    assert find_database(root, "b") == root / "b" / "other.db"
    assert find_database(root, "c") == root / "c.sqlite"
    assert find_database(root, "new\nline") == root / "new\nline" / "new\nline.sqlite"
    for db_id in ("two", "../secret", "..", ".", "", "x" * 5000, "a/../../secret", "nul\0"):
        assert find_database(root, db_id) is None


def test_spider_tables_agree_with_the_databases(nl2sql_data):
    spider = nl2sql_data / "spider"
    schemas = read_spider_tables(spider / "tables.json")
    assert len(schemas) == 147
    for db_id in sorted(schemas)[:20]:
        path = spider / "database" / db_id / f"{db_id}.sqlite"
        if os.path.exists(path):
            assert {t.name.lower() for t in schemas[db_id].tables} >= {
                t.name.lower() for t in read_sqlite(path).tables
            }


def test_names_that_are_keywords_are_quoted(tmp_path):
    path = tmp_path / "words.sqlite"
    connection = sqlite3.connect(path)
    connection.execute('CREATE TABLE "order" ("group" INTEGER PRIMARY KEY, "values" "odd, type", plain TEXT)')
    connection.close()
    schema = read_sqlite(path)
    assert render(schema, "compact") == '"order"("group" int*, "values" odd, type, plain text)'
    connection = sqlite3.connect(":memory:")
    connection.executescript(render(schema, "ddl"))
    connection.execute('SELECT "group", plain FROM "order"')
    connection.close()


def test_generated_columns_count_and_a_broken_view_does_not(tmp_path):
    path = tmp_path / "made.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(
        "CREATE TABLE a (x INTEGER, twice INTEGER GENERATED ALWAYS AS (x * 2));"
        "CREATE TABLE b (y INTEGER); CREATE VIEW v AS SELECT y FROM b;"
        "PRAGMA legacy_alter_table = ON; DROP TABLE b;"
    )
    connection.close()
    schema = read_sqlite(path, samples=1)
    assert [(t.name, [c.name for c in t.columns]) for t in schema.tables] == [("a", ["x", "twice"])]


def test_a_key_without_columns_refers_to_the_primary_key_in_its_own_order(tmp_path):
    path = tmp_path / "keys.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(
        "CREATE TABLE a (x INTEGER, y INTEGER, PRIMARY KEY (y, x));"
        "CREATE TABLE b (p INTEGER, q INTEGER, FOREIGN KEY (p, q) REFERENCES a);"
    )
    connection.close()
    (key,) = read_sqlite(path).foreign_keys
    assert (key.columns, key.ref_columns) == (("p", "q"), ("y", "x"))


def test_declared_collations_are_noticed(tmp_path, database):
    path = tmp_path / "collated.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE a (x TEXT COLLATE NOCASE)")
    connection.close()
    assert read_sqlite(path).collated
    assert not read_sqlite(database).collated


def test_the_ddl_of_every_spider_database_is_valid(nl2sql_data):
    for schema in read_spider_tables(nl2sql_data / "spider" / "tables.json").values():
        connection = sqlite3.connect(":memory:")
        connection.executescript(render(schema, "ddl"))
        made = connection.execute("SELECT count(*) FROM sqlite_master WHERE type = 'table'").fetchone()[0]
        connection.close()
        assert made == len(schema.tables), schema.db_id

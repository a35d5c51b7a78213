"""A corpus of hostile SQL: nothing is read or written outside, nothing hangs, no neighbour's answer is lost."""

import os
import random
import re
import sqlite3
import time
from collections import Counter
from pathlib import Path

import pytest

from curate.sql.sandbox import Limits, Pair, Query, Sandbox
from tests.conftest import make_database

DENIED, ERROR, TIMEOUT, ROWS, OK = "denied", "error", "timeout", "too_many_rows", "ok"
CROSS = ", ".join(f"person p{i}" for i in range(30))
COUNT = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c{}) "
LONG = "replace(hex(zeroblob({})), '0', 'a')"

# Each group: the statuses that are right, and the queries.
CORPUS: dict[str, tuple[set[str], list[str]]] = {
    "attach": (
        {DENIED, ERROR},
        [
            "ATTACH DATABASE '{outside}' AS o",
            "ATTACH '{outside}' AS o",
            "attach database ':memory:' as m",
            "ATTACH DATABASE '' AS t",
            "ATTACH 'file:{outside}?mode=rwc' AS o",
            "DETACH DATABASE main",
            "DETACH o",
            "ATTACH DATABASE (SELECT '{outside}') AS o",
            "SELECT 1; ATTACH '{outside}' AS o",
        ],
    ),
    "writes": (
        {DENIED, ERROR},
        [
            "INSERT INTO person VALUES (9, 'x', 1)",
            "INSERT INTO person SELECT * FROM person",
            "INSERT OR REPLACE INTO person VALUES (1, 'x', 1)",
            "REPLACE INTO person VALUES (1, 'x', 1)",
            "INSERT INTO person DEFAULT VALUES",
            "INSERT INTO person VALUES (9, 'x', 1) RETURNING id",
            "WITH x AS (SELECT 1) INSERT INTO person SELECT 9, 'x', 1 FROM x",
            "UPDATE person SET age = 0",
            "UPDATE person SET age = 0 RETURNING *",
            "WITH x AS (SELECT 1) UPDATE person SET age = 0",
            "DELETE FROM person",
            "DELETE FROM person RETURNING *",
            "DELETE FROM sqlite_master",
            "UPDATE sqlite_master SET sql = ''",
            "INSERT INTO sqlite_sequence VALUES ('person', 1)",
        ],
    ),
    "schema changes": (
        {DENIED, ERROR},
        [
            "CREATE TABLE x (y)",
            "CREATE TABLE x AS SELECT * FROM person",
            "CREATE TEMP TABLE x (y)",
            "CREATE TEMPORARY VIEW x AS SELECT 1",
            "CREATE VIEW x AS SELECT 1",
            "CREATE INDEX x ON person (age)",
            "CREATE UNIQUE INDEX IF NOT EXISTS x ON person (age)",
            "CREATE TRIGGER x AFTER INSERT ON person BEGIN SELECT 1; END",
            "CREATE VIRTUAL TABLE x USING fts5(y)",
            "CREATE VIRTUAL TABLE x USING fts3(y)",
            "CREATE VIRTUAL TABLE x USING csv(filename='{outside}')",
            "CREATE VIRTUAL TABLE temp.x USING dbstat",
            "DROP TABLE person",
            "DROP TABLE IF EXISTS person",
            "DROP VIEW x",
            "DROP INDEX x",
            "ALTER TABLE person RENAME TO people",
            "ALTER TABLE person ADD COLUMN x",
            "ALTER TABLE person DROP COLUMN age",
            "REINDEX",
            "ANALYZE",
            "ANALYZE person",
            "VACUUM",
            "VACUUM INTO '{outside}'",
            "VACUUM main INTO '{outside}'",
        ],
    ),
    "transactions": (
        {DENIED},
        [
            "BEGIN",
            "BEGIN IMMEDIATE",
            "BEGIN EXCLUSIVE",
            "COMMIT",
            "END",
            "ROLLBACK",
            "SAVEPOINT s",
            "RELEASE s",
        ],
    ),
    "pragmas": (
        {DENIED, ERROR},
        [
            "PRAGMA journal_mode = WAL",
            "PRAGMA journal_mode",
            "PRAGMA query_only = 0",
            "PRAGMA writable_schema = ON",
            "PRAGMA temp_store_directory = '/tmp'",
            "PRAGMA data_store_directory = '/tmp'",
            "PRAGMA database_list",
            "PRAGMA table_info(person)",
            "PRAGMA main.table_info(person)",
            "PRAGMA user_version = 7",
            "PRAGMA user_version",
            "PRAGMA mmap_size = 1000000000",
            "PRAGMA cache_size = 1000000",
            "PRAGMA wal_checkpoint(TRUNCATE)",
            "PRAGMA incremental_vacuum",
            "PRAGMA optimize",
            "PRAGMA key = 'x'",
            "PRAGMA trusted_schema = 1",
            "PRAGMA reverse_unordered_selects = 1",
            "PRAGMA soft_heap_limit = 0",
            "PRAGMA hard_heap_limit = 0",
            "PRAGMA locking_mode = EXCLUSIVE",
            "SELECT * FROM pragma_table_info('person')",
            "SELECT * FROM pragma_database_list",
            "SELECT * FROM pragma_journal_mode('WAL')",
            "SELECT * FROM pragma_user_version",
            "SELECT * FROM pragma_compile_options",
        ],
    ),
    "files": (
        {DENIED, ERROR},
        [
            "SELECT load_extension('{outside}')",
            "SELECT load_extension('{outside}', 'entry')",
            "SELECT readfile('{outside}')",
            "SELECT writefile('{outside}', 'x')",
            "SELECT edit('x', 'touch {outside}')",
            "SELECT * FROM fsdir('/')",
            "SELECT * FROM csv('{outside}')",
            "SELECT * FROM zipfile('{outside}')",
            "SELECT sqlar_uncompress('x', 1)",
            "SELECT fts3_tokenizer('simple')",
            "SELECT fts3_tokenizer('simple', x'0011223344556677')",
            "SELECT fts5(x'00')",
            "SELECT sqlite_log(1, 'x')",
            "SELECT system('touch {outside}')",
            "SELECT shell('touch {outside}')",
            "SELECT eval('DROP TABLE person')",
            "SELECT * FROM '{outside}'",
            "SELECT name FROM person INTO OUTFILE '{outside}'",
            "COPY person TO '{outside}'",
            ".output {outside}",
            ".shell touch {outside}",
            ".read {outside}",
        ],
    ),
    "several statements": (
        {DENIED, ERROR},
        [
            "SELECT 1; SELECT 2",
            "SELECT 1;; SELECT 2",
            "SELECT 1; DROP TABLE person",
            "SELECT 1 /* ; */ ; DELETE FROM person",
            "SELECT 1; -- harmless\nDELETE FROM person",
            "; DROP TABLE person; --",
            "EXPLAIN SELECT 1",
            "EXPLAIN QUERY PLAN SELECT 1",
            "  explain DELETE FROM person",
            "/* x */ " * 5_000 + "EXPLAIN SELECT 1",
            "/* x */ EXPLAIN SELECT 1",
        ],
    ),
    "endless": (
        {TIMEOUT},
        [
            COUNT.format("") + "SELECT count(*) FROM c",
            COUNT.format("") + "SELECT max(x) FROM c",
            COUNT.format("") + "SELECT sum(x) FROM c WHERE x < 0",
            COUNT.format("") + "SELECT x FROM c WHERE x = -1",
            COUNT.format("") + "SELECT 1 WHERE EXISTS (SELECT 1 FROM c WHERE x = -1)",
            COUNT.format("") + "SELECT name FROM person WHERE id IN (SELECT x FROM c WHERE x < 0)",
            COUNT.format(" WHERE x < 1e15") + "SELECT count(*) FROM c",
            f"SELECT count(*) FROM {CROSS}",
            f"SELECT max(p0.age + p29.age) FROM {CROSS}",
            f"SELECT p0.name FROM {CROSS} WHERE p28.age + p29.age + p0.age = -1",
            f"SELECT count(DISTINCT p0.age * p1.age) FROM {CROSS}",
            f"SELECT p0.age, count(*) FROM {CROSS} GROUP BY p0.age HAVING count(*) < 0",
            f"SELECT p0.name FROM {CROSS} ORDER BY p0.age * p1.age LIMIT 1",
            f"SELECT 1 FROM {CROSS} EXCEPT SELECT 1 FROM {CROSS}",
        ],
    ),
    "too much": (
        {ROWS, TIMEOUT, ERROR},
        [
            f"SELECT p0.id FROM {CROSS}",
            "SELECT a.*, b.*, c.*, d.* FROM person a, person b, person c, person d",
            COUNT.format("") + "SELECT x FROM c",
            COUNT.format(" LIMIT 100000") + "SELECT x FROM c",
            COUNT.format(" LIMIT 90") + "SELECT hex(zeroblob(1000000)) FROM c",
            COUNT.format("") + "SELECT group_concat(x) FROM c",
            COUNT.format("") + "SELECT group_concat(hex(randomblob(1000))) FROM c",
            COUNT.format("") + "SELECT json_group_array(x) FROM c",
            COUNT.format("") + "SELECT x, row_number() OVER (ORDER BY random()) FROM c",
            "WITH RECURSIVE g(x) AS (SELECT 'ab' UNION ALL SELECT x || x FROM g) SELECT max(length(x)) FROM g",
        ],
    ),
    "memory": (
        {ERROR},
        [
            "SELECT hex(zeroblob(400000000))",
            "SELECT zeroblob(2000000000)",
            "SELECT randomblob(1000000000)",
            "SELECT hex(randomblob(500000000))",
            "SELECT length(group_concat(hex(randomblob(2e8))))",
            "SELECT replace(hex(zeroblob(2000000)), '0', hex(zeroblob(2000000)))",
            f"SELECT {LONG.format(2_400_000)} || {LONG.format(2_400_000)}",
            "SELECT quote(zeroblob(4000000))",
            "SELECT substr(zeroblob(900000000), 1, 10)",
            "SELECT trim(zeroblob(900000000))",
            "SELECT json_array(zeroblob(10))",
            "SELECT char(" + ",".join(["65"] * 2000) + ")",
        ],
    ),
    "depth and length": (
        {ERROR, DENIED},
        [
            "SELECT " + "(" * 5000 + "1" + ")" * 5000,
            "SELECT " + "-" * 3 + "(" * 3000 + "1" + ")" * 3000,
            "SELECT " + "1+" * 5000 + "1",
            "SELECT " + "NOT " * 5000 + "1",
            "SELECT " + "abs(" * 2000 + "1" + ")" * 2000,
            "SELECT " + "CASE WHEN 1 THEN " * 500 + "1" + " END" * 500,
            "SELECT 1 WHERE " + " AND ".join(["1=1"] * 5000),
            "SELECT 1 WHERE " + " OR ".join(["1=2"] * 5000),
            " UNION ALL ".join(["SELECT 1"] * 2000),
            "SELECT " + "(SELECT " * 1000 + "1" + ")" * 1000,
            "SELECT * FROM " + "(SELECT * FROM " * 500 + "person" + ")" * 500,
            "SELECT * FROM " + ", ".join(f"person p{i}" for i in range(100)),
            "SELECT " + ", ".join(["1"] * 5000),
            "SELECT '" + "x" * 10_000_000 + "'",
            "-- " + "x" * 10_000_000 + "\nSELECT 1",
            "SELECT 1 IN (" + ",".join(["1"] * 150_000) + ")",
            "SELECT 'x' LIKE '" + "%a" * 5000 + "'",
            "SELECT 'x' GLOB '" + "*a" * 5000 + "'",
            "WITH " + ", ".join(f"c{i} AS (SELECT 1)" for i in range(3000)) + " SELEC 1",
        ],
    ),
    "long in one call": (
        {OK, TIMEOUT, ERROR},
        [
            f"SELECT {LONG.format(2_000_000)} LIKE '{'%a' * 400}b'",
            f"SELECT {LONG.format(2_000_000)} LIKE '{'_' * 900}%b'",
            f"SELECT {LONG.format(2_000_000)} GLOB '{'*a' * 400}b'",
            f"SELECT {LONG.format(2_000_000)} GLOB '*[^a]*[^a]*[^a]*'",
            f"SELECT instr({LONG.format(2_000_000)}, {LONG.format(500_000)} || 'b')",
            f"SELECT replace({LONG.format(2_000_000)}, {LONG.format(500_000)} || 'b', 'x')",
            "SELECT 'a' REGEXP '(a+)+$'",
            "SELECT printf('%.*c', 900000000, 'x')",
            "SELECT printf('%900000000d', 1)",
            "SELECT format('%.900000000f', 1.0)",
            "SELECT 'a' MATCH 'a'",
        ],
    ),
    "not SQL": (
        {ERROR, DENIED},
        [
            "",
            "   ",
            ";",
            "-- nothing",
            "/* never closed",
            "SELECT \0 1",
            "SELECT 1\0; DROP TABLE person",
            "SELECT 'never closed",
            'SELECT "never closed',
            "SELECT [never closed",
            "SELEC 1",
            "\ufeffSELEC 1",
            "SELECT \ud800",
            "SELECT name FROM person WHERE",
            "I cannot write that query.",
            "```sql\nSELECT 1\n```",
            "{{7*7}}",
            "$(touch {outside})",
            "SELECT * FROM person; \u2028 x",
            "\u202eSELECT 1",
        ],
    ),
    "odd but fine": (
        {OK},
        [
            "SELECT 1;",
            "SELECT 1; -- done",
            "/* a */ SELECT /* b */ 1 /* c */",
            "VALUES (1), (2)",
            "SELECT 9223372036854775807 + 0, -9223372036854775808, 1e308 * 10",
            "SELECT '💥', '数据', x'00ff', NULL",
            "SELECT count(*) FROM sqlite_master",
            "SELECT sqlite_version() IS NOT NULL",
            "SELECT date('now') IS NOT NULL, random() IS NOT NULL",
            "SELECT * FROM json_each('[1, 2]')",
            "SELECT name, rank() OVER (ORDER BY age) FROM person",
            COUNT.format(" LIMIT 90") + "SELECT x FROM c",
            'SELECT (SELECT max(age) FROM person) AS "drop table person"',
        ],
    ),
}
QUERIES = [sql for _, sqls in CORPUS.values() for sql in sqls]
SENTINEL = "SELECT count(*), sum(age) FROM person"
LIMITS = Limits(timeout_s=1.0, vm_steps=50_000_000, max_rows=100)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_the_corpus_is_large_and_has_no_query_twice():
    assert len(QUERIES) >= 150
    assert len(set(QUERIES)) == len(QUERIES)


@pytest.mark.parametrize("group", CORPUS)
def test_hostile_queries_are_contained(tmp_path, group):
    database = make_database(tmp_path / "in" / "town.sqlite")
    outside = tmp_path / "outside.txt"
    outside.write_text("secret")
    allowed, sqls = CORPUS[group]
    before, cwd = tree(tmp_path), sorted(os.listdir())
    queries = []
    for sql in sqls:
        queries += [
            Query(str(database), sql.replace("{outside}", str(outside))),
            Query(str(database), SENTINEL),
        ]
    with Sandbox(1, LIMITS) as sandbox:
        sandbox.run([Query(str(database), SENTINEL)])
        started = time.monotonic()
        found = sandbox.run(queries)
        assert time.monotonic() - started < 2.5 * len(sqls) + 5  # nothing hangs: deadline and grace each
        judged = sandbox.judge([Pair(str(database), q.sql, (SENTINEL,)) for q in queries], "strict")
    wrong = {
        q.sql[:80]: f.status for q, f in zip(queries[::2], found[::2], strict=True) if f.status not in allowed
    }
    assert not wrong
    assert all(f.rows == ((4, 137),) for f in found[1::2])
    assert all(j.match for j in judged[1::2])
    assert not any(j.match for j in judged[::2])
    assert all("secret" not in repr(f.rows) for f in found)
    assert tree(tmp_path) == before
    assert sorted(os.listdir()) == cwd


def test_a_wicked_schema_is_contained(tmp_path):
    """Views and columns of the database itself may call what a query may not."""
    path = tmp_path / "wicked.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(
        "CREATE TABLE t (x INTEGER, y AS (x + 1), z TEXT DEFAULT (hex(randomblob(9))));"
        "INSERT INTO t (x) VALUES (1), (2);"
        "CREATE VIEW bomb AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT * FROM c;"
        "CREATE VIEW loads AS SELECT load_extension('x') AS l;"
        "CREATE VIEW broken AS SELECT nope FROM t;"
        "CREATE VIEW pragmas AS SELECT * FROM pragma_database_list;"
    )
    connection.close()
    before = path.read_bytes()
    sqls = ["SELECT y FROM t", "SELECT count(*) FROM bomb", "SELECT * FROM loads", "SELECT * FROM broken"]
    sqls += ["SELECT * FROM pragmas", "SELECT count(*) FROM t"]
    with Sandbox(1, LIMITS) as sandbox:
        found = [f.status for f in sandbox.run([Query(str(path), sql) for sql in sqls])]
    assert found[:2] == ["ok", "timeout"]
    assert found[2] in ("denied", "error")
    assert found[3] == "error"
    assert found[4] in ("denied", "error")
    assert found[5] == "ok"
    assert path.read_bytes() == before


def test_a_symlink_is_followed_and_its_target_left_alone(tmp_path):
    database = make_database(tmp_path / "real" / "town.sqlite")
    link = tmp_path / "link.sqlite"
    link.symlink_to(database)
    loop = tmp_path / "loop.sqlite"
    loop.symlink_to(loop)
    before = database.read_bytes()
    with Sandbox(1, LIMITS) as sandbox:
        good, bad = sandbox.run([Query(str(link), SENTINEL), Query(str(loop), SENTINEL)])
    assert good.rows == ((4, 137),)
    assert bad.status == "no_database"
    assert database.read_bytes() == before


def children() -> set[int]:
    found = set()
    for task in Path("/proc/self/task").iterdir():
        found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


WORDS = re.split(
    " ",
    "SELECT FROM WHERE GROUP BY ORDER BY HAVING LIMIT JOIN ON UNION EXCEPT WITH RECURSIVE AS IN NOT NULL CASE WHEN "
    "THEN END EXISTS DISTINCT count(*) max min sum person pet id name age owner kind * , ( ) = < > + - || ' \" ; -- "
    "/* */ 1 0 -1 1e9 'Ann' x'00' randomblob(9) zeroblob(9) PRAGMA ATTACH DROP DELETE INSERT load_extension . % "
    "\0 \ufeff 数据 💥 \ud800",
)


@pytest.mark.slow
def test_a_hundred_thousand_random_strings_leak_no_worker(tmp_path):
    database = make_database(tmp_path / "in" / "town.sqlite")
    generator = random.Random(0)
    seeds = [q for q in QUERIES if len(q) < 300 and "RECURSIVE" not in q and CROSS not in q]

    def text() -> str:
        if generator.random() < 0.5:
            return " ".join(generator.choices(WORDS, k=generator.randrange(1, 15)))
        sql = list(generator.choice(seeds))
        for _ in range(generator.randrange(1, 5)):
            at = generator.randrange(len(sql) + 1)
            sql[at : at + generator.randrange(3)] = generator.choice(WORDS)
        return "".join(sql)

    before, files, statuses = children(), tree(tmp_path), Counter()
    with Sandbox(2, LIMITS) as sandbox:
        for _ in range(20):
            queries = [Query(str(database), text()) for _ in range(5_000)]
            queries[0] = queries[-1] = Query(str(database), SENTINEL)
            found = sandbox.run(queries)
            assert len(found) == 5_000
            assert found[0].rows == found[-1].rows == ((4, 137),)
            statuses.update(f.status for f in found)
            assert len(children() - before) <= 2
    assert children() <= before
    assert tree(tmp_path) == files
    assert set(statuses) <= {OK, ERROR, DENIED, TIMEOUT, ROWS}
    assert min(statuses[OK], statuses[ERROR], statuses[DENIED]) > 100

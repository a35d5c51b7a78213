import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from random import Random

import pytest

from curate.sql.compare import MODES, compare, digest, orders
from curate.sql.sandbox import Execution, Limits, Pair, Query, Sandbox
from curate.sql.sandbox_worker import Worker


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(1, Limits(timeout_s=1.0, max_rows=100)) as made:
        yield made


def run(sandbox, database, *sqls: str) -> list[Execution]:
    return sandbox.run([Query(str(database), sql) for sql in sqls])


ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"

HOSTILE = {
    "ATTACH DATABASE 'other.sqlite' AS other": "denied",
    "DETACH DATABASE main": "denied",
    "INSERT INTO person VALUES (9, 'x', 1)": "denied",
    "UPDATE person SET age = 0": "denied",
    "DELETE FROM person": "denied",
    "DROP TABLE person": "denied",
    "CREATE TABLE x (y)": "denied",
    "CREATE TEMP TABLE x (y)": "denied",
    "VACUUM INTO 'copy.sqlite'": "denied",
    "PRAGMA table_info(person)": "denied",
    "PRAGMA journal_mode = WAL": "denied",
    "PRAGMA query_only = 0": "denied",
    "SELECT * FROM pragma_table_info('person')": "denied",
    "SELECT load_extension('x')": "denied",
    "SELECT fts3_tokenizer('simple')": ("denied", "error"),
    "SELECT readfile('/etc/hostname')": "error",
    "SELECT writefile('x', 'y')": "error",
    "SELECT edit('x')": "error",
    "BEGIN": "denied",
    "EXPLAIN SELECT 1": "denied",
    "SELECT 1; SELECT 2": "denied",
    "SELECT 1; DROP TABLE person": "denied",
    "": "error",
    "-- nothing": "error",
    "SELECT \0 1": "error",
    "SELEC 1": "error",
    ENDLESS: "timeout",
    "SELECT a.id FROM person a, person b, person c, person d": "too_many_rows",
    "SELECT length(group_concat(hex(randomblob(2e8))))": "error",
    "SELECT hex(zeroblob(4e8))": "error",
    "SELECT printf('%*d', 900000000, 1)": ("error", "ok"),
    "SELECT replace(hex(zeroblob(2000000)), '0', hex(zeroblob(2000000)))": "error",
    "SELECT " + "(" * 5000 + "1" + ")" * 5000: "error",
    "SELECT " + "1+" * 5000 + "1": "error",
    "SELECT '" + "x" * 10_000_000 + "'": "denied",
    " UNION ALL ".join(["SELECT 1"] * 2000): "error",
    "SELECT '" + "a" * 200 + "' LIKE '" + "%a" * 5000 + "b'": "error",
}


@pytest.mark.parametrize("sql", HOSTILE, ids=lambda sql: sql[:40] or "empty")
def test_hostile_sql_is_contained_and_the_next_query_runs(sandbox, database, sql):
    before = database.read_bytes()
    expected = HOSTILE[sql]
    first, second = run(sandbox, database, sql, "SELECT count(*) FROM person")
    assert first.status in ((expected,) if isinstance(expected, str) else expected)
    assert first.error or first.ok
    assert second.rows == ((4,),)
    assert database.read_bytes() == before
    assert sorted(p.name for p in database.parent.iterdir()) == [database.name]


def test_ordinary_queries(sandbox, database):
    found = run(
        sandbox,
        database,
        "SELECT name, age FROM person WHERE id = 4;",
        "-- a comment\nSELECT count(*) FROM person -- another",
        "VALUES (1, 2)",
        "SELECT nme FROM person",
        "SELECT name FROM person WHERE 1 = 0",
    )
    assert [f.status for f in found] == ["ok", "ok", "ok", "error", "ok"]
    assert found[0].rows == (("李雷", 41),)
    assert found[0].columns == ("name", "age")
    assert "no such column: nme" in (found[3].error or "")
    assert found[4].row_count == 0


def test_order_is_kept_and_identical_queries_run_once(database):
    limits = Limits(timeout_s=1.0)
    with Sandbox(2, limits) as sandbox:
        queries = [Query(str(database), f"SELECT {i % 150}, random()") for i in range(450)]
        found = sandbox.run(queries)
    assert [f.rows[0][0] for f in found] == [i % 150 for i in range(450)]
    assert found[0].rows == found[150].rows == found[300].rows  # random() was drawn once


def test_one_row_past_the_cap_is_too_many(database):
    with Sandbox(1, Limits(max_rows=4)) as sandbox:
        fits, over = run(
            sandbox, database, "SELECT * FROM person", "SELECT * FROM person UNION ALL SELECT 9, 'x', 1"
        )
    assert fits.status == "ok"
    assert over.status == "too_many_rows"
    assert over.rows == ()


def test_a_result_of_many_bytes_is_too_many(database):
    with Sandbox(1, Limits(max_bytes=100_000)) as sandbox:
        (found,) = run(sandbox, database, "SELECT hex(zeroblob(60000)) FROM person")
    assert found.status == "too_many_rows"


def test_the_step_budget_is_the_same_every_time(database):
    sql = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 200000) SELECT max(x) FROM c"
    for budget, status in ((1_000_000, "timeout"), (100_000_000, "ok")):
        with Sandbox(1, Limits(timeout_s=30, vm_steps=budget)) as sandbox:
            found = [run(sandbox, database, sql)[0].status for _ in range(3)]
        assert found == [status] * 3


def test_digests_are_those_of_the_rows_and_rows_stay_behind(database):
    sqls = ["SELECT name FROM person ORDER BY age", "SELECT name FROM person", "SELECT nme FROM person"]
    with Sandbox(1) as sandbox:
        plain = run(sandbox, database, *sqls)
        digested = sandbox.run([Query(str(database), s) for s in sqls], digest="strict")
    assert digested[0].digest == digest(plain[0].rows, "strict", ordered=True)
    assert digested[1].digest == digest(plain[1].rows, "strict")
    assert digested[2].digest is None
    assert all(d.rows == () for d in digested)
    assert digested[0].row_count == 4


@pytest.mark.parametrize(
    "name", ["with space", "q?mark", "per%41cent", "hash#tag", "new\nline", "数据库", "it's"]
)
def test_a_path_may_hold_anything(sandbox, database, name):
    path = database.parent / f"{name}.sqlite"
    shutil.copy(database, path)
    assert run(sandbox, path, "SELECT count(*) FROM person")[0].rows == ((4,),)


def test_what_is_no_database_says_so(sandbox, database):
    folder = database.parent
    (folder / "text.sqlite").write_text("hello " * 1000)
    (folder / "empty.sqlite").write_bytes(b"")
    (folder / "cut.sqlite").write_bytes(database.read_bytes()[:5000])
    (folder / "folder.sqlite").mkdir()
    found = {
        name: run(sandbox, folder / f"{name}.sqlite", "SELECT count(*) FROM person")[0].status
        for name in ("absent", "text", "empty", "cut", "folder")
    }
    assert found["absent"] == found["text"] == found["folder"] == "no_database"
    assert found["empty"] == "error"  # an empty file is an empty database: there is no such table
    assert found["cut"] in ("no_database", "error")


def test_a_write_ahead_log_that_would_be_ignored_is_refused(sandbox, tmp_path):
    path = tmp_path / "wal.sqlite"
    writer = sqlite3.connect(path)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("CREATE TABLE t (x)")
    writer.commit()
    found = run(sandbox, path, "SELECT count(*) FROM t")[0]
    writer.close()
    assert found.status == "no_database"
    assert "write-ahead log" in (found.error or "")


def test_a_locked_database_can_be_read(sandbox, database):
    writer = sqlite3.connect(database, isolation_level=None)
    writer.execute("BEGIN EXCLUSIVE")
    found = run(sandbox, database, "SELECT count(*) FROM person")[0]
    writer.execute("ROLLBACK")
    writer.close()
    assert found.rows == ((4,),)


def test_invalid_utf8_in_a_cell_survives(sandbox, tmp_path):
    path = tmp_path / "bad.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t (x TEXT)")
    connection.execute("INSERT INTO t VALUES (CAST(x'41ff42' AS TEXT)), ('fine')")
    connection.commit()
    connection.close()
    found = run(sandbox, path, "SELECT x FROM t", "SELECT 'é'")
    assert found[0].rows == (("A\\xffB",), ("fine",))
    assert found[1].rows == (("é",),)


def judge(sandbox, database, *pairs: tuple[str, ...], mode="strict"):
    """Each pair: a predicted SQL, then its golds."""
    return sandbox.judge([Pair(str(database), p[0], p[1:]) for p in pairs], mode)


def test_pairs_are_judged_in_order(sandbox, database):
    names = "SELECT name FROM person"
    found = judge(
        sandbox,
        database,
        ("SELECT name FROM person ORDER BY age", names),
        (names + " ORDER BY age DESC", names + " ORDER BY age"),
        ("SELECT nme FROM person", names),
        (names, "SELECT nme FROM person"),
        (names, "SELECT nme FROM person", "SELECT age FROM person", names),
        ("DROP TABLE person", names),
        (names + " WHERE 1 = 0", names + " WHERE age > 99"),
        (names, names + " WHERE age > 99"),
    )
    assert [(f.status, f.match) for f in found] == [
        ("ok", True),
        ("ok", False),
        ("error", False),
        ("ok", False),
        ("ok", True),
        ("denied", False),
        ("ok", True),
        ("ok", False),
    ]
    assert "another order" in (found[1].reason or "")
    assert found[3].failed[0][0] == "error"
    assert len(found[4].failed) == 1
    assert [f.empty for f in found[6:]] == [True, False]
    assert "4 rows, gold has 0" in (found[7].reason or "")


def test_judging_equals_executing_and_comparing(sandbox, database):
    sqls = [
        "SELECT age FROM person",
        "SELECT age FROM person ORDER BY age",
        "SELECT age + 0.0 FROM person",
        "SELECT age, id FROM person",
        "SELECT id, age FROM person",
        "SELECT DISTINCT age FROM person",
        "SELECT age / 3.0 FROM person",
        "SELECT age * 0.33333333333 FROM person",
        "SELECT name FROM person WHERE 1 = 0",
        "SELECT NULL FROM person",
    ]
    results = dict(zip(sqls, run(sandbox, database, *sqls), strict=True))
    for mode in MODES:
        pairs = [(a, b) for a in sqls for b in sqls]
        for (a, b), found in zip(pairs, judge(sandbox, database, *pairs, mode=mode), strict=True):
            mine, theirs = results[a], results[b]
            wanted = compare(mine.rows, theirs.rows, mode, ordered=orders(b, mode))
            if mode == "strict" and len(mine.columns) != len(theirs.columns):
                assert not found.match
                assert "columns, gold has" in (found.reason or "")
            else:
                assert (found.match, found.reason) == (wanted.match, wanted.reason)


def test_strict_counts_the_columns_of_empty_results(sandbox, database):
    none = "SELECT {} FROM person WHERE 1 = 0"
    same, other = judge(
        sandbox,
        database,
        (none.format("name"), none.format("age")),
        (none.format("name, age"), none.format("age")),
    )
    assert same.match
    assert not other.match
    assert other.reason == "2 columns, gold has 1"


def test_rows_that_order_by_does_not_tell_apart_may_change_places(sandbox, database):
    by_age = "SELECT name FROM person ORDER BY age DESC"  # two are 41
    by_name_too = "SELECT name FROM person ORDER BY age DESC, name DESC"
    other_way = "SELECT name FROM person ORDER BY age DESC, name"
    youngest_first = "SELECT name FROM person ORDER BY age"
    limited = by_age + " LIMIT 2"
    found = judge(
        sandbox,
        database,
        (by_name_too, by_age),
        (other_way, by_age),
        (other_way, by_name_too),
        (youngest_first, by_age),
        (by_name_too + " LIMIT 2", limited),
        (other_way + " LIMIT 2", limited),
        (
            "SELECT name FROM person ORDER BY 0 - age, id DESC",
            "SELECT name AS n FROM person ORDER BY 0 - age",
        ),
    )
    assert [f.match for f in found] == [True, True, False, False, True, True, True]


def test_a_gold_runs_once_in_a_worker(database, monkeypatch):
    worker = Worker(timeout_s=5, vm_steps=10**8, max_rows=100, max_bytes=10**6)
    ran = []
    run_sql = Worker._run
    monkeypatch.setattr(Worker, "_run", lambda self, d, sql, r: ran.append(sql) or run_sql(self, d, sql, r))
    for predicted in ("SELECT 1", "SELECT 2", "SELECT 3"):
        worker.judge(str(database), predicted, (("SELECT count(*) FROM pet", False, None),), "strict")
    assert ran == ["SELECT count(*) FROM pet", "SELECT 1", "SELECT 2", "SELECT 3"]


def test_a_hanging_prediction_is_wrong_and_a_hanging_gold_is_no_gold(database):
    text = "replace(hex(zeroblob({})), '0', 'a')"  # one call of instr, that looks at no deadline
    hang = f"SELECT instr({text.format(2_000_000)}, {text.format(500_000)} || 'b')"
    names = "SELECT name FROM person"
    with Sandbox(1, Limits(timeout_s=0.5, vm_steps=10**12)) as sandbox:
        found = judge(
            sandbox, database, (names, names), (hang, names), (names, hang), (ENDLESS, names), (names, names)
        )
    assert [f.status for f in found] == ["ok", "timeout", "ok", "timeout", "ok"]
    assert [f.match for f in found] == [True, False, False, False, True]
    assert found[2].failed[0][0] == "timeout"


def test_a_database_that_is_replaced_is_read_anew(sandbox, database, tmp_path):
    path = tmp_path / "changing.sqlite"
    counted = "SELECT count(*) FROM person"
    shutil.copy(database, path)
    assert run(sandbox, path, counted)[0].rows == ((4,),)
    assert judge(sandbox, path, ("SELECT 4", counted))[0].match
    other = tmp_path / "other.sqlite"
    shutil.copy(database, other)
    connection = sqlite3.connect(other)
    connection.execute("DELETE FROM person WHERE id > 1")
    connection.commit()
    connection.close()
    os.replace(other, path)
    assert judge(sandbox, path, ("SELECT 4", counted), ("SELECT 1", counted))[1].match
    assert run(sandbox, path, counted)[0].rows == ((1,),)
    path.unlink()
    assert run(sandbox, path, counted)[0].status == "no_database"


def test_a_hanging_prediction_ends_at_its_own_deadline(database):
    """Not at that of prediction and golds together."""
    text = "replace(hex(zeroblob({})), '0', 'a')"
    hang = f"SELECT instr({text.format(2_000_000)}, {text.format(500_000)} || 'b')"
    golds = tuple(f"SELECT {i}" for i in range(8))
    with Sandbox(1, Limits(timeout_s=1, vm_steps=10**12)) as sandbox:
        run(sandbox, database, "SELECT 1")
        started = time.monotonic()
        (found,) = judge(sandbox, database, (hang, *golds))
        assert time.monotonic() - started < 4  # 1 s and 0.5 s of grace; with all golds' it would be 9.5
    assert found.status == "timeout"


def test_an_unknown_mode_is_refused_before_any_work():
    with pytest.raises(ValueError, match="unknown comparison mode 'loose'"):
        Sandbox(1).judge([], "loose")


def workers_of(parent: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as file:
                    if int(file.read().rpartition(")")[2].split()[1]) == parent:
                        found.append(int(entry))
            except OSError:
                continue
    return found


def test_killed_workers_lose_no_row(database):
    queries = [
        Query(str(database), f"SELECT {i}, count(*) FROM person a, person b, person c, person d")
        for i in range(600)
    ]
    with Sandbox(2, Limits(timeout_s=5)) as sandbox:
        stop = threading.Event()

        def kill() -> None:
            while not stop.wait(0.15):
                for worker in list(sandbox._workers):
                    worker.process.send_signal(signal.SIGKILL)
                    break

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            found = sandbox.run(queries)
        finally:
            stop.set()
            killer.join()
        assert len(found) == 600
        assert Counter(f.status for f in found).keys() <= {"ok", "crashed"}
        assert all(f.rows[0][0] == i for i, f in enumerate(found) if f.ok)
        assert sum(f.ok for f in found) > 590
        assert run(sandbox, database, "SELECT 1")[0].ok


def test_a_worker_that_hangs_is_killed_and_replaced(database):
    with Sandbox(1, Limits(timeout_s=0.3)) as sandbox:
        run(sandbox, database, "SELECT 1")
        sandbox._workers[0].process.send_signal(signal.SIGSTOP)
        started = time.monotonic()
        hung, after = run(sandbox, database, "SELECT 1", "SELECT 2")
        assert time.monotonic() - started < 10
    assert hung.status == "timeout"
    assert after.rows == ((2,),)


def test_a_killed_parent_leaves_no_worker(database):
    code = (
        "import sys; from curate.sql.sandbox import *\n"
        "with Sandbox(1, Limits(timeout_s=600, vm_steps=10**15)) as s:\n"
        "    s.run([Query(sys.argv[1], 'SELECT 1')]); print('ready', flush=True)\n"
        "    s.run([Query(sys.argv[1], sys.argv[2])])\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(database), ENDLESS], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "ready\n"
    time.sleep(0.3)
    children = workers_of(parent.pid)
    assert children
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(os.path.exists(f"/proc/{c}") for c in children):
        time.sleep(0.1)
    assert not any(os.path.exists(f"/proc/{c}") for c in children)


def test_closing_leaves_no_worker_and_the_sandbox_can_be_used_again(database):
    sandbox = Sandbox(2)
    assert run(sandbox, database, "SELECT 1")[0].ok
    pids = [w.process.pid for w in sandbox._workers]
    sandbox.close()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    assert run(sandbox, database, "SELECT 1")[0].ok
    sandbox.close()


def test_a_sandbox_needs_a_worker():
    with pytest.raises(ValueError, match="at least one worker"):
        Sandbox(0)
    assert Sandbox(1).run([]) == []


@pytest.mark.slow
def test_a_thousand_kills_lose_nothing(database):
    """Workers are killed at random moments, all through many batches of queries and pairs."""
    random = Random(0)
    kills = 0
    with Sandbox(2, Limits(timeout_s=20)) as sandbox:
        stop = threading.Event()

        def kill() -> None:
            nonlocal kills
            while not stop.wait(random.uniform(0, 0.01)):
                workers = list(sandbox._workers)
                ready = [w for w in workers if w.ready and w.batch]
                if ready:
                    os.kill(random.choice(ready).process.pid, signal.SIGKILL)
                    kills += 1

        killer = threading.Thread(target=kill)
        killer.start()
        crashed = asked = 0
        try:
            while kills < 1000:
                numbers = [random.randrange(10**9) for _ in range(200)]
                slow = "(SELECT count(*) FROM person a, person b, person c, person d, person e)"
                queries = [Query(str(database), f"SELECT {n}, {slow}") for n in numbers]
                found = sandbox.run(queries)
                assert all(e.rows == ((n, 1024),) for n, e in zip(numbers, found, strict=True) if e.ok)
                assert {e.status for e in found} <= {"ok", "crashed"}
                pairs = [Pair(str(database), f"SELECT {n}, {slow}", (f"SELECT {n}, 1024",)) for n in numbers]
                judged = sandbox.judge(pairs, "strict")
                assert all(j.match for j in judged if j.status == "ok" and not j.failed)
                assert {j.status for j in judged} <= {"ok", "crashed"}
                crashed += sum(e.status == "crashed" for e in found) + sum(
                    j.status == "crashed" for j in judged
                )
                asked += len(queries) + len(pairs)
        finally:
            stop.set()
            killer.join()
        assert run(sandbox, database, "SELECT 1")[0].ok
        pids = [w.process.pid for w in sandbox._workers]
        assert set(workers_of(os.getpid())) >= set(pids)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    assert crashed < asked * 0.05  # only what was struck twice


@pytest.mark.slow
def test_spider_golds(nl2sql_data):
    spider = nl2sql_data / "spider"
    rows = json.loads((spider / "train.json").read_text(encoding="utf-8"))
    queries = [
        Query(str(spider / "database" / r["db_id"] / f"{r['db_id']}.sqlite"), r["query"]) for r in rows
    ]
    with Sandbox(2, Limits(max_rows=100_000)) as sandbox:
        found = sandbox.run(queries)
    assert Counter(f.status for f in found) == {"ok": 6787, "error": 3}
    assert sum(f.ok and f.row_count == 0 for f in found) == 296

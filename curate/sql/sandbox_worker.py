"""The process in which a sandboxed query runs: a script of the standard library only, so that it starts fast.

It reads batches of messages from standard input and writes their answers to standard output, in order, each
batch or answer a length and a marshalled value. A message is the name of a method of Worker and its arguments.
Answers are held back for up to FLUSH_S; which message it is at stands in a memory it shares with its parent,
who needs to know when it had to be killed. See curate.sql.sandbox for what is guarded and why.
"""

import importlib.util
import json
import marshal
import mmap
import os
import re
import resource
import sqlite3
import struct
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import quote

ANSWER = tuple[
    str, tuple[str, ...], tuple[tuple[Any, ...], ...], int, "str | None", "str | None", float, bool
]

STEP = 10_000  # virtual-machine instructions between two looks at the budget
CONNECTIONS = 64
FETCH = 256  # rows
FLUSH_S = 0.02
GOLD_CELLS = 2_000_000  # of cached gold results

# What the parent reads from the shared memory: the messages begun since the start, the phase, and when the SQL it is
# at began to run (time.monotonic, which all processes share). Native order: each number is written at once.
PLACE = struct.Struct("@QQd")
PREDICTED, GOLD = 0, 1

# status, detail, (status, detail) of golds that did not run, place of the gold it equals among those that did
# or -1, why, whether that gold's result is empty (the prediction's, if it equals none), seconds
JUDGED = tuple[str, "str | None", tuple[tuple[str, str], ...], int, "str | None", bool, float]

CELL_BYTES = 5_000_000  # SQLITE_LIMIT_LENGTH: a longer string or blob cannot be made
SQL_BYTES = 200_000

_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE}
_FORBIDDEN_FUNCTIONS = {
    "load_extension",
    "fts3_tokenizer",
    "fts5",
    "sqlite_log",
    "readfile",
    "writefile",
    "edit",
    "fsdir",
    "lsmode",
}
_EXPLAIN = re.compile(r"(?>\s+|--[^\n]*(?:\n|$)|/\*.*?\*/)*+explain\b", re.IGNORECASE | re.DOTALL)
_NO_DATABASE = {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR}


class NoDatabase(Exception):
    pass


class Worker:
    def __init__(self, timeout_s: float, vm_steps: int, max_rows: int, max_bytes: int) -> None:
        self.timeout_s, self.vm_steps = timeout_s, vm_steps
        self.max_rows, self.max_bytes = max_rows, max_bytes
        self.connections: OrderedDict[tuple[str, bool], sqlite3.Connection] = OrderedDict()
        self.deadline = 0.0
        self.looks = 0
        self.spent = ""
        self.compare = _load_compare()
        self.golds: OrderedDict[tuple[str, str], _Gold] = OrderedDict()
        self.gold_cells = 0
        self.files: dict[str, tuple[int, int, int]] = {}
        self.phase = PREDICTED
        self.mark: Callable[[], None] = lambda: None

    def run(self, database: str, sql: str, mode: str | None, ordered: bool, reverse: bool) -> ANSWER:
        started = time.perf_counter()
        self._notice_change(database)
        self.phase = PREDICTED
        try:
            columns, rows = self._run(database, sql, reverse)
        except _Refused as refused:
            return (refused.status, (), (), 0, None, refused.detail, time.perf_counter() - started, False)
        nulls = bool(rows) and all(value is None for row in rows for value in row)
        if mode is not None:
            digest = self.compare.digest(rows, mode, ordered=ordered)
            return ("ok", columns, (), len(rows), digest, None, time.perf_counter() - started, nulls)
        return ("ok", columns, tuple(rows), len(rows), None, None, time.perf_counter() - started, nulls)

    def judge(
        self, database: str, predicted: str, golds: tuple[tuple[str, bool, str | None], ...], mode: str
    ) -> JUDGED:
        """golds: (SQL, whether it orders its result, the same with the values it orders by as further outputs)."""
        started = time.perf_counter()
        self._notice_change(database)
        self.phase = GOLD
        held = [(self._gold(database, gold[0]), gold) for gold in golds]
        self.phase = PREDICTED
        ran = [(gold, told) for gold, told in held if gold.refusal is None]
        refusals = tuple(gold.refusal for gold, _ in held if gold.refusal is not None)
        try:
            columns, rows = self._run(database, predicted, False)
        except _Refused as refused:
            return (refused.status, refused.detail, refusals, -1, None, False, time.perf_counter() - started)
        reason = None
        for index, (gold, (_, ordered, keyed)) in enumerate(ran):
            if mode == "strict" and len(columns) != gold.width:
                reason = reason or f"{len(columns)} columns, gold has {gold.width}"
                continue
            verdict = self.compare.compare(rows, gold.rows, mode, ordered=ordered)
            if verdict.reordered and keyed is not None:
                keys = self._keys(database, keyed, gold)
                verdict = self.compare.compare(rows, gold.rows, mode, ordered=ordered, keys=keys)
            if verdict.match:
                empty = not gold.rows
                return ("ok", None, refusals, index, verdict.reason, empty, time.perf_counter() - started)
            reason = reason or verdict.reason
        return ("ok", None, refusals, -1, reason, not rows, time.perf_counter() - started)

    def _notice_change(self, database: str) -> None:
        """Forget what is known of a database whose file is another one than before."""
        try:
            found = os.stat(database)
            mark = (found.st_ino, found.st_size, found.st_mtime_ns)
        except OSError:
            mark = (0, 0, 0)
        if self.files.setdefault(database, mark) == mark:
            return
        self.files[database] = mark
        for key in [k for k in self.connections if k[0] == database]:
            self.connections.pop(key).close()
        for gold in [k for k in self.golds if k[0] == database]:
            self.gold_cells -= self.golds.pop(gold).cells

    def _keys(self, database: str, keyed: str, gold: "_Gold") -> "list[tuple[Any, ...]] | None":
        """The values that a gold's rows were ordered by; None where the wider query gives other rows."""
        wider = self._gold(database, keyed)
        if wider.refusal is not None or [row[: gold.width] for row in wider.rows] != gold.rows:
            return None
        return [row[gold.width :] for row in wider.rows]

    def _gold(self, database: str, sql: str) -> "_Gold":
        """A gold's result, executed once while it is remembered. What may be a passing fault is not."""
        key = (database, sql)
        if key in self.golds:
            self.golds.move_to_end(key)
            return self.golds[key]
        try:
            columns, rows = self._run(database, sql, False)
        except _Refused as refused:
            gold = _Gold([], 0, (refused.status, refused.detail))
            if refused.status in ("timeout", "no_database"):
                return gold
        else:
            gold = _Gold(rows, len(columns), None)
        self.golds[key] = gold
        self.gold_cells += gold.cells
        while self.gold_cells > GOLD_CELLS:
            self.gold_cells -= self.golds.popitem(last=False)[1].cells
        return gold

    def _run(self, database: str, sql: str, reverse: bool) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        if len(sql) > SQL_BYTES:
            raise _Refused("denied", f"the SQL is {len(sql):,} characters long, the limit is {SQL_BYTES:,}")
        if _EXPLAIN.match(sql):
            raise _Refused("denied", "EXPLAIN is no query")
        self.mark()
        self.deadline = time.monotonic() + self.timeout_s
        self.looks, self.spent = 0, ""
        try:
            connection = self._connection(database, reverse)
            try:
                return self._fetch(connection, sql)
            except sqlite3.OperationalError as error:
                if "Could not decode to UTF-8" not in str(error):
                    raise
            connection.text_factory = lambda data: data.decode("utf-8", "backslashreplace")
            try:
                return self._fetch(connection, sql)
            finally:
                connection.text_factory = str
        except NoDatabase as error:
            raise _Refused("no_database", str(error)) from error
        except MemoryError as error:
            self._close()
            raise _Refused("error", "out of memory") from error
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
            raise self._refused(database, error) from error

    def _fetch(
        self, connection: sqlite3.Connection, sql: str
    ) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        cursor = connection.execute(sql)
        try:
            if cursor.description is None:
                raise _Refused("error", "there is no query")
            rows: list[tuple[Any, ...]] = []
            size = 0
            while True:
                # One row past the limit tells a full result from a cut one.
                chunk = cursor.fetchmany(min(FETCH, self.max_rows + 1 - len(rows)))
                if not chunk:
                    return tuple(d[0] for d in cursor.description), rows
                rows += chunk
                size += len(marshal.dumps(chunk))
                if len(rows) > self.max_rows:
                    raise _Refused("too_many_rows", f"more than {self.max_rows:,} rows")
                if size > self.max_bytes:
                    raise _Refused("too_many_rows", f"more than {self.max_bytes:,} bytes of result")
        finally:
            cursor.close()

    def _refused(self, database: str, error: Exception) -> "_Refused":
        said = str(error)
        code = getattr(error, "sqlite_errorcode", None)
        if self.spent:
            return _Refused("timeout", self.spent)
        if code is not None and code & 0xFF in _NO_DATABASE:
            return _Refused("no_database", f"{database}: {said}")
        if (
            code == sqlite3.SQLITE_AUTH
            or "not authorized" in said
            or "prohibited" in said
            or "one statement" in said
        ):
            return _Refused("denied", said)
        return _Refused("error", said)

    def _connection(self, database: str, reverse: bool) -> sqlite3.Connection:
        key = (database, reverse)
        if key in self.connections:
            self.connections.move_to_end(key)
            return self.connections[key]
        if not os.path.isfile(database):
            raise NoDatabase(f"{database}: no such file")
        if os.path.exists(database + "-wal") and os.path.getsize(database + "-wal"):
            raise NoDatabase(f"{database}: a write-ahead log stands beside it; checkpoint it first")
        try:
            connection = self._opened(database)
        except sqlite3.Error as error:
            raise NoDatabase(f"{database}: {error}") from error
        if reverse:
            connection.set_authorizer(None)
            connection.execute("PRAGMA reverse_unordered_selects = 1")
            connection.set_authorizer(_authorize)
        self.connections[key] = connection
        if len(self.connections) > CONNECTIONS:
            self.connections.popitem(last=False)[1].close()
        return connection

    def _opened(self, database: str) -> sqlite3.Connection:
        uri = f"file:{quote(os.path.abspath(database))}?mode=ro&immutable=1"
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, cached_statements=0)
        connection.execute("PRAGMA query_only = 1")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        # Made here, since the authorizer would not let them declare their columns.
        connection.execute("SELECT 1 FROM json_each('[]'), json_tree('[]')").fetchone()
        for limit, value in (
            (sqlite3.SQLITE_LIMIT_LENGTH, CELL_BYTES),
            (sqlite3.SQLITE_LIMIT_SQL_LENGTH, 4 * SQL_BYTES),
            (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
            (sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 400),
            (sqlite3.SQLITE_LIMIT_COMPOUND_SELECT, 100),
            (sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 1_000),
            (sqlite3.SQLITE_LIMIT_WORKER_THREADS, 0),
        ):
            connection.setlimit(limit, value)
        connection.set_progress_handler(self._look, STEP)
        connection.set_authorizer(_authorize)
        return connection

    def _look(self) -> int:
        self.looks += 1
        if self.looks * STEP > self.vm_steps:
            self.spent = f"more than {self.vm_steps:,} virtual-machine steps"
        elif time.monotonic() > self.deadline:
            self.spent = f"more than {self.timeout_s:g} s"
        return 1 if self.spent else 0

    def _close(self) -> None:
        for connection in self.connections.values():
            connection.close()
        self.connections.clear()


class _Gold(NamedTuple):
    """A gold's rows and their number of columns, or (status, detail) of why there are none."""

    rows: list[tuple[Any, ...]]
    width: int
    refusal: "tuple[str, str] | None"

    @property
    def cells(self) -> int:
        return 1 + len(self.rows) * self.width


class _Refused(Exception):
    def __init__(self, status: str, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


def _authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    if action in _ALLOWED:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() not in _FORBIDDEN_FUNCTIONS:
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _load_compare() -> ModuleType:
    """compare.py by its path: importing the package would cost more than a query."""
    path = Path(__file__).with_name("compare.py")
    spec = importlib.util.spec_from_file_location("sandbox_compare", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules["sandbox_compare"] = module
    spec.loader.exec_module(module)
    return module


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.25)
    os._exit(1)


def _read(stream: BinaryIO) -> Any:
    head = stream.read(4)
    if len(head) < 4:
        return None
    return marshal.loads(stream.read(struct.unpack(">I", head)[0]))


def _framed(value: Any) -> bytes:
    data = marshal.dumps(value)
    return struct.pack(">I", len(data)) + data


def _serve(worker: Worker, place: mmap.mmap, stdin: BinaryIO, stdout: BinaryIO) -> None:
    begun = 0

    def mark() -> None:
        PLACE.pack_into(place, 0, begun, worker.phase, time.monotonic())

    worker.mark = mark
    methods: dict[str, Callable[..., tuple[Any, ...]]] = {"run": worker.run, "judge": worker.judge}
    while (batch := _read(stdin)) is not None:
        held: list[bytes] = []
        since = time.monotonic()
        for name, *arguments in batch:
            begun += 1
            worker.phase = PREDICTED
            mark()
            held.append(_framed(methods[name](*arguments)))
            now = time.monotonic()
            if now - since > FLUSH_S:
                stdout.write(b"".join(held))
                stdout.flush()
                held.clear()
                since = now
        stdout.write(b"".join(held))
        stdout.flush()


def main() -> None:
    settings = json.loads(sys.argv[1])
    memory = settings.pop("memory_mb") * 1_000_000
    parent = settings.pop("parent")
    place = mmap.mmap(settings.pop("place"), mmap.PAGESIZE)
    worker = Worker(**settings)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # nothing can be written to any file
    threading.Thread(target=_end_with_parent, args=(parent,), daemon=True).start()
    sys.stdout.buffer.write(_framed("ready"))
    sys.stdout.buffer.flush()
    _serve(worker, place, sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()

"""Guarded execution of SQL on SQLite files, in processes that can be killed.

What guards: the file is opened read-only and immutable; an authorizer admits SELECT and nothing else; one
statement; SQLite's own limits on the length of strings and SQL; an address-space limit and a file-size limit
of zero on the worker; a budget of virtual-machine steps (reproducible) and a deadline (the backstop), looked
at every 10,000 steps; a row cap noticed one row past it; and, since a single function call can run for
seconds between two looks, a parent that kills a worker which outlives its deadline.

Workers are processes of their own (never forked: the caller may have threads) that take queries in batches.
One that dies is replaced; only the query it was at is affected.
"""

import json
import marshal
import mmap
import os
import selectors
import struct
import subprocess
import sys
import time
import zlib
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from curate.sql.compare import MODES, orders
from curate.sql.sandbox_worker import GOLD, PLACE

Status = Literal["ok", "error", "timeout", "too_many_rows", "denied", "no_database", "crashed"]

BATCH = 64  # queries a message
LOW = 32  # unanswered queries at which a worker gets its next message
PIPE_BYTES = 32_768  # a pipe holds 65,536
GRACE_S = 0.5  # past the deadline before a worker is killed
FAILED_STARTS = 5  # in a row before it is an error
START_S = 30.0  # a worker may take to start on a busy machine


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one query. timeout_s: seconds. vm_steps: SQLite virtual-machine instructions. max_bytes: of the
    result's text and blobs. memory_mb: address space of a worker."""

    timeout_s: float = 5.0
    vm_steps: int = 200_000_000
    max_rows: int = 100_000
    max_bytes: int = 64_000_000
    memory_mb: int = 1_024


@dataclass(frozen=True, slots=True)
class Query:
    """`database` is the path of the SQLite file.

    reverse: scan tables backwards where no ORDER BY says how (SQLite's reverse_unordered_selects): a result
    that then differs depends on the order of rows in the file.
    """

    database: str
    sql: str
    reverse: bool = False


@dataclass(frozen=True, slots=True)
class Execution:
    """What became of a query.

    status: ok; error (SQLite refused it); timeout (steps or seconds); too_many_rows (or bytes); denied (not a
    single read-only query); no_database (missing, not SQLite, corrupt); crashed (its worker died twice).
    rows are empty where a digest was asked for; row_count counts them all the same. seconds: in the worker.
    all_null: there are rows, and every value in them is NULL.
    """

    status: Status
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()
    row_count: int = 0
    digest: str | None = None
    error: str | None = None
    seconds: float = 0.0
    all_null: bool = False

    @property
    def ok(self) -> bool:
        return self.status == "ok"


@dataclass(frozen=True, slots=True)
class Pair:
    """A predicted SQL and the golds it may equal, on one database (the path of its SQLite file)."""

    database: str
    predicted: str
    golds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Judgement:
    """What became of a pair.

    status, error: of the prediction, as in Execution. match: its result equals that of a gold. reason: why, or
    why not, in words. empty: the result of the gold it equals has no rows (its own, where it equals none).
    failed: (status, error) of each gold that did not run. golds: how many there are. seconds: in the worker.
    refuted: right on the database and wrong on a neighbour of its test suite (curate.sql.testsuite).
    """

    status: Status
    match: bool
    reason: str | None
    empty: bool
    failed: tuple[tuple[str, str], ...]
    golds: int
    error: str | None = None
    seconds: float = 0.0
    refuted: bool = False


@dataclass(slots=True)
class _Job:
    """A distinct query or pair. `alone`: it was at work when a worker died, and has one more try by itself."""

    index: int
    message: tuple[Any, ...]
    alone: bool = False


@dataclass(slots=True)
class _Worker:
    """slot: which of the sandbox's workers it is. place: a memory shared with the process. done: answers received;
    what it has begun counts from the same start."""

    process: "subprocess.Popen[bytes]"
    slot: int
    place: mmap.mmap
    done: int = 0
    sent: int = 0
    sent_before: int = 0  # the last message
    ready: bool = False
    buffer: bytearray = field(default_factory=bytearray)
    batch: deque[_Job] = field(default_factory=deque)
    since: float = field(default_factory=time.monotonic)

    def at(self) -> tuple[int, int]:
        """Which job of the batch the process is at (0 is the next one to be answered), and in which phase."""
        begun, phase, _ = PLACE.unpack_from(self.place, 0)
        return max(0, begun - self.done - 1), phase

    def silent_s(self, now: float) -> float:
        """Seconds since it was last heard of, or began to run the SQL it is at."""
        began: float = PLACE.unpack_from(self.place, 0)[2]
        return now - max(self.since, min(now, began))

    @property
    def has_read(self) -> bool:
        """Whether it has read all it was sent, so that its pipe is empty."""
        return bool(PLACE.unpack_from(self.place, 0)[0] > self.sent_before)

    @property
    def pipe(self) -> int:
        stream = self.process.stdout
        if stream is None:
            raise OSError("the worker has no output")
        return stream.fileno()


class Sandbox:
    """`workers` processes that execute queries under `limits`; use it as a context manager."""

    def __init__(self, workers: int = 1, limits: Limits | None = None) -> None:
        if workers < 1:
            raise ValueError(f"a sandbox needs at least one worker, not {workers}")
        self.limits = limits or Limits()
        self.size = workers
        self._workers: list[_Worker] = []
        self._failed_starts = 0  # since one succeeded

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the workers. The sandbox can be used again; it starts new ones."""
        for worker in self._workers:
            _end(worker)
        self._workers = []

    def run(self, queries: Sequence[Query], *, digest: str | None = None) -> list[Execution]:
        """Execute every query; answers in the order of the queries, identical ones executed once.

        digest: a comparison mode; the answer then has the result's digest and no rows.
        """
        distinct: dict[Query, int] = {}
        for query in queries:
            distinct.setdefault(query, len(distinct))
        jobs = [_Job(i, _run_message(query, digest)) for query, i in distinct.items()]
        answers = self._answers(jobs)
        found = [Execution(*answers[i]) for i in range(len(jobs))]
        return [found[distinct[query]] for query in queries]

    def judge(self, pairs: Sequence[Pair], mode: str) -> list[Judgement]:
        """Execute and compare every pair under a comparison mode; in order, identical pairs once.

        Rows never leave the workers, and each worker remembers the results of golds. Raises ValueError for an
        unknown mode.
        """
        if mode not in MODES:
            raise ValueError(f"unknown comparison mode '{mode}'; one of {', '.join(MODES)}")
        distinct: dict[Pair, int] = {}
        for pair in pairs:
            distinct.setdefault(pair, len(distinct))
        jobs = [_Job(i, _judge_message(pair, mode)) for pair, i in distinct.items()]
        answers = self._answers(jobs)
        found = [_judgement(answers[i], len(pair.golds)) for pair, i in distinct.items()]
        return [found[distinct[pair]] for pair in pairs]

    def _answers(self, jobs: Sequence[_Job]) -> dict[int, tuple[Any, ...]]:
        answers: dict[int, tuple[Any, ...]] = {}
        wanted = max(len(self._workers), min(self.size, -(-len(jobs) // BATCH) or 1))
        waiting = _Waiting(wanted)
        for job in jobs:
            waiting.add(job)
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                selector.register(worker.pipe, selectors.EVENT_READ, worker)
            try:
                while len(answers) < len(jobs):
                    while len(self._workers) < wanted:
                        worker = self._start()
                        selector.register(worker.pipe, selectors.EVENT_READ, worker)
                    for worker in self._workers:
                        if worker.ready and len(worker.batch) <= LOW:
                            _send(worker, waiting)
                    for key, _ in selector.select(self._patience()):
                        worker = key.data
                        if not self._receive(worker, answers):
                            self._bury(worker, selector, waiting, answers, "died")
                    for worker in self._overdue():
                        self._bury(worker, selector, waiting, answers, "overdue")
            except BaseException:
                self.close()
                raise
        return answers

    def _start(self) -> _Worker:
        memory = os.memfd_create("place")
        os.ftruncate(memory, mmap.PAGESIZE)
        settings = {
            "place": memory,
            "timeout_s": self.limits.timeout_s,
            "vm_steps": self.limits.vm_steps,
            "max_rows": self.limits.max_rows,
            "max_bytes": self.limits.max_bytes,
            "memory_mb": self.limits.memory_mb,
            "parent": os.getpid(),
        }
        script = Path(__file__).with_name("sandbox_worker.py")
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(script), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=(memory,),
        )
        taken = {w.slot for w in self._workers}
        slot = next(i for i in range(self.size) if i not in taken)
        worker = _Worker(process, slot, mmap.mmap(memory, mmap.PAGESIZE))
        os.close(memory)
        self._workers.append(worker)
        return worker

    def _allowed(self, worker: _Worker) -> float | None:
        """Seconds a worker may be silent, or None when nothing is expected of it."""
        if not worker.ready:
            return START_S
        return self.limits.timeout_s + GRACE_S if worker.batch else None

    def _patience(self) -> float:
        now = time.monotonic()
        left = [
            allowed - worker.silent_s(now)
            for worker in self._workers
            if (allowed := self._allowed(worker)) is not None
        ]
        return max(0.0, min(left, default=1.0))

    def _overdue(self) -> list[_Worker]:
        now = time.monotonic()
        return [
            worker
            for worker in self._workers
            if (allowed := self._allowed(worker)) is not None and worker.silent_s(now) > allowed
        ]

    def _receive(self, worker: _Worker, answers: dict[int, tuple[Any, ...]]) -> bool:
        """Take what a worker wrote. False when it has died."""
        data = os.read(worker.pipe, 1 << 20)
        if not data:
            return False
        worker.buffer += data
        start = 0
        while len(worker.buffer) - start >= 4:
            end = start + 4 + struct.unpack_from(">I", worker.buffer, start)[0]
            if len(worker.buffer) < end:
                break
            value = marshal.loads(worker.buffer[start + 4 : end])
            start, worker.since = end, time.monotonic()
            if value == "ready":
                worker.ready = True
                self._failed_starts = 0
            else:
                answers[worker.batch.popleft().index] = value
                worker.done += 1
        if start:
            del worker.buffer[:start]
        else:
            worker.since = time.monotonic()  # a long answer is arriving
        return True

    def _bury(
        self,
        worker: _Worker,
        selector: selectors.BaseSelector,
        waiting: "_Waiting",
        answers: dict[int, tuple[Any, ...]],
        why: Literal["died", "overdue"],
    ) -> None:
        """Replace a worker. The query it was at is answered (or tried once more, alone); the rest go back."""
        selector.unregister(worker.pipe)
        self._workers.remove(worker)
        was_ready, batch = worker.ready, worker.batch
        at, phase = worker.at()
        in_gold = phase == GOLD
        _end(worker)
        if not was_ready:
            self._failed_starts += 1
            if self._failed_starts > FAILED_STARTS:
                raise OSError("sandbox workers cannot be started")
        if batch:
            job = batch[min(at, len(batch) - 1)]
            batch.remove(job)
            if why == "overdue":
                detail = f"killed {GRACE_S:g} s past its {self.limits.timeout_s:g} s"
                answers[job.index] = _lost(job, "timeout", detail, in_gold)
            elif job.alone:
                answers[job.index] = _lost(job, "crashed", "its worker died twice", in_gold)
            else:
                job.alone = True
                batch.append(job)
        waiting.give_back(worker.slot, batch)


def _run_message(query: Query, mode: str | None) -> tuple[Any, ...]:
    ordered = mode is not None and _orders(query.sql, mode)
    return ("run", query.database, query.sql, mode, ordered, query.reverse)


def _judge_message(pair: Pair, mode: str) -> tuple[Any, ...]:
    golds = tuple((sql, *_order(sql, mode)) for sql in pair.golds)
    return ("judge", pair.database, pair.predicted, golds, mode)


@lru_cache(maxsize=100_000)
def _orders(sql: str, mode: str) -> bool:
    return orders(sql, mode)


@lru_cache(maxsize=100_000)
def _order(sql: str, mode: str) -> tuple[bool, str | None]:
    """Whether a gold orders its result, and the same query with the values it orders by as further outputs."""
    if not orders(sql, mode):
        return False, None
    if mode != "strict":
        return True, None
    from curate.sql.canonical import with_order_keys

    return True, with_order_keys(sql)


def _judgement(answer: tuple[Any, ...], golds: int) -> Judgement:
    status, error, failed, place, reason, empty, seconds = answer
    return Judgement(status, place >= 0, reason, empty, failed, golds, error, seconds)


def _lost(job: _Job, status: Status, detail: str, in_gold: bool) -> tuple[Any, ...]:
    """The answer that a worker did not live to give. A gold at which it died is a gold that did not run."""
    if job.message[0] == "run":
        return (status, (), (), 0, None, detail)
    if in_gold:
        return ("ok", None, ((status, detail),), -1, None, False, 0.0)
    return (status, detail, (), -1, None, False, 0.0)


class _Waiting:
    """Jobs by slot: those of one database go to one worker, which has it open and knows its golds' results. A
    worker with nothing of its own left takes from the fullest."""

    def __init__(self, slots: int) -> None:
        self.queues: list[deque[_Job]] = [deque() for _ in range(slots)]

    def add(self, job: _Job) -> None:
        self.queues[zlib.crc32(job.message[1].encode("utf-8", "surrogatepass")) % len(self.queues)].append(
            job
        )

    def give_back(self, slot: int, jobs: Iterable[_Job]) -> None:
        self.queues[slot % len(self.queues)].extendleft(reversed(list(jobs)))

    def of(self, slot: int) -> deque[_Job]:
        own = self.queues[slot % len(self.queues)]
        return own or max(self.queues, key=len)


def _send(worker: _Worker, waiting: _Waiting) -> None:
    """Give a worker its next batch, if there is one; a query that saw a worker die goes alone.

    A worker that still has work may be writing and not reading, so it gets no more than its empty pipe holds.
    """
    queue = waiting.of(worker.slot)
    busy = bool(worker.batch)
    if not queue or (busy and (worker.batch[0].alone or queue[0].alone or not worker.has_read)):
        return
    batch = [queue.popleft()]
    while queue and len(batch) < BATCH and not batch[0].alone and not queue[0].alone:
        batch.append(queue.popleft())
    data = marshal.dumps([job.message for job in batch])
    if busy and len(data) > PIPE_BYTES:
        queue.extendleft(reversed(batch))
        return
    worker.batch.extend(batch)
    worker.sent_before, worker.sent = worker.sent, worker.sent + len(batch)
    if not busy:
        worker.since = time.monotonic()
    stream = worker.process.stdin
    if stream is None:
        raise OSError("the worker has no input")
    try:
        stream.write(struct.pack(">I", len(data)) + data)
        stream.flush()
    except BrokenPipeError:
        return  # it died; the end of its output says so


def _end(worker: _Worker) -> None:
    worker.place.close()
    process = worker.process
    process.kill()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            try:
                stream.close()
            except BrokenPipeError:
                continue
    process.wait()

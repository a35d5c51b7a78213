"""One machine: tasks through spawned processes (never forked: polars and its threads are loaded)."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import wait as wait_for
from types import TracebackType
from typing import Any, Self

AHEAD = 4  # tasks submitted per worker: enough to keep it busy, few enough to bound memory


@dataclass(frozen=True, slots=True)
class Lost:
    """A task whose worker died, twice: the second time alone."""

    reason: str


class LocalEngine:
    """Runs tasks in `workers` processes; with one worker, in this process."""

    def __init__(self, workers: int | None = None):
        self.workers = workers or os.cpu_count() or 1
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=error is None, cancel_futures=True)
            self._pool = None

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """(index of the task, what `function` returned or `Lost`), in the order of completion.

        An exception that `function` raises is raised here.
        """
        if self.workers == 1 or len(tasks) <= 1:
            for i, task in enumerate(tasks):
                yield i, function(task)
            return
        orphans: list[int] = []
        yield from self._spread(function, tasks, orphans)
        for i in sorted(orphans):
            yield i, _alone(function, tasks[i])

    def _spread(
        self, function: Callable[[Any], Any], tasks: Sequence[Any], orphans: list[int]
    ) -> Iterator[tuple[int, Any]]:
        if self._pool is None:
            self._pool = _pool(self.workers)
        todo = iter(range(len(tasks)))
        running: dict[Future[Any], int] = {}
        done: set[int] = set()
        try:
            while True:
                while len(running) < AHEAD * self.workers and (i := next(todo, None)) is not None:
                    running[self._pool.submit(function, tasks[i])] = i
                if not running:
                    return
                finished, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    i = running[future]
                    value = future.result()
                    running.pop(future)
                    done.add(i)
                    yield i, value
        except BrokenProcessPool:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
            orphans.extend(i for i in range(len(tasks)) if i not in done)


def _alone(function: Callable[[Any], Any], task: Any) -> Any:
    with _pool(1) as pool:
        try:
            return pool.submit(function, task).result()
        except BrokenProcessPool:
            return Lost("the worker process died (killed, or out of memory)")


def _pool(workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn"), initializer=_end_with_parent
    )


def _end_with_parent() -> None:
    """A pool worker does not notice that its parent was killed; this thread does, and ends it."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait_for([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()

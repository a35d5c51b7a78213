"""Progress of long work: a bar on a terminal, plain lines in a log."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

LOG_EVERY_S = 10.0


class Advance(Protocol):
    def __call__(self, rows: int) -> None: ...


class _Speed(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f} rows/s" if task.speed else "")


class Reporter:
    """Says on standard error what is being done. `quiet` says nothing."""

    def __init__(self, *, quiet: bool = False):
        self.console = Console(stderr=True, quiet=quiet, highlight=False)
        self.quiet = quiet

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    @contextmanager
    def task(self, name: str, total: int) -> Iterator[Advance]:
        """Count rows up to `total`; the caller reports them by calling what this gives."""
        if self.console.is_terminal and not self.quiet:
            with self._bar() as bar:
                task = bar.add_task(name, total=total)
                yield lambda rows: bar.advance(task, rows)
            return
        yield self._lines(name, total)

    def _lines(self, name: str, total: int) -> Advance:
        done, started = 0, time.monotonic()
        said = started

        def advance(rows: int) -> None:
            nonlocal done, said
            done += rows
            now = time.monotonic()
            if now - said >= LOG_EVERY_S and done < total:
                said = now
                rate = done / (now - started)
                self.say(f"{name}: {done:,}/{total:,} rows, {rate:,.0f} rows/s")

        return advance

    def _bar(self) -> Progress:
        return Progress(
            SpinnerColumn(),
            TextColumn("{task.description:>14}"),
            BarColumn(),
            MofNCompleteColumn(),
            _Speed(),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
        )

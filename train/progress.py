"""What a run tells its user on standard error: a bar on a terminal, plain lines in a log."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

LOG_EVERY_S = 10.0

Advance = Callable[..., None]
"""advance(count, note=""): `count` more are done; the note (a few figures) is shown beside it."""


class Reporter:
    """`quiet` says nothing: for every process but the first, and in tests."""

    def __init__(self, *, quiet: bool = False):
        self.console = Console(stderr=True, quiet=quiet, highlight=False)

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    @contextmanager
    def task(self, name: str, total: int, unit: str, done: int = 0) -> Iterator[Advance]:
        """Count up to `total`, from `done` where a run goes on."""
        if not self.console.is_terminal:
            yield self._lines(name, total, unit, done)
            return
        columns = (
            TextColumn("{task.description:>10}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with Progress(*columns, console=self.console, transient=True) as bar:
            task = bar.add_task(name, total=total, completed=done, note="")
            noted = ""

            def advance(count: int, note: str = "") -> None:
                nonlocal noted
                noted = note or noted
                bar.update(task, advance=count, note=noted)

            yield advance

    def _lines(self, name: str, total: int, unit: str, done: int) -> Advance:
        said = time.monotonic()

        def advance(count: int, note: str = "") -> None:
            nonlocal done, said
            done += count
            if time.monotonic() - said >= LOG_EVERY_S and done < total:
                said = time.monotonic()
                self.say(f"{name}: {done:,}/{total:,} {unit}" + (f", {note}" if note else ""))

        return advance

"""Staged draws: which prompts an optimiser step trains on.

TRL's own sampler shuffles the data set (so a curriculum's order is lost) and, resumed in a later epoch,
starts again with the first epoch's permutation. Here every draw is a pure function of (seed, step, index):
there are no epochs, no state to save, and a resumed run draws what the uninterrupted one would have drawn.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

from train.schedule import Schedule, shares

REDRAWS = 16


class StagedDraws:
    """Draws positions of training rows, stage by the schedule's shares and row by its weight.

    stages, weights: one value a row; rows of weight 0 are never drawn. prompts: rows drawn a step.
    Raises ValueError where a stage has no weight at all or a weight is negative.
    """

    def __init__(
        self, stages: Sequence[int], weights: Sequence[float], schedule: Schedule, *, prompts: int, seed: int
    ):
        if len(stages) != len(weights):
            raise ValueError(f"{len(stages)} stages for {len(weights)} weights")
        if any(w < 0 for w in weights):
            raise ValueError("weights must not be negative")
        self.schedule, self.prompts, self.seed = schedule, prompts, seed
        self.stages = sorted(set(stages))
        self._rows = {s: [i for i, t in enumerate(stages) if t == s and weights[i] > 0] for s in self.stages}
        for stage, rows in self._rows.items():
            if not rows:
                raise ValueError(f"stage {stage} has no row with a positive weight")
        self._edges = {s: list(accumulate(weights[i] for i in rows)) for s, rows in self._rows.items()}

    def draw(self, step: int) -> list[int]:
        """The rows of one optimiser step, in the order in which they are generated for.

        Stages are placed by systematic sampling (one uniform start, equal distances), so that a step's mix
        differs from the shares by less than one prompt a stage. Within a step a row is drawn again only
        where its stage has hardly any other.
        """
        wanted = shares(self.schedule, step, self.stages)
        edges = list(accumulate(wanted[s] for s in self.stages))
        last = max(i for i, s in enumerate(self.stages) if wanted[s] > 0)
        start = self._uniform(step, "stage")
        taken: set[int] = set()
        rows = []
        for index in range(self.prompts):
            at = bisect_right(edges, (index + start) / self.prompts)
            row = self._row(self.stages[min(at, last)], step, index, taken)
            taken.add(row)
            rows.append(row)
        return rows

    def _row(self, stage: int, step: int, index: int, taken: set[int]) -> int:
        rows, edges = self._rows[stage], self._edges[stage]
        row = -1
        for attempt in range(REDRAWS):
            point = self._uniform(step, index, attempt) * edges[-1]
            row = rows[min(bisect_right(edges, point), len(rows) - 1)]
            if row not in taken:
                break
        return row

    def _uniform(self, *key: object) -> float:
        """A number in [0, 1) from the seed and the key, the same on every machine."""
        text = "\x1f".join(map(str, (self.seed, *key)))
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big") / 2**56


class CurriculumSampler:
    """Indices in the order TRL 1.16 expects of its RepeatSampler.

    Each of `windows` generation windows yields its prompts, each `mini_repeat_count` times in a row (its
    group of completions), and the whole `repeat_count` times (once a micro-step that uses the generations).
    A window spans `steps_per_window` optimiser steps and draws with the number of its first.
    One pass covers the whole run, so that the trainer never begins a second epoch.
    """

    def __init__(
        self,
        draws: StagedDraws,
        *,
        windows: int,
        mini_repeat_count: int,
        repeat_count: int = 1,
        steps_per_window: int = 1,
    ):
        self.draws, self.windows = draws, windows
        self.mini_repeat_count, self.repeat_count = mini_repeat_count, repeat_count
        self.steps_per_window = steps_per_window

    def __iter__(self) -> Iterator[int]:
        for window in range(self.windows):
            chunk = self.draws.draw(window * self.steps_per_window)
            for _ in range(self.repeat_count):
                for row in chunk:
                    for _ in range(self.mini_repeat_count):
                        yield row

    def __len__(self) -> int:
        return self.windows * self.draws.prompts * self.mini_repeat_count * self.repeat_count

"""Which stage is drawn when: a pure function from an optimiser step to the share of each stage.

Definition, for stages s1 < s2 < ... < sn (those the shards have; a missing stage is simply not there):

- warm-up: while step < warmup_steps only s1 is drawn.
- growth number k = 1 + (step - warmup_steps) // interval_steps: the first growth happens at
  step = warmup_steps, one more at each interval.
- stages open in order, one a growth: after k growths o = min(k, n - 1) of the later stages are open.
- the open ones share L = min(k * increment, (1 - f) * o / (n - 1)) equally, s1 has the rest, where
  f = min(floor, 1/n) is the share below which s1 never falls (no more than 1/n can go to every stage).

So s1 only ever falls, every other stage only ever rises, the shares sum to 1, and in the end each stage holds
at least f: the easy stages are faded but never vanish, because a policy forgets what it is no longer shown.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Schedule:
    """In optimiser steps, as in curriculum.json. increment and floor are shares in [0, 1]."""

    warmup_steps: int = 20
    interval_steps: int = 20
    increment: float = 0.15
    floor: float = 0.2

    def __post_init__(self) -> None:
        if self.warmup_steps < 0 or self.interval_steps < 1:
            raise ValueError(
                f"schedule: warmup_steps must be >= 0 and interval_steps >= 1, "
                f"not {self.warmup_steps} and {self.interval_steps}"
            )
        if not 0 < self.increment <= 1 or not 0 <= self.floor <= 1:
            raise ValueError(
                "schedule: increment must be in (0, 1] and floor in [0, 1], "
                f"not {self.increment} and {self.floor}"
            )


def shares(schedule: Schedule, step: int, stages: Sequence[int]) -> dict[int, float]:
    """The share of draws of each stage at an optimiser step (counted from 0), in the order of `stages`.

    Raises ValueError without stages or for a negative step.
    """
    if not stages:
        raise ValueError("a schedule needs at least one stage")
    if step < 0:
        raise ValueError(f"step must be >= 0, not {step}")
    first, *later = sorted(set(stages))
    if not later or step < schedule.warmup_steps:
        return {first: 1.0} | dict.fromkeys(later, 0.0)
    floor = min(schedule.floor, 1 / (1 + len(later)))
    growths = 1 + (step - schedule.warmup_steps) // schedule.interval_steps
    opened = min(growths, len(later))
    held = min(growths * schedule.increment, (1 - floor) * opened / len(later))
    return {first: 1 - held} | {s: held / opened if i < opened else 0.0 for i, s in enumerate(later)}

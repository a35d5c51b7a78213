from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.sampler import CurriculumSampler, StagedDraws
from train.schedule import Schedule, shares

SCHEDULE = Schedule(warmup_steps=3, interval_steps=2, increment=0.3, floor=0.2)
STAGES = [1] * 40 + [2] * 30 + [3] * 20


def draws(seed: int = 0, prompts: int = 16, weights: list[float] | None = None) -> StagedDraws:
    return StagedDraws(STAGES, weights or [1.0] * len(STAGES), SCHEDULE, prompts=prompts, seed=seed)


@given(st.integers(0, 200), st.integers(0, 5), st.integers(1, 32))
def test_a_step_mixes_the_stages_as_scheduled(step, seed, prompts):
    rows = draws(seed, prompts).draw(step)
    assert len(rows) == prompts
    counts = Counter(STAGES[row] for row in rows)
    for stage, share in shares(SCHEDULE, step, [1, 2, 3]).items():
        assert abs(counts[stage] - share * prompts) < 1 + 1e-9


def test_draws_depend_on_seed_and_step_alone():
    one, other = draws(seed=7), draws(seed=7)
    other.draw(99)  # no state is left behind
    assert [one.draw(s) for s in range(30)] == [other.draw(s) for s in range(30)]
    assert draws(seed=8).draw(20) != one.draw(20)
    assert len({tuple(one.draw(s)) for s in range(200)}) == 200  # no epoch is ever replayed


def test_a_step_repeats_no_row_while_the_stage_has_others():
    for step in range(20):
        rows = draws(prompts=16).draw(step)
        assert len(set(rows)) == 16


def test_a_tiny_stage_still_fills_the_step():
    tiny = StagedDraws([1, 2], [1.0, 1.0], SCHEDULE, prompts=8, seed=0)
    assert Counter(tiny.draw(100)) == {0: 4, 1: 4} or set(tiny.draw(100)) == {0, 1}
    assert len(tiny.draw(100)) == 8


def test_rows_are_drawn_in_proportion_to_their_weights():
    weights = [0.0, 1.0, 3.0, *[1.0] * 37, *[1.0] * 50]
    sampler = draws(prompts=1, weights=weights)
    sampler.schedule = Schedule(warmup_steps=10**6)
    counts = Counter(row for step in range(20_000) for row in sampler.draw(step))
    expected = 20_000 / sum(weights[:40])
    assert counts[0] == 0
    assert counts[1] == pytest.approx(expected, rel=0.2)
    assert counts[2] == pytest.approx(3 * expected, rel=0.1)


def test_the_sampler_repeats_as_trl_expects():
    sampler = CurriculumSampler(draws(prompts=2), windows=3, mini_repeat_count=4, repeat_count=2)
    indices = list(sampler)
    assert len(indices) == len(sampler) == 3 * 2 * 2 * 4
    for window in range(3):
        a, b = draws(prompts=2).draw(window)
        once = [a] * 4 + [b] * 4
        assert indices[window * 16 : (window + 1) * 16] == once * 2


def test_a_resumed_sampler_skips_to_the_same_draws():
    """The trainer resumes by skipping batches: what follows must be what would have followed."""
    sampler = CurriculumSampler(draws(), windows=40, mini_repeat_count=8)
    longer = CurriculumSampler(draws(), windows=60, mini_repeat_count=8)
    done = 25 * 16 * 8
    assert list(islice(sampler, done, None)) == list(islice(longer, done, len(sampler)))


def test_windows_of_several_steps_draw_by_their_first_step():
    sampler = CurriculumSampler(draws(prompts=2), windows=2, mini_repeat_count=1, steps_per_window=3)
    assert list(sampler) == draws(prompts=2).draw(0) + draws(prompts=2).draw(3)


@pytest.mark.parametrize(
    "stages, weights, message",
    [
        ([1, 1], [1.0], "2 stages for 1 weights"),
        ([1, 2], [1.0, -1.0], "negative"),
        ([1, 2], [1.0, 0.0], "stage 2 has no row"),
    ],
)
def test_rows_that_cannot_be_drawn_are_refused(stages, weights, message):
    with pytest.raises(ValueError, match=message):
        StagedDraws(stages, weights, SCHEDULE, prompts=2, seed=0)

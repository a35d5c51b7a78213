import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.schedule import Schedule, shares

schedules = st.builds(
    Schedule,
    warmup_steps=st.integers(0, 50),
    interval_steps=st.integers(1, 30),
    increment=st.floats(0.01, 1.0),
    floor=st.floats(0.0, 1.0),
)
stages = st.lists(st.integers(1, 9), min_size=1, max_size=5, unique=True)


@given(schedules, stages, st.integers(0, 2000))
def test_shares_are_a_distribution_over_the_stages(schedule, present, step):
    found = shares(schedule, step, present)
    assert sorted(found) == sorted(present)
    assert sum(found.values()) == pytest.approx(1)
    assert min(found.values()) >= 0


@given(schedules, stages, st.integers(0, 500))
def test_the_first_stage_only_falls_and_never_below_the_floor(schedule, present, step):
    first, floor = min(present), min(schedule.floor, 1 / len(present))
    now, later = shares(schedule, step, present), shares(schedule, step + 1, present)
    assert later[first] <= now[first] + 1e-12
    assert now[first] >= floor - 1e-12
    for stage in set(present) - {first}:
        assert later[stage] >= now[stage] - 1e-12


@given(schedules, stages)
def test_every_stage_holds_the_floor_in_the_end(schedule, present):
    final = shares(schedule, 10**6, present)
    assert min(final.values()) >= min(schedule.floor, 1 / len(present)) - 1e-12


def test_the_documented_example():
    schedule = Schedule(warmup_steps=20, interval_steps=20, increment=0.15, floor=0.2)
    assert shares(schedule, 19, [1, 2, 3]) == {1: 1.0, 2: 0.0, 3: 0.0}
    assert shares(schedule, 20, [1, 2, 3]) == pytest.approx({1: 0.85, 2: 0.15, 3: 0.0})
    assert shares(schedule, 40, [1, 2, 3]) == pytest.approx({1: 0.70, 2: 0.15, 3: 0.15})
    assert shares(schedule, 60, [1, 2, 3]) == pytest.approx({1: 0.55, 2: 0.225, 3: 0.225})
    assert shares(schedule, 10_000, [1, 2, 3]) == pytest.approx({1: 0.2, 2: 0.4, 3: 0.4})


def test_a_missing_stage_leaves_no_gap():
    schedule = Schedule(warmup_steps=0, interval_steps=1, increment=0.5, floor=0.2)
    assert shares(schedule, 0, [2, 5]) == {2: 0.5, 5: 0.5}
    assert shares(schedule, 1, [2, 5]) == pytest.approx({2: 0.2, 5: 0.8})
    assert shares(schedule, 7, [3]) == {3: 1.0}


@pytest.mark.parametrize(
    "values",
    [{"warmup_steps": -1}, {"interval_steps": 0}, {"increment": 0.0}, {"increment": 1.1}, {"floor": 2.0}],
)
def test_bad_settings_are_refused(values):
    with pytest.raises(ValueError, match="schedule"):
        Schedule(**values)


def test_no_stages_and_negative_steps_are_refused():
    with pytest.raises(ValueError, match="at least one stage"):
        shares(Schedule(), 0, [])
    with pytest.raises(ValueError, match="step"):
        shares(Schedule(), -1, [1])

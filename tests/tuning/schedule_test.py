"""tuning/schedule.py: warm-up, constant part, and a fall that can be called for at any time."""

import pytest

from tuning.schedule import Budget, TrainingState, cosine_factor, rate_factor


def factors(budget, state, steps, warmup=4):
    result = []
    for _ in range(steps):
        result.append(rate_factor(budget, state, warmup))
        state.step += 1
    return result


def test_whole_course_by_steps():
    result = factors(Budget(steps=20), TrainingState(), 21)
    assert result[:4] == [0.25, 0.5, 0.75, 1.0]
    assert result[4:17] == [1.0] * 13
    assert result[17:] == [0.75, 0.5, 0.25, 0.0]


def test_smaller_budget_falls_over_all_that_is_left():
    state = TrainingState(step=50, seconds=1000.0)
    budget = Budget(minutes=20)  # 1200 seconds: past the last fifth's begin
    assert rate_factor(budget, state, 4) == 1.0
    state.seconds = 1100.0
    assert rate_factor(budget, state, 4) == pytest.approx(0.5)
    state.seconds = 1200.0
    assert rate_factor(budget, state, 4) == 0.0


def test_larger_budget_returns_to_the_constant_part():
    state = TrainingState(step=50, seconds=590.0)
    assert 0 < rate_factor(Budget(minutes=10), state, 4) <= 1
    assert state.decay_start is not None
    assert rate_factor(Budget(minutes=20), state, 4) == 1.0
    assert state.decay_start is None


def test_state_survives_a_checkpoint():
    state = TrainingState(step=7, seconds=1.5, tokens=9, decay_start=1.0)
    restored = TrainingState()
    restored.load_state_dict(state.state_dict())
    assert restored == state


def test_budget_is_one_of_two():
    for wrong in ({}, {"minutes": 1, "steps": 1}):
        with pytest.raises(ValueError, match="either"):
            Budget(**wrong)


def test_half_a_cosine_behind_a_warm_up():
    factors = [cosine_factor(step / 20, step, 4) for step in range(21)]
    assert factors[0] == pytest.approx(0.25)
    assert max(factors) == factors[3]
    assert factors[10] == pytest.approx(0.5)
    assert factors[20] == pytest.approx(0)
    assert all(a > b for a, b in zip(factors[3:], factors[4:], strict=False))
    assert cosine_factor(1.5, 30, 0) == pytest.approx(0), "a budget may be overdrawn"

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agents.common.multiplier import dual_ascent

numbers = st.floats(0, 10, allow_nan=False)


def scalar(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


@given(multiplier=numbers, cost=numbers, epsilon=st.floats(0, 1), step=st.floats(1e-3, 1))
def test_formula(multiplier, cost, epsilon, step):
    moved = multiplier + step * (cost - epsilon)
    assert float(dual_ascent(scalar(multiplier), scalar(cost), epsilon, step)) == pytest.approx(max(0.0, moved))


def test_slack_constraint_ends_at_exactly_zero():
    multiplier = scalar(3.0)
    for _ in range(1000):
        multiplier = dual_ascent(multiplier, scalar(0.02), 0.1, 0.05)
    assert float(multiplier) == 0.0


def test_step_is_proportional_to_the_violation():
    start = scalar(1.0)
    once = dual_ascent(start, scalar(0.1 + 0.25), 0.1, 0.05) - start
    twice = dual_ascent(start, scalar(0.1 + 0.5), 0.1, 0.05) - start
    assert float(twice) == pytest.approx(2 * float(once))
    assert float(once) == pytest.approx(0.0125)


def test_zero_budget_gives_numbers():
    multiplier = scalar(0.0)
    for _ in range(10):
        multiplier = dual_ascent(multiplier, scalar(0.0), 0.0, 0.05)
    assert float(multiplier) == 0.0

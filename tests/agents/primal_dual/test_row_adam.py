"""Adam by row against loops in plain Python, and what it is for: proportions within a row, equal speed of rows."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agents.primal_dual.row_adam import RowAdam


def by_hand(start, gradients, rate):
    """The entries after all steps, one by one."""
    entries = start.copy()
    rows = start.reshape(len(start), -1)
    for row in range(len(rows)):
        first, second = [0.0] * rows.shape[1], 0.0
        for number, gradient in enumerate(gradients, 1):
            values = gradient.reshape(len(start), -1)[row]
            second = 0.999 * second + 0.001 * sum(value * value for value in values) / len(values)
            for column, value in enumerate(values):
                first[column] = 0.9 * first[column] + 0.1 * value
                step = first[column] / (1 - 0.9**number) / (math.sqrt(second / (1 - 0.999**number)) + 1e-12)
                entries.reshape(len(start), -1)[row, column] += rate * step
    return entries


@given(shape=st.sampled_from([(3, 4), (2, 3, 5), (4, 1)]), steps=st.integers(1, 6), seed=st.integers(0, 1000))
def test_steps_are_the_formula(shape, steps, seed):
    rng = np.random.default_rng(seed)
    start, gradients = rng.standard_normal(shape), rng.standard_normal((steps, *shape))
    parameter = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = RowAdam([parameter], lr=0.03)
    for gradient in gradients:
        parameter.grad = torch.from_numpy(gradient.copy())
        optimizer.step()
    np.testing.assert_allclose(parameter.detach().numpy(), by_hand(start, gradients, 0.03), rtol=1e-9, atol=1e-12)


def test_rows_are_equally_fast_and_keep_their_proportions():
    gradient = torch.tensor([[3.0, -4.0], [3e-8, -4e-8], [0.0, 0.0]], dtype=torch.float64)
    parameter = torch.nn.Parameter(torch.zeros_like(gradient))
    optimizer = RowAdam([parameter], lr=0.1)
    for _ in range(5):
        parameter.grad = gradient.clone()
        optimizer.step()
    # 5 steps up a constant gradient, of root mean square 0.1 in every row: (3, -4) / sqrt(12.5).
    moved = [0.5 * 3 / math.sqrt(12.5), -0.5 * 4 / math.sqrt(12.5)]
    wanted = torch.tensor([moved, moved, [0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(parameter.detach(), wanted, rtol=1e-4, atol=0.0)


def test_climbs_a_hill():
    parameter = torch.nn.Parameter(torch.tensor([[4.0, -2.0], [1.0, 0.5]], dtype=torch.float64))
    optimizer = RowAdam([parameter], lr=0.05)
    for _ in range(2000):
        optimizer.zero_grad()
        (-(parameter - 1).square().sum()).backward()
        optimizer.step()
    assert parameter.detach().numpy() == pytest.approx(np.ones((2, 2)), abs=0.05)


def test_a_parameter_without_gradient_stays():
    parameter = torch.nn.Parameter(torch.ones(2, 2))
    RowAdam([parameter], lr=0.1).step()
    assert torch.equal(parameter.detach(), torch.ones(2, 2))

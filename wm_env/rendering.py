"""A picture of an episode, as Gymnasium's render mode `rgb_array` wants it."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wm_env.common.figures import Figure, pixels
from wm_env.optimum import RateBound
from wm_env.problem import Problem


def draw_frame(
    gained: Sequence[float], spent: Sequence[float], problem: Problem, bound: RateBound
) -> NDArray[np.uint8]:
    """What has been gained and what has been spent after every finished block; shape (360, 640, 3), uint8.

    Args:
        gained: sum of gamma^b r_b up to each of the finished blocks, in bits.
        spent: sum of gamma^b c_b up to each of them.
        problem: with the budget, the right dashed line.
        bound: what cannot be exceeded within the budget, the left dashed line.
    """
    blocks, epsilon = len(problem.blocks), problem.epsilon
    figure = Figure(figsize=(6.4, 3.6), dpi=100, layout="constrained")
    left, right = figure.subplots(1, 2)
    finished = range(1, len(gained) + 1)
    left.bar(finished, gained, color="C0")
    left.set_ylabel("rate so far, bits")
    left.set_ylim(0, 1.25 * max(bound.rate, 1e-3, *gained))
    left.axhline(bound.rate, color="black", linestyle="--")
    name = "optimum" if bound.exact else "upper bound"
    left.set_title(f"dashed: {name}, {bound.rate:.4f} bits", fontsize="medium")
    right.bar(finished, spent, color=["C3" if cost > epsilon else "C0" for cost in spent])
    right.axhline(epsilon, color="black", linestyle="--")
    right.set_ylabel(f"{problem.cost.title} so far{problem.cost.unit and f', {problem.cost.unit}'}")
    right.set_title(f"dashed: budget, {epsilon:.4g}", fontsize="medium")
    right.set_ylim(0, 1.25 * max(epsilon, 1e-3, *spent))
    for axes in (left, right):
        axes.set_xlim(0.25, blocks + 0.75)
        axes.set_xticks(range(1, blocks + 1))
        axes.set_xlabel("block")
    return pixels(figure)

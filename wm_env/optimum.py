"""The highest rate under a budget, over all laws of a tree's candidates.

For a marginal law q of the candidates no label does better than I(U;X) - I(U;S) = H_q(X|S): the rate equals
I(U;X|S) - I(U;S|X), whose first term is at most H_q(X|S) and whose second is never negative. U = X reaches it, and so
does any labelling that is injective on the candidates of every state, a proper colouring. What is left is a concave
problem in the q's:

    maximise sum_b gamma^b H_q(X_b|S_b)  subject to  sum_b gamma^b c_b <= epsilon,    c_b = E D(q(.|S_b), P(.|S_b)).

With a multiplier beta it separates: the value to go of a state depends on nothing but the state, so Z is not needed
on the way back, and every state has a closed form, the best response of the cost (`wm_env.criteria.costs`): the cover
clipped between two multiples of 2^bonus if D is the total variation, the tilted cover if D is the KL divergence.

M labels that are too few for a proper colouring reach less: the rate of a block, H(U|S) - H(U|X), is at most log2 M.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.optimize import brentq
from torch import Tensor

from wm_env.common.arrays import Floats, Ints
from wm_env.common.foreign.torch_settings import usual_torch
from wm_env.criteria.costs import TOTAL_VARIATION, Cost
from wm_env.information import entropy
from wm_env.labels.colouring import colour_candidates
from wm_env.law import advance, values_ahead
from wm_env.tree import StateTree

COST_RESOLUTION = 1e-13
"""Budgets below this are rounding errors of a cost; they are treated as 0."""

FEASIBLE = 1e-9
"""A cost of at most epsilon plus this meets the limit; rounding in a sum of costs is far smaller."""


@dataclass(frozen=True)
class Optimum:
    """The best marginal laws for a budget, if there are labels enough.

    Attributes:
        marginals: q(x|s), one tensor (N, Q) per block, rows sum to 1, zero where the cover is zero.
        multiplier: beta, bits of rate per unit of budget, the slope of rate against epsilon; 0 where the budget
            does not bind; infinite at budget 0 if the cost is smooth.
        rate: sum_b gamma^b H_q(X_b|S_b), in bits, b = 1..B.
        cost: sum_b gamma^b c_b; epsilon where the budget binds.
    """

    marginals: tuple[Tensor, ...]
    multiplier: float
    rate: float
    cost: float


@dataclass(frozen=True)
class RateBound:
    """What no law with a given number of labels exceeds.

    Attributes:
        rate: in bits, at least sum_b gamma^b r_b of every law within the budget.
        exact: a law reaches it, that of `agents.planner.rate.plan`; where this is False no such law is known.
    """

    rate: float
    exact: bool


@usual_torch()
def rate_bound(tree: StateTree, optimum: Optimum, labels: int | None = None, gamma: float = 1.0) -> RateBound:
    """How much of `optimum` there is with M labels: the smaller of its rate and sum_b gamma^b log2 M.

    Exact if a proper colouring of every block's candidates with M colours is found.

    Args:
        tree: the tree of `optimum`.
        optimum: what `solve` returns for the tree, a budget and `gamma`.
        labels: M >= 1; None: as many as it takes.
        gamma: discount, in (0, 1].
    """
    if labels is None or all(int(colour_candidates(block).max()) < labels for block in tree.blocks):
        return RateBound(optimum.rate, exact=True)
    return rate_of_labels(optimum.rate, len(tree.blocks), labels, gamma, exact=False)


def rate_of_labels(rate: float, blocks: int, labels: int, gamma: float, exact: bool) -> RateBound:
    """`rate`, if it is known to be reached; else the smaller of it and sum_b gamma^b log2 M, b = 1..blocks."""
    if exact:
        return RateBound(rate, exact=True)
    most = sum(gamma ** (number + 1) * math.log2(labels) for number in range(blocks))
    return RateBound(min(rate, most), exact=False)


@usual_torch()
def solve(tree: StateTree, epsilon: float, gamma: float = 1.0, cost: Cost = TOTAL_VARIATION) -> Optimum:
    """The highest rate of any law on `tree`, with any number of labels, whose cost is at most `epsilon`.

    `rate_bound` says what is left of it with few labels. Exact up to rounding: the multiplier is found by Brent's
    method, everything else is closed form.

    Raises:
        ValueError: a budget that is negative or not a number, a discount outside (0, 1], or a finite budget of a cost
            whose best response is not known.
    """
    covers, children = zip(*((block.cover, block.child) for block in tree.blocks), strict=True)
    return solve_blocks(tree.prior, covers, children, epsilon, gamma, cost)


def solve_blocks(
    prior: Floats,
    covers: Sequence[Floats],
    children: Sequence[Ints],
    epsilon: float,
    gamma: float = 1.0,
    cost: Cost = TOTAL_VARIATION,
) -> Optimum:
    """`solve` for any graph of states, in which several paths may lead to one state.

    Args:
        prior: law of the first block's state, shape (N,).
        covers: P(x|s) of every block, shape (N, Q).
        children: next state of (s, x) of every block, shape (N, Q), -1 where there is none; the last is not used.
        epsilon, gamma, cost: as in `solve`.

    Raises:
        ValueError: as `solve`.
    """
    check_budget(epsilon, gamma)
    problem = _Sweeps(prior, covers, children, gamma, cost)
    free = problem.best_response(0.0)
    if problem.rate_and_cost(free)[1] <= epsilon:
        return problem.optimum(free, 0.0)
    dearest = problem.multiplier_of_cover()
    if epsilon <= COST_RESOLUTION:
        return problem.optimum(problem.covers, dearest)

    def above(beta: float) -> float:
        return problem.rate_and_cost(problem.best_response(beta))[1] - epsilon

    high = dearest * (1 + 1e-9)
    if math.isinf(dearest):
        high = next(beta for beta in (2.0**power for power in range(64)) if above(beta) <= 0)
    multiplier = brentq(above, 0.0, high, xtol=1e-14, rtol=1e-15)
    return problem.optimum(problem.best_response(multiplier), multiplier)


def check_budget(epsilon: float, gamma: float) -> None:
    """Check that epsilon >= 0 and 0 < gamma <= 1.

    Raises:
        ValueError: says which is not.
    """
    if not epsilon >= 0:
        raise ValueError(f"epsilon={epsilon}: a budget of 0 or more is needed")
    if not 0 < gamma <= 1:
        raise ValueError(f"gamma={gamma}: a discount in (0, 1] is needed")


def percent_of_optimum(rate: float, optimum: Optimum | RateBound) -> float:
    """100 * rate / optimal rate, for a rate summed over blocks with the same discount; 100 where both are 0.

    Above 100 only for laws that cost more than the budget of `optimum`.
    """
    return 100.0 * rate / optimum.rate if optimum.rate > 0 else 100.0


class _Sweeps:
    """Blocks of states as tensors, with the two sweeps that a multiplier needs."""

    def __init__(
        self, prior: Floats, covers: Sequence[Floats], children: Sequence[Ints], gamma: float, cost: Cost
    ) -> None:
        self.prior = torch.as_tensor(prior)
        self.covers = tuple(map(torch.as_tensor, covers))
        self.children = tuple(map(torch.as_tensor, children))
        self.gamma, self.cost = gamma, cost

    def best_response(self, multiplier: float) -> tuple[Tensor, ...]:
        """The laws that maximise rate - multiplier * cost, by backward induction."""
        laws: list[Tensor] = []
        value: Tensor | None = None
        for cover, child in zip(reversed(self.covers), reversed(self.children), strict=True):
            bonus = self.gamma * values_ahead(value, child)
            law = self.cost.best_response(cover, bonus, multiplier)
            value = entropy(law) + (law * bonus).sum(1) - multiplier * self.cost(law, cover)
            laws.append(law)
        return tuple(reversed(laws))

    def multiplier_of_cover(self) -> float:
        """The smallest multiplier whose best response is the cover: the slope of the frontier at epsilon = 0."""
        dearest = 0.0
        value: Tensor | None = None
        for cover, child in zip(reversed(self.covers), reversed(self.children), strict=True):
            bonus = self.gamma * values_ahead(value, child)
            dearest = max(dearest, self.cost.multiplier_of_cover(cover, bonus))
            value = entropy(cover) + (cover * bonus).sum(1)
        return dearest

    def rate_and_cost(self, laws: tuple[Tensor, ...]) -> tuple[float, float]:
        """(sum_b gamma^b H_q(X_b|S_b), sum_b gamma^b c_b)."""
        state_probs = self.prior
        rate = cost = 0.0
        for number, (law, cover, child) in enumerate(zip(laws, self.covers, self.children, strict=True)):
            weight = self.gamma ** (number + 1)
            rate += weight * float(state_probs @ entropy(law))
            cost += weight * float(state_probs @ self.cost(law, cover))
            if number + 1 < len(laws):
                state_probs = advance(state_probs, law, child, len(self.covers[number + 1]))
        return rate, cost

    def optimum(self, laws: tuple[Tensor, ...], multiplier: float) -> Optimum:
        return Optimum(laws, multiplier, *self.rate_and_cost(laws))

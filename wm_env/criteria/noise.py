"""The highest rate under a total-variation budget when the decoder receives blocks through a channel.

For every label U the rate of a block is I(U;Y) - I(U;S) <= I(U;Y|S) <= I(X;Y|S), since U - (X,S) - Y. I(X;Y|S) is
concave in the law q of each state, so the best q's are a concave programme,

    max sum_b gamma^b I(X_b;Y_b|S_b)  subject to  sum_b gamma^b c_b <= epsilon,

which separates with a multiplier beta as in `wm_env.optimum`. A state with value to go g(x) is solved by alternation:

    r(x|y) = posterior,    q = argmax H(q) + sum_x q(x) (sum_y K(y|x) log2 r(x|y) + g(x)) - beta V(q, p),

the second in closed form (`wm_env.criteria.costs`). The tangent of I at q bounds the state's maximum from above:
I(q') <= sum_x q'(x) D(K(.|x) || output law of q), and a linear function less beta V is largest where all mass that is
worth its price moves to the dearest candidate. Without noise the bound is that of `wm_env.optimum.solve`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wm_env.criteria.channel import BlockChannel
from wm_env.criteria.costs import TOTAL_VARIATION
from wm_env.information import LN2, cross_entropy, total_variation
from wm_env.law import occupations, values_ahead
from wm_env.optimum import COST_RESOLUTION, check_budget
from wm_env.tree import StateTree

_STEPS = 40
"""Most multipliers that are tried."""


@dataclass(frozen=True)
class NoisyBound:
    """What no law exceeds behind the channel.

    Attributes:
        rate: in bits, at least sum_b gamma^b r_b of every law within the budget, with any number of labels.
        reached: sum_b gamma^b I(X_b;Y_b|S_b) of `marginals`; the programme's value lies between the two.
        marginals: q(x|s), one tensor (N, Q) per block.
        multiplier: beta, bits per unit of budget.
        cost: sum_b gamma^b c_b of the marginals, at most epsilon.
    """

    rate: float
    reached: float
    marginals: tuple[Tensor, ...]
    multiplier: float
    cost: float


def noisy_rate_bound(
    tree: StateTree,
    channels: Sequence[BlockChannel],
    epsilon: float,
    gamma: float = 1.0,
    tolerance: float = 1e-3,
    iterations: int = 200,
) -> NoisyBound:
    """The bound, by bisection of the multiplier.

    Args:
        tree: the states and their covers.
        channels: of every block, see `wm_env.criteria.channel.tree_channels`.
        epsilon: bound on sum_b gamma^b c_b, b = 1..B.
        gamma: discount, in (0, 1].
        tolerance: bits of `rate` above `reached` at which to stop; a tenth of it is left to every state's alternation.
        iterations: most alternations of a state.

    Raises:
        ValueError: a negative budget or a discount outside (0, 1].
    """
    check_budget(epsilon, gamma)
    covers = tuple(torch.from_numpy(block.cover) for block in tree.blocks)
    if epsilon <= COST_RESOLUTION:
        rate = _rate_and_cost(tree, channels, covers, gamma)[0]
        return NoisyBound(rate, rate, covers, float("inf"), 0.0)
    best, laws = _respond(tree, channels, covers, 0.0, gamma, tolerance, iterations)
    reached, cost = _rate_and_cost(tree, channels, laws, gamma)
    if cost <= epsilon:
        return NoisyBound(max(best, reached), reached, laws, 0.0, cost)
    # Between 0, where laws cost too much, and a price at which they do not; the cover costs nothing at any price.
    found = NoisyBound(0.0, _rate_and_cost(tree, channels, covers, gamma)[0], covers, float("inf"), 0.0)
    low, high, step = 0.0, float("inf"), 1.0
    for _ in range(_STEPS):
        multiplier = low + step if high == float("inf") else (low + high) / 2
        step *= 4
        bound, laws = _respond(tree, channels, found.marginals, multiplier, gamma, tolerance, iterations)
        best = min(best, bound + multiplier * epsilon)
        reached, cost = _rate_and_cost(tree, channels, laws, gamma)
        if cost <= epsilon:
            high = multiplier
            found = found if reached < found.reached else NoisyBound(0.0, reached, laws, multiplier, cost)
        else:
            low = multiplier
        if best - found.reached <= tolerance:
            break
    return replace(found, rate=max(best, found.reached))


def mutual_information(law: Tensor, kernel: Tensor) -> Tensor:
    """I(X;Y|S=s) in bits, shape (N,), for laws q(x|s) of shape (N, Q) and K(y|x,s) of shape (N, Q, Y)."""
    return (law * _divergences(law, kernel)).sum(1)


def _divergences(law: Tensor, kernel: Tensor) -> Tensor:
    """D(K(.|x) || sum_x q(x) K(.|x)) in bits, shape (N, Q)."""
    output = law[:, None] @ kernel
    return cross_entropy(kernel, output.expand_as(kernel), 2) - cross_entropy(kernel, kernel, 2)


def _respond(
    tree: StateTree,
    channels: Sequence[BlockChannel],
    start: Sequence[Tensor],
    multiplier: float,
    gamma: float,
    tolerance: float,
    iterations: int,
) -> tuple[float, tuple[Tensor, ...]]:
    """A bound on rate - multiplier * cost of all laws, and laws near it, by backward induction."""
    laws: list[Tensor] = []
    bound: Tensor | None = None
    for number in reversed(range(len(tree.blocks))):
        cover = torch.from_numpy(tree.blocks[number].cover)
        ahead = gamma * values_ahead(bound, torch.from_numpy(tree.blocks[number].child))
        law, bound = _best_laws(
            cover, channels[number].kernel, ahead, start[number], multiplier, tolerance / 10, iterations
        )
        laws.append(law)
    assert bound is not None
    return gamma * float(torch.from_numpy(tree.prior) @ bound), tuple(reversed(laws))


def _best_laws(
    cover: Tensor, kernel: Tensor, ahead: Tensor, law: Tensor, multiplier: float, tolerance: float, iterations: int
) -> tuple[Tensor, Tensor]:
    """Laws near the maximum of I(X;Y|s) + sum_x q ahead - multiplier V(q, p), and a bound on it, shape (N,)."""
    support = cover > 0
    bound = torch.full_like(cover[:, 0], torch.inf)
    law = 0.999 * law + 0.001 * cover
    for _ in range(iterations):
        divergence = _divergences(law, kernel)
        worth = torch.where(support, divergence + ahead, -torch.inf)
        dearest = worth.amax(1, keepdim=True)
        moved = torch.where(support, cover * (dearest - worth - multiplier).clamp_min(0), 0).sum(1)
        bound = torch.minimum(bound, (cover * torch.where(support, worth, 0)).sum(1) + moved)
        value = (law * torch.where(support, worth, 0)).sum(1) - multiplier * total_variation(law, cover)
        if float((bound - value).max()) <= tolerance:
            break
        # sum_y K log2 r(x|y) = log2 q(x) + D(K(.|x) || output).
        bonus = torch.where(support, law.clamp_min(torch.finfo(law.dtype).tiny).log() / LN2 + divergence + ahead, 0)
        law = TOTAL_VARIATION.best_response(cover, bonus, multiplier)
    return law, bound


def _rate_and_cost(
    tree: StateTree, channels: Sequence[BlockChannel], laws: Sequence[Tensor], gamma: float
) -> tuple[float, float]:
    rate = cost = 0.0
    reach = occupations(tree, [law.numpy() for law in laws])
    for number, (law, block, channel, probs) in enumerate(zip(laws, tree.blocks, channels, reach, strict=True), 1):
        state_probs = torch.from_numpy(probs)
        rate += gamma**number * float(state_probs @ mutual_information(law, channel.kernel))
        cost += gamma**number * float(state_probs @ total_variation(law, torch.from_numpy(block.cover)))
    return rate, cost

"""Limits of texts of several blocks, in which total variation spent in one block changes which states come later.

A code has a law q(x|s) in every state that it reaches, and the occupation measure y(s,x) = Z(s) q(x|s) obeys
Z(child(s,x)) = y(s,x). With any amount of shared key and a decoder that knows the state the success probability of l
bits is U(q) = sum_x min(q(x), 2^-l), so the least block error is a linear programme in y:

    max 1/B sum_b sum_(s,x) min(y(s,x), 2^-l Z(s)),    sum_b gamma^b sum_(s,x) (y(s,x) - Z(s) p(x|s))+ <= epsilon.

With a multiplier beta it separates. Backwards, a state maximises a sum over its candidates of concave, piecewise linear
functions of q(x), with value to go g(x):

    min(q, 2^-l) / B + g q - beta gamma^b (q - p)+,

which is solved by filling the steepest pieces first. Every beta gives a bound on all codes (weak duality), and the best
beta the value of the programme.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from wm_env.common.arrays import Floats
from wm_env.information import total_variation
from wm_env.law import occupations, state_reach
from wm_env.optimum import check_budget
from wm_env.theory.limits import partition_bounds
from wm_env.tree import StateTree, TreeBlock

_STEPS = 60
"""Halvings of the multiplier's interval."""
_WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""How much of a state's success is held against U; the rest against P0 + TV."""

_Response = tuple[float, tuple[Floats, ...]]


@dataclass(frozen=True)
class SteeredLimit:
    """The least block error rate of all codes within a budget, with any shared key.

    Attributes:
        block_error: no code within the budget has less, mean over blocks, whatever the key and the decoder.
        laws: q(x|s) of every block, shape (N, Q), with which a decoder that knows the state reaches `block_error`.
        cost: sum_b gamma^b c_b of these laws, at most epsilon up to rounding.
    """

    block_error: float
    laws: tuple[Floats, ...]
    cost: float


def steered_limit(
    tree: StateTree, message_bits: int | Sequence[int], epsilon: float, gamma: float = 1.0
) -> SteeredLimit:
    """The value of the linear programme over occupation measures, with laws that reach it.

    Args:
        message_bits: l, of every block or of each block.
        epsilon: bound on sum_b gamma^b c_b, b = 1..B.
        gamma: discount of the costs, in (0, 1].

    Raises:
        ValueError: a negative budget or a discount outside (0, 1].
    """
    check_budget(epsilon, gamma)
    caps = [2.0**-bits for bits in _lengths(tree, message_bits)]

    def respond(multiplier: float) -> _Response:
        return _best_response(tree, caps, multiplier, gamma)

    bound, cheap, dear = _search(tree, respond, epsilon, gamma)
    laws = _mixed(tree, cheap, dear, epsilon, gamma)
    return SteeredLimit(max(0.0, 1 - bound), laws, _cost(tree, laws, gamma))


def steered_pad_limit(
    tree: StateTree, message_bits: int | Sequence[int], epsilon: float, gamma: float = 1.0, gap: float = 1e-4
) -> float:
    """No code within the budget that uses l key bits a block has a smaller block error rate, mean over blocks.

    In a state its success is at most U(q) and at most P0(p) + V(q, p); for a weight w in [0, 1] it is at most w U(q) +
    (1 - w) (P0(p) + V(q, p)), and every state takes the best of a few weights. A bound that need not be reached.
    Arguments as of `steered_limit`; `gap` says how well E[P0] is to be known.
    """
    check_budget(epsilon, gamma)
    lengths = _lengths(tree, message_bits)
    partitions = [
        partition_bounds(block.cover, reach, bits, gap)[1]
        for block, reach, bits in zip(tree.blocks, state_reach(tree), lengths, strict=True)
    ]

    def respond(multiplier: float) -> _Response:
        value: Floats | None = None
        laws: list[Floats] = []
        for number in reversed(range(len(tree.blocks))):
            block, share = tree.blocks[number], 1 / len(tree.blocks)
            ahead, price = _values_ahead(block, value), multiplier * gamma ** (number + 1)
            best = np.full(len(block.cover), np.inf)
            law = block.cover.copy()
            for weight in _WEIGHTS:
                # A unit of V is worth (1 - w) / B and costs the price; what is left of the price holds q near p.
                left = price - (1 - weight) * share
                filled, worth = _fill(block.cover, 2.0 ** -lengths[number], weight * share, ahead, max(left, 0.0))
                bound = worth + (1 - weight) * share * partitions[number] + max(-left, 0.0)
                law[bound < best] = filled[bound < best]
                best = np.minimum(best, bound)
            value = best
            laws.append(law)
        assert value is not None
        return float(tree.prior @ value), tuple(reversed(laws))

    # The programme is convex in the multiplier, but its laws are none that a code has: the bound alone is searched.
    low, high = 0.0, _dearest(tree, gamma)
    best = np.inf
    for _ in range(_STEPS):
        thirds = [low + (high - low) / 3, high - (high - low) / 3]
        bounds = [respond(multiplier)[0] + multiplier * epsilon for multiplier in thirds]
        best = min(best, *bounds)
        low, high = (low, thirds[1]) if bounds[0] <= bounds[1] else (thirds[0], high)
    return max(0.0, 1 - min(best, 1 - steered_limit(tree, message_bits, epsilon, gamma).block_error))


def _lengths(tree: StateTree, message_bits: int | Sequence[int]) -> list[int]:
    return [message_bits] * len(tree.blocks) if isinstance(message_bits, int) else list(message_bits)


def _search(
    tree: StateTree, respond: Callable[[float], _Response], epsilon: float, gamma: float
) -> tuple[float, tuple[Floats, ...], tuple[Floats, ...]]:
    """The least dual bound, and the laws on both sides of the multiplier where the cost passes epsilon."""
    low, high = 0.0, _dearest(tree, gamma)
    cheap, dear = respond(high)[1], None
    best = respond(high)[0] + high * epsilon
    for _ in range(_STEPS):
        middle = (low + high) / 2
        value, laws = respond(middle)
        best = min(best, value + middle * epsilon)
        if _cost(tree, laws, gamma) <= epsilon:
            high, cheap = middle, laws
        else:
            low, dear = middle, laws
    return best, cheap, cheap if dear is None else dear


def _dearest(tree: StateTree, gamma: float) -> float:
    """A multiplier at which nothing is spent: a unit of V changes the mean success of all blocks by 2 at most."""
    return float(4 / gamma ** len(tree.blocks))


def _best_response(tree: StateTree, caps: Sequence[float], multiplier: float, gamma: float) -> _Response:
    """Success minus multiplier times cost at its best, by backward induction, and the laws."""
    value: Floats | None = None
    laws: list[Floats] = []
    for number in reversed(range(len(tree.blocks))):
        block = tree.blocks[number]
        price = multiplier * gamma ** (number + 1)
        law, value = _fill(block.cover, caps[number], 1 / len(tree.blocks), _values_ahead(block, value), price)
        laws.append(law)
    assert value is not None
    return float(tree.prior @ value), tuple(reversed(laws))


def _values_ahead(block: TreeBlock, value: Floats | None) -> Floats:
    """The value to go after every candidate, shape (N, Q)."""
    if value is None:
        return np.zeros_like(block.cover)
    return np.where(block.child >= 0, value[np.maximum(block.child, 0)], 0.0)


def _fill(cover: Floats, cap: float, share: float, ahead: Floats, price: float) -> tuple[Floats, Floats]:
    """The law of every state that maximises sum_x share min(q, cap) + ahead q - price (q - p)+, and the maximum.

    Each candidate has three pieces of falling slope, up to the smaller of p and cap, up to the larger, and beyond. All
    pieces of a state are filled from the steepest down until the mass is 1. Of equal slopes the earlier piece of a
    candidate comes first.
    """
    low, high = np.minimum(cover, cap), np.maximum(cover, cap)
    between = np.where(cover < cap, share - price, 0.0)
    slopes = np.concatenate([ahead + share, ahead + between, ahead - price], axis=1)
    lengths = np.concatenate([low, high - low, np.maximum(1 - high, 0)], axis=1)
    lengths = np.where(np.tile(cover > 0, 3), lengths, 0)
    steepest_first = np.argsort(-slopes, axis=1, kind="stable")
    length = np.take_along_axis(lengths, steepest_first, axis=1)
    used = np.clip(1 - (length.cumsum(1) - length), 0, length)
    worth: Floats = (used * np.take_along_axis(slopes, steepest_first, axis=1)).sum(1)
    taken = np.empty_like(used)
    np.put_along_axis(taken, steepest_first, used, axis=1)
    return taken.reshape(len(cover), 3, -1).sum(1), worth


def _cost(tree: StateTree, laws: Sequence[Floats], gamma: float) -> float:
    total = 0.0
    for number, (law, block, reach) in enumerate(zip(laws, tree.blocks, occupations(tree, laws), strict=True), 1):
        total += gamma**number * float(
            reach @ total_variation(torch.from_numpy(law), torch.from_numpy(block.cover)).numpy()
        )
    return total


def _mixed(
    tree: StateTree, cheap: Sequence[Floats], dear: Sequence[Floats], epsilon: float, gamma: float
) -> tuple[Floats, ...]:
    """The law whose occupation measure is the mixture of two that spends the budget.

    Success is concave and cost convex in the occupation measure, so the mixture is no worse than its parts.
    """
    costs = _cost(tree, cheap, gamma), _cost(tree, dear, gamma)
    share = 0.0 if costs[1] <= costs[0] else float(np.clip((epsilon - costs[0]) / (costs[1] - costs[0]), 0, 1))
    mixed = []
    parts = zip(cheap, occupations(tree, cheap), dear, occupations(tree, dear), tree.blocks, strict=True)
    for law, reach, other, other_reach, block in parts:
        mass = (1 - share) * reach[:, None] * law + share * other_reach[:, None] * other
        total = mass.sum(1, keepdims=True)
        mixed.append(np.where(total > 0, mass / np.where(total > 0, total, 1), block.cover))
    return tuple(mixed)

"""Message lengths that follow the state: as many error-free bits as a total-variation budget buys, as one law.

A state carries l bits without error at the price of 1 - P0(l) units of total variation, P0 the value of its best
partition into 2^l bins. So every state offers steps, so many bits for so much budget, and the budget goes to the
cheapest steps of all states first. The law of a state is the coded planner's for its own length; message sets of
shorter messages are the beginnings of longer ones, so one law and one message set serve all lengths, and the decoder
finds the length in the law (`polar.adaptive`). States that it may take for each other, since some received text leads
to both, get one length, and what they share has one word.
"""

import dataclasses
import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agents.coded_planner import plan_coded
from agents.word_maps import alike_states
from wm_env.coded import coded_law, label_bits
from wm_env.information import total_variation
from wm_env.law import JointLaw, induced_cover, roll_out, state_reach
from wm_env.optimum import COST_RESOLUTION, check_budget
from wm_env.tree import Floats, Ints, StateTree, number_paths

_ROUNDING = 1e-9


@dataclass(frozen=True)
class AdaptivePlan:
    """A law with a message length for every state.

    Attributes:
        law: P(S,U,X) of every block; its message sets have the longest length.
        lengths: l(s) of every block, shape (N,) each.
        bits: sum_b E[l] in bits per text.
        cost: sum_b gamma^b c_b; at most epsilon, up to rounding.
    """

    law: JointLaw
    lengths: tuple[Ints, ...]
    bits: float
    cost: float


@dataclass(frozen=True)
class _Offer:
    """What l bits without error cost every state of a block, shape (N,), infinite where they are not possible."""

    price: Floats
    p_candidate: Tensor


def plan_adaptive(tree: StateTree, epsilon: float, gamma: float = 1.0, labels: int | None = None) -> AdaptivePlan:
    """Lengths and laws with as many error-free bits as `epsilon` buys.

    Args:
        tree: the states and their covers.
        epsilon: bound on sum_b gamma^b c_b, b = 1..B; 0 buys l bits only where the candidates divide evenly into 2^l.
        gamma: discount, in (0, 1].
        labels: M, a power of two; by default all words of a block, 2^L. Lengths go up to log2 M.

    Raises:
        ValueError: a negative budget, a discount outside (0, 1], or labels that are no power of two.
    """
    check_budget(epsilon, gamma)
    count = 1 << tree.block_length if labels is None else labels
    longest = min(label_bits(count), int(np.log2(tree.meta.candidates)))
    offers = [_free_offers(tree, count), *(_offers(tree, bits, count) for bits in range(1, longest + 1))]
    prices = [np.stack([of_length[number].price for of_length in offers], 1) for number in range(len(tree.blocks))]
    groups = [alike_states(block.cover, seen) for block, seen in zip(tree.blocks, number_paths(tree), strict=True)]
    lengths: list[Ints] = []
    spent = 0.0

    def policy(number: int, state_probs: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal spent
        rest = dataclasses.replace(tree, blocks=tree.blocks[number:], prior=state_probs.numpy())
        weights = [gamma ** (number + 1 + ahead) * reach for ahead, reach in enumerate(state_reach(rest))]
        grouped = [_by_group(*each) for each in zip(prices[number:], weights, groups[number:], strict=True)]
        bought = buy_bits(
            np.concatenate([price for price, _ in grouped]),
            np.concatenate([weight for _, weight in grouped]),
            max(0.0, epsilon - spent),
        )
        chosen = bought[groups[number]]
        spent += float(weights[0] @ prices[number][np.arange(len(chosen)), chosen])
        lengths.append(chosen)
        p_candidate = torch.stack([offers[bits][number].p_candidate[state] for state, bits in enumerate(chosen)])
        return p_candidate.new_full((len(chosen), count), 1 / count), p_candidate

    law = roll_out(tree, policy)
    free = tree.block_length - label_bits(count)
    positions = tuple(range(free, free + max(int(chosen.max()) for chosen in lengths)))
    bits = sum(float(block.state_probs.numpy() @ chosen) for block, chosen in zip(law.blocks, lengths, strict=True))
    law = dataclasses.replace(law, message_sets=(positions,) * len(tree.blocks))
    return AdaptivePlan(law, tuple(lengths), bits, spent)


def buy_bits(prices: Floats, weights: Floats, budget: float) -> Ints:
    """Lengths with the most expected bits for an expected price within the budget, by the cheapest steps first.

    Steps follow the lower convex hull of each state's prices; one that does not fit any more gives way to the cheapest
    that does. So in the end no state can have another bit for what is left.

    Args:
        prices: of 0, 1, ..., bits in every state, shape (N, most + 1), infinite where not possible, 0 for 0 bits.
        weights: of the states, shape (N,).
        budget: bound on the sum of weight times price, up to rounding.

    Returns:
        Number of bits of every state, shape (N,).
    """
    # Sums of prices that are exactly the budget may exceed it by rounding.
    budget *= 1 + 1e-12
    chosen = np.zeros(len(prices), dtype=np.int64)
    queue: list[tuple[float, int, int]] = []

    def fits(state: int, longer: Ints | int) -> NDArray[np.bool_]:
        extra = prices[state, longer] - prices[state, chosen[state]]
        affordable: NDArray[np.bool_] = weights[state] * extra <= budget
        return affordable

    def offer(state: int) -> None:
        longer = np.arange(chosen[state] + 1, prices.shape[1])
        longer = longer[np.isfinite(prices[state, longer])]
        longer = longer[fits(state, longer)]
        if len(longer):
            slopes = (prices[state, longer] - prices[state, chosen[state]]) / (longer - chosen[state])
            # Of equal slopes the longest step, so that bits which cost nothing come at once.
            best = int(longer[slopes <= slopes.min() + 1e-15].max())
            heapq.heappush(queue, (float(slopes.min()), state, best))

    for state in range(len(prices)):
        offer(state)
    while queue:
        _, state, longer = heapq.heappop(queue)
        if fits(state, longer):
            budget -= weights[state] * (prices[state, longer] - prices[state, chosen[state]])
            chosen[state] = longer
        offer(state)
    return chosen


def _by_group(prices: Floats, weights: Floats, group: Ints) -> tuple[Floats, Floats]:
    """Mean price and weight of every group of states, shapes (groups, most + 1) and (groups,).

    What one state cannot do its group cannot do, whatever the state's weight.
    """
    weight: Floats = np.bincount(group, weights=weights).astype(np.float64)
    possible = np.isfinite(prices)
    total = np.zeros((len(weight), prices.shape[1]))
    np.add.at(total, group, weights[:, None] * np.where(possible, prices, 0))
    price = np.divide(total, weight[:, None], out=np.zeros_like(total), where=weight[:, None] > 0)
    np.maximum.at(price, group, np.where(possible, 0, np.inf))
    return price, weight


def _free_offers(tree: StateTree, count: int) -> list[_Offer]:
    """No bits, the cover itself, for nothing."""
    covers = [torch.from_numpy(block.cover) for block in tree.blocks]
    return [_Offer(np.zeros(len(cover)), cover[:, None].expand(-1, count, -1)) for cover in covers]


def _offers(tree: StateTree, bits: int, count: int) -> list[_Offer]:
    """The laws with l bits that a budget without bound makes free of errors."""
    law = plan_coded(tree, bits, float(len(tree.blocks)), labels=count, seen=number_paths(tree)).law
    sets: Sequence[tuple[int, ...]] = law.message_sets or ()
    offers = []
    for block, positions in zip(law.blocks, sets, strict=True):
        coded = coded_law(block, law.block_length, positions)
        error = (coded.p_candidate.sum(1) - coded.p_candidate.amax(1)).sum(1) / coded.labels
        price = total_variation(induced_cover(coded), coded.cover)
        price = torch.where(price <= COST_RESOLUTION, 0, price).where(error <= _ROUNDING, torch.inf)
        offers.append(_Offer(price.numpy(), block.p_candidate))
    return offers

"""Message lengths that follow the state: as many error-free bits as a total-variation budget buys, as one law.

A state carries l bits without error at the price of 1 - P0(l) units of total variation, P0 the value of its best
partition into 2^l bins, or, with shared dither, of 1 - U(l), which is 0 for every l <= H_min (`wm_env.theory.limits`).
So every state offers steps, so many bits for so much budget, and the budget goes to the cheapest steps of all states
first. The law of a state is the coded planner's for its own length; message sets of shorter messages are the beginnings
of longer ones, so one law and one message set serve all lengths, and the decoder finds the length in the law
(`polar.code.adaptive`). States that it may take for each other, since some received text leads to both, get one length,
and what they share has one word.
"""

import dataclasses
import heapq
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agents.planner.coded import slotted_channel, wrong_mass
from agents.planner.word_maps import confusable_states, map_words
from wm_env.coded import label_bits
from wm_env.common.arrays import Floats, Ints
from wm_env.common.foreign.torch_settings import usual_torch
from wm_env.information import total_variation
from wm_env.law import JointLaw, roll_out, state_reach
from wm_env.optimum import COST_RESOLUTION, check_budget
from wm_env.tree import StateTree, TreeBlock, number_paths

_ROUNDING = 1e-12


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


@usual_torch()
def plan_adaptive(
    tree: StateTree, epsilon: float, gamma: float = 1.0, labels: int | None = None, dither_bits: int = 0
) -> AdaptivePlan:
    """Lengths and laws with as many error-free bits as `epsilon` buys.

    Args:
        tree: the states and their covers.
        epsilon: bound on sum_b gamma^b c_b, b = 1..B; 0 buys l bits only where the candidates divide evenly into 2^l,
            or with dither where no candidate exceeds 2^-l.
        gamma: discount, in (0, 1].
        labels: M, a power of two; by default all words of a block, 2^L. Lengths go up to log2 M.
        dither_bits: d, bits of the key beyond the pad that the decoder knows. A word of l bits has a schedule of
            min(2^d, M / 2^l) slots, which has to be fine enough for the state, so M = 2^(l + d) is enough.

    Raises:
        ValueError: a negative budget, a discount outside (0, 1], or labels that are no power of two.
    """
    check_budget(epsilon, gamma)
    count = 1 << tree.block_length if labels is None else labels
    longest = min(label_bits(count), int(np.log2(tree.meta.candidates)))
    paths = number_paths(tree)
    groups = [confusable_states(block.cover, seen) for block, seen in zip(tree.blocks, paths, strict=True)]
    views = list(zip(tree.blocks, paths, groups, state_reach(tree), strict=True))
    paid = ([_cheapest(*view, bits, dither_bits, count) for view in views] for bits in range(1, longest + 1))
    offers = [_free_offers(tree, count), *paid]
    prices = [np.stack([of_length[number].price for of_length in offers], 1) for number in range(len(tree.blocks))]
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


def _cheapest(
    block: TreeBlock, seen: Ints, group: Ints, reach: Floats, bits: int, dither_bits: int, count: int
) -> _Offer:
    """The laws of a block with l bits that are free of errors for a decoder that knows the path and the slot.

    For every group of states at the cheaper of two budgets that leaves no errors. One pays for everything that is
    wrong. The other pays for candidates above 2^-l only, which is enough where several slots cure the rest.
    """
    slots = min(1 << dither_bits, count >> bits)
    words = map_words(block.cover, seen, reach, bits)
    wrong = wrong_mass(block.cover, words, bits)
    price = np.full(len(wrong), np.inf)
    channel = np.zeros((len(wrong), 1 << bits, slots, block.cover.shape[1]))
    budgets = [wrong.sum(1)]
    if slots > 1:
        budgets.append(wrong[:, 1:].sum(1))
    for budget in budgets:
        made, _ = slotted_channel(block.cover, words, seen, reach, bits, budget, slots)
        good = _found_always(made, seen, group)
        spent = total_variation(torch.from_numpy(made[good].mean((1, 2))), torch.from_numpy(block.cover[good])).numpy()
        price[good], channel[good] = np.where(spent <= COST_RESOLUTION, 0, spent), made[good]
    labels = torch.from_numpy(channel).repeat_interleave(count // (slots << bits), dim=2)
    return _Offer(price, labels.flatten(1, 2))


def _found_always(channel: Floats, seen: Ints, group: Ints) -> NDArray[np.bool_]:
    """States of groups in which a decoder that knows the slot finds every word, whatever the state; shape (N,).

    Args:
        channel: P(x | w, j), shape (N, 2^l, J, Q).
        seen: number of what the decoder sees of a candidate, shape (N, Q).
        group: number of the group of every state, shape (N,).
    """
    _, count, slots, _ = channel.shape
    sent, word = channel.sum(1), channel.argmax(1)
    wrong = (sent - channel.max(1)).sum((1, 2)) > _ROUNDING * count * slots
    state, slot, place = np.nonzero(sent > _ROUNDING)
    number, its_word = seen[state, place] * slots + slot, word[state, slot, place]
    least, most = np.full((seen.max() + 1) * slots, count), np.full((seen.max() + 1) * slots, -1)
    np.minimum.at(least, number, its_word)
    np.maximum.at(most, number, its_word)
    wrong[state[(least < most)[number]]] = True
    all_found: NDArray[np.bool_] = np.bincount(group, weights=wrong) == 0
    return all_found[group]

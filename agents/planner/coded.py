"""The coded planner: with l message bits and a pad, success min(1, P0 + t) at total variation t, or more by steering.

The law has uniform labels. The first l free positions of V are the message set M*, so that successive decoding meets
the message first; the other free positions number J slots of the point that draws V, and W(x|u,s) is the channel of
`agents.planner.couplings`. So the polar encoder and decoders of any other law reach the limit with this one.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agents.planner.couplings import assign_surplus, break_ties, spend
from agents.planner.index_assignment import assign_indices
from agents.planner.open_shop import scheduled_channel
from agents.planner.word_maps import confusable_states, map_words, pack_words, sharing_states, word_loads
from wm_env.coded import coded_law
from wm_env.common.arrays import Floats, Ints
from wm_env.common.foreign.torch_settings import usual_torch
from wm_env.criteria.objectives import Coded
from wm_env.information import law_totals
from wm_env.law import BlockLaw, JointLaw, Policy, roll_out, state_reach
from wm_env.optimum import COST_RESOLUTION, check_budget
from wm_env.theory.limits import distance_masses
from wm_env.theory.steering import steered_limit
from wm_env.tree import StateTree

_SLOT_BITS = 4
_CHUNK = 512
_ROUNDING = 1e-12


@dataclass(frozen=True)
class CodedPlan:
    """A law made for its message set, with what the code is worth under uniform message bits.

    Attributes:
        law: P(S,U,X) of every block, with `message_sets`.
        success: probability that a decoder which knows the state finds all message bits, per block.
        rate: sum_b gamma^b I(V_M*; X_b) in bits, b = 1..B.
        cost: sum_b gamma^b c_b of the coded laws; at most epsilon.
    """

    law: JointLaw
    success: tuple[float, ...]
    rate: float
    cost: float


@usual_torch()
def plan_coded(
    tree: StateTree,
    message_bits: int | Sequence[int],
    epsilon: float,
    gamma: float = 1.0,
    labels: int | None = None,
    seen: Sequence[Ints] | None = None,
) -> CodedPlan:
    """A law whose code finds all l message bits often, with l key bits and cost at most `epsilon`.

    Two laws are made, and the better one returned. In the first each unit of budget turns one unit of wrongly decoded
    mass into right mass, until nothing is wrong. It goes where most bits are wrong: first to the mass that would be
    decoded with l wrong bits, then with l - 1, and so on; within these to the states that need least, so that as many
    as possible become free of errors; last to the unevenness of partitions. The second, for several blocks, steers: it
    sends the laws of `wm_env.theory.steering`, which also lead to states that carry more.

    The plan is optimal if its block error, 1 - mean success, is `steered_pad_limit` or `steered_limit`; for one block
    it is, up to what `wm_env.theory.limits.best_partition` leaves, if no two states share a candidate. A shared one has
    the same word in all its states, which costs success, unless the decoder can tell the states apart.

    Args:
        tree: the states and their covers.
        message_bits: l >= 1, of every block or of each block.
        epsilon: bound on sum_b gamma^b c_b, b = 1..B, c_b the total variation of the induced law.
        gamma: discount, in (0, 1].
        labels: M, a power of two; by default 2^(l + 4), at most 2^L. What exceeds 2^l lets shared dither
            separate messages that share a candidate.
        seen: for every block the number of what the decoder sees when candidate x is sent in state s, shape (N, Q); by
            default the symbol, for a decoder that knows nothing of the state.

    Raises:
        ValueError: a negative budget, a discount outside (0, 1], a message length for each of another number of
            blocks, or labels that cannot carry the message.
    """
    check_budget(epsilon, gamma)
    lengths = [message_bits] * len(tree.blocks) if isinstance(message_bits, int) else list(message_bits)
    if len(lengths) != len(tree.blocks):
        raise ValueError(f"message_bits={message_bits}: one length or one for each of the {len(tree.blocks)} blocks")
    count = 1 << min(tree.block_length, max(lengths) + _SLOT_BITS) if labels is None else labels
    sets = [Coded.make(tree.block_length, count, bits).message_set for bits in lengths]
    seen = [block.symbol for block in tree.blocks] if seen is None else seen
    task = _Task(tree, lengths, epsilon, gamma, count, seen, sets)
    plan = _plan_in_place(task)
    if len(tree.blocks) == 1 or epsilon <= COST_RESOLUTION or min(plan.success) > 1 - _ROUNDING:
        return plan
    steering = _plan_steering(task, steered_limit(tree, lengths, epsilon, gamma).laws)
    return steering if sum(steering.success) > sum(plan.success) + _ROUNDING else plan


@dataclass(frozen=True)
class _Task:
    """The arguments of `plan_coded`, checked and with their defaults."""

    tree: StateTree
    lengths: list[int]
    epsilon: float
    gamma: float
    labels: int
    seen: Sequence[Ints]
    sets: list[tuple[int, ...]]


def _plan_in_place(task: _Task) -> CodedPlan:
    """Total variation makes wrongly decoded mass right where it is spent; what comes later is left as it comes."""
    tree, lengths, gamma = task.tree, task.lengths, task.gamma
    maps = [
        map_words(block.cover, numbers, probs, bits)
        for block, numbers, probs, bits in zip(tree.blocks, task.seen, state_reach(tree), lengths, strict=True)
    ]
    wrong = [
        wrong_mass(block.cover, words, bits) for block, words, bits in zip(tree.blocks, maps, lengths, strict=True)
    ]
    left = task.epsilon

    def policy(number: int, state_probs: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal left
        reach = state_reach(dataclasses.replace(tree, blocks=tree.blocks[number:], prior=state_probs.numpy()))
        weights = [gamma ** (number + 1 + ahead) * probs for ahead, probs in enumerate(reach)]
        budget = _spread(left, weights, wrong[number:])[0]
        left -= float(weights[0] @ budget)
        return _policy(task, number, tree.blocks[number].cover, maps[number], state_probs.numpy(), budget)

    return _coded_plan(task, policy)


def _plan_steering(task: _Task, laws: Sequence[Floats]) -> CodedPlan:
    """Every state sends the law that the programme over occupation measures gives it, with nothing spent beyond."""

    def policy(number: int, state_probs: Tensor) -> tuple[Tensor, Tensor]:
        law, chances = laws[number], state_probs.numpy()
        words = map_words(law, task.seen[number], chances, task.lengths[number])
        return _policy(task, number, law, words, chances, np.zeros(len(law)))

    return _coded_plan(task, policy)


def _policy(
    task: _Task, number: int, law: Floats, words: Ints, chances: Floats, budget: Floats
) -> tuple[Tensor, Tensor]:
    """Uniform labels and the channel of a block whose states send `law`, moved by `budget`."""
    bits, count = task.lengths[number], task.labels
    channel = break_ties(*slotted_channel(law, words, task.seen[number], chances, bits, budget, count >> bits))
    p_candidate = torch.from_numpy(channel).reshape(len(channel), count, -1)
    return p_candidate.new_full((len(channel), count), 1 / count), p_candidate


def _coded_plan(task: _Task, policy: Policy) -> CodedPlan:
    law = dataclasses.replace(roll_out(task.tree, policy), message_sets=tuple(task.sets))
    coded = [
        coded_law(block, law.block_length, positions) for block, positions in zip(law.blocks, task.sets, strict=True)
    ]
    totals = law_totals(coded, task.gamma)
    return CodedPlan(law, tuple(_success(block) for block in coded), totals.rate, totals.cost)


def _success(coded: BlockLaw) -> float:
    """Probability that the likeliest message, given state and candidate, is the one that was sent."""
    right = coded.p_candidate.amax(1).sum(1) / coded.labels
    return float(coded.state_probs @ right)


def wrong_mass(cover: Floats, words: Ints, message_bits: int) -> Floats:
    """Wrongly decoded mass that a budget can set right, shape (N, l + 1), in [0, 1].

    Columns 1..l: the mass with so many wrong bits that candidates above 2^-l cannot avoid. Column 0: what is left, the
    unevenness of the partition, which shared dither cures as well.

    Args:
        cover: p(x|s), shape (N, Q).
        words: word of every candidate, shape (N, Q), -1 where the cover is 0.
        message_bits: l.
    """
    loads = word_loads(words, cover, message_bits)
    cap = 2.0**-message_bits
    curable = cap * (loads > 0).sum(1, keepdims=True) - np.minimum(loads, cap).sum(1, keepdims=True)
    far = distance_masses(cover, message_bits)[:, :0:-1]
    far = np.clip(curable - (far.cumsum(1) - far), 0, far)
    return np.concatenate([curable - far.sum(1, keepdims=True), far[:, ::-1]], axis=1).clip(0)


def _spread(budget: float, weights: Sequence[Floats], wrong: Sequence[Floats]) -> list[Floats]:
    """The total variation of every state of several blocks, arrays (N,).

    Args:
        budget: what is left of epsilon.
        weights: gamma^b Z(s) of every block.
        wrong: see `wrong_mass`, one array for each block.
    """
    bits = max(mass.shape[1] for mass in wrong)
    mass = np.concatenate([np.pad(each, ((0, 0), (0, bits - each.shape[1]))) for each in wrong])
    price = np.concatenate(weights)[:, None] * mass
    farthest_first = np.lexsort((mass.ravel(), -np.tile(np.arange(bits), len(mass))))
    sorted_price = price.ravel()[farthest_first]
    rest = budget - (sorted_price.cumsum() - sorted_price)
    bought = np.empty(mass.size)
    bought[farthest_first] = np.divide(rest, sorted_price, out=(rest > 0) * 1.0, where=sorted_price > 0).clip(0, 1)
    spent = (bought.reshape(mass.shape) * mass).sum(1)
    return np.split(spent, np.cumsum([len(each) for each in wrong])[:-1])


def slotted_channel(
    cover: Floats, words: Ints, seen: Ints, state_probs: Floats, message_bits: int, budget: Floats, slots: int
) -> tuple[Floats, NDArray[np.bool_]]:
    """P(x | w, j), shape (N, 2^l, J, Q), at a given total variation of every state; see `agents.planner.open_shop`.

    Also which states have a word with more than 2^-l, shape (N,): they err, unless the decoder knows the slot j and the
    schedule works out.

    Args:
        cover, words, message_bits: as in `wrong_mass`.
        seen: number of what the decoder sees of a candidate, shape (N, Q).
        state_probs: how much the states count, shape (N,).
        budget: total variation of every state, shape (N,), at most the sum of its `wrong_mass`.
        slots: J >= 1.
    """
    shared = sharing_states(cover, seen) > 1
    wrong = 1 - budget - np.minimum(word_loads(words, cover, message_bits), 2.0**-message_bits).sum(1)
    words = words.copy()
    for state in np.nonzero(~shared.any(1) & (wrong > _ROUNDING))[0]:
        words[state] = pack_words(cover[state], words[state], message_bits, budget[state])
    channel = np.empty((len(cover), 1 << message_bits, slots, cover.shape[1]))
    erring = np.empty(len(cover), dtype=np.bool_)
    group = confusable_states(cover, seen)
    for part in _parts(group):
        law = spend(cover[part], words[part], message_bits, budget[part])
        loads = word_loads(words[part], law, message_bits)
        pinned = word_loads(np.where(shared[part], words[part], -1), law, message_bits) > 0
        alike = np.unique(group[part], return_inverse=True)[1]
        number = assign_indices(loads, pinned, alike, state_probs[part])
        placed = np.where(words[part] >= 0, np.take_along_axis(number, np.maximum(words[part], 0), axis=1), -1)
        loads = word_loads(placed, law, message_bits)
        flows = assign_surplus(loads, np.full_like(loads, 2.0**-message_bits))
        channel[part] = scheduled_channel(law, placed, flows, slots, seen[part], state_probs[part])
        erring[part] = flows.sum((1, 2)) > _ROUNDING
    return channel, erring


def _parts(group: Ints) -> list[Ints]:
    """The states in parts of whole groups (N,), with about `_CHUNK` states each, for the memory's sake."""
    order = np.argsort(group, kind="stable")
    sizes = np.bincount(group)
    return np.split(order, np.cumsum(sizes)[np.flatnonzero(np.diff(np.cumsum(sizes) // _CHUNK))])

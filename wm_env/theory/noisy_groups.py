"""A tighter limit behind a channel for decoders that do not know the state, at total variation 0.

`wm_env.criteria.noise` bounds I(U;Y) - I(U;S) by I(X;Y|S), as if the decoder knew the state. It is exact for states
that share no output with another one. States that share outputs lose rate. Here the decoder is told only to which of
many small parts the state belongs; within a part the capacity is a convex programme over maps of states to candidates,
with a certificate (`wm_env.theory.channel_capacity`). What the decoder is told can only help, so

    max I(U;Y) - I(U;S) <= sum over parts P(part) C(part),

with equality where the parts share no outputs. Parts are as large as the number of maps allows: three states of twenty
candidates. States that overlap most are put together first.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from wm_env.common.arrays import Floats, Ints
from wm_env.criteria.channel import BlockChannel
from wm_env.criteria.noise import mutual_information
from wm_env.law import state_reach
from wm_env.theory.channel_capacity import MOST_MAPS, channel_capacity
from wm_env.tree import StateTree


@dataclass(frozen=True)
class Part:
    """States of one block that the decoder does not tell apart, with their outputs renumbered.

    Attributes:
        probability: of the part.
        state_probs: P(s | part), shape (n,).
        cover: p(x|s), shape (n, symbols).
        kernel: K(y|x,s), shape (n, symbols, outputs).
        known: I(X;Y|S) of the part, what a decoder that knows the state could have, bits.
    """

    probability: float
    state_probs: Floats
    cover: Floats
    kernel: Floats
    known: float


def parts_of(tree: StateTree, channels: Sequence[BlockChannel], most_maps: int = MOST_MAPS) -> Iterator[Part]:
    """The parts of all blocks at total variation 0, in the order of blocks.

    Args:
        channels: of every block, see `wm_env.criteria.channel.tree_channels`.
        most_maps: most maps of a part of several states, up to `MOST_MAPS`.
    """
    for number, (channel, reach) in enumerate(zip(channels, state_reach(tree), strict=True)):
        block = tree.blocks[number]
        known = mutual_information(torch.from_numpy(block.cover), channel.kernel).numpy()
        kernel, output = channel.kernel.numpy(), channel.output.numpy()
        for states in _clusters(block.cover, kernel, output, reach, most_maps):
            mass = reach[states]
            yield _part(block.cover[states], kernel[states], output[states], mass, float(mass @ known[states]))


def part_rate(part: Part, relative_gap: float = 1e-3, iterations: int = 400) -> float:
    """P(part) times a bound on the part's capacity, bits; within `relative_gap` of it, if the iterations suffice."""
    if len(part.state_probs) == 1:
        return part.known
    known = part.known / part.probability
    found = channel_capacity(part.state_probs, part.cover, part.kernel, gap=relative_gap * known, iterations=iterations)
    return min(part.known, part.probability * (found.rate + found.gap))


def _clusters(cover: Floats, kernel: Floats, output: Ints, reach: Floats, most_maps: int) -> Iterator[list[int]]:
    """The reached states in parts: those that share the most outputs together, while their maps are few enough."""
    seen = np.einsum("nq,nqy->ny", cover, kernel) * reach[:, None]
    members = {state: [state] for state in np.flatnonzero(reach > 0).tolist()}
    part_of = {state: state for state in members}
    maps = (cover > 0).sum(1)
    for first, second in _by_overlap(seen, output):
        one, other = part_of[first], part_of[second]
        if one != other and np.prod(maps[members[one] + members[other]], dtype=float) <= most_maps:
            for state in members.pop(other):
                members[one].append(state)
                part_of[state] = one
    yield from members.values()


def _by_overlap(seen: Floats, output: Ints) -> list[tuple[int, int]]:
    """Pairs of states by the mass of the outputs that both have, largest first; the smaller numbers of equal ones."""
    holders: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for state, place in np.argwhere((output >= 0) & (seen > 0)).tolist():
        holders[int(output[state, place])].append((state, float(seen[state, place])))
    overlap: dict[tuple[int, int], float] = defaultdict(float)
    for of_output in holders.values():
        for (first, mass), (second, other) in itertools.combinations(of_output, 2):
            overlap[first, second] += min(mass, other)
    return sorted(overlap, key=lambda pair: (-overlap[pair], pair))


def _part(cover: Floats, kernel: Floats, output: Ints, mass: Floats, known: float) -> Part:
    """Candidates of all states side by side, each in its own column; outputs by their number in the union."""
    states, candidates = cover.shape
    names = np.unique(output[output >= 0])
    wide = np.zeros((states, states * candidates))
    channel = np.zeros((states, states * candidates, len(names)))
    for state in range(states):
        columns = slice(state * candidates, (state + 1) * candidates)
        wide[state, columns] = cover[state]
        there = np.flatnonzero(output[state] >= 0)
        place = np.searchsorted(names, output[state, there])
        channel[state, columns, place] += kernel[state][:, there].T
    return Part(float(mass.sum()), mass / mass.sum(), wide, channel, known)

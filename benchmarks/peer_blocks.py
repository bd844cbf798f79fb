"""One block at a time: every scheme as a channel from words to candidates, measured in the same way.

A scheme is a table P(x | w, e, s) of words w, shared randomness e and states s. Where shared randomness is a stream, E
draws of it stand for all of them (Monte Carlo over the key; messages, states and candidates are always enumerated) and
the total variation over the whole stream is computed apart, exactly. Every scheme gets the best decoder for what the
receiver knows: the posterior of the message given the block, the key, and either the state or just the law of states.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from peer_schemes import discop, imec, keyed_colours, od_stega, sparsamp
from peer_schemes.weights import quantise
from torch import Tensor

from agents.planner.coded import plan_coded
from agents.planner.rate import plan
from polar.code.codec import code_channel
from polar.code.construction import chain_entropies, design_codes
from polar.code.key_schedule import KeySchedule
from polar.evaluation.covertness import message_laws
from polar.evaluation.exact import error_rates
from wm_env.common.arrays import Floats
from wm_env.information import entropy, total_variation
from wm_env.law import JointLaw, add_rows, advance, state_reach
from wm_env.tree import StateTree

Knowledge = Literal["state", "law"]
"""The receiver knows the state of the block, or no more than the law of states (and the symbol that it received)."""


@dataclass(frozen=True)
class Coded:
    """A scheme on the states of every block.

    Attributes:
        name: as in the tables.
        channels: P(x | w, e, s) of every block, shape (N, 2^l, E, Q).
        average: the law of x averaged over messages and the whole key, shape (N, Q), one for every block.
        variation: exact total variation between law and cover for every state, averaged over messages; (N,) tensors.
        key_bits: a number, or "stream" where shared randomness does not end.
        draws: E if they are a sample, 0 if the table is exact.
        blocks_per_second: set-up, encoder and decoder, on one core.
    """

    name: str
    channels: tuple[Tensor, ...]
    average: tuple[Tensor, ...]
    variation: tuple[Tensor, ...]
    key_bits: str
    draws: int
    blocks_per_second: float


@dataclass(frozen=True)
class Figures:
    """What a scheme does in a block, averaged over blocks; bits in bits per block.

    Attributes:
        ber: bit error rate.
        bler: block error rate.
        tv: total variation from the cover, mean over messages, the key averaged out.
        tv_short: the same if there are only 2^l keys (seeds).
        information: I(W; what the receiver sees | key).
        entropy: H(X | S) of the cover.
    """

    ber: float
    bler: float
    tv: float
    tv_short: float
    information: float
    entropy: float


def measure(tree: StateTree, coded: Coded, knowledge: Knowledge) -> Figures:
    """Exact for the draws of shared randomness that the table holds."""
    z = torch.from_numpy(tree.prior)
    rows = []
    for number, (block, channel) in enumerate(zip(tree.blocks, coded.channels, strict=True)):
        cover = torch.from_numpy(block.cover)
        if knowledge == "state":
            seen = torch.arange(cover.numel()).reshape(cover.shape)
        else:
            seen = torch.from_numpy(block.symbol)
        short = _short_variation(channel, cover, coded)
        rows.append(
            [
                *_errors(z, channel, seen),
                float(z @ coded.variation[number]),
                float(z @ short),
                float(z @ entropy(cover)),
            ]
        )
        if number + 1 < len(tree.blocks):
            states = len(tree.blocks[number + 1].cover)
            z = advance(z, coded.average[number], torch.from_numpy(block.child), states)
    ber, bler, information, tv, tv_short, cover_entropy = np.mean(rows, axis=0).tolist()
    return Figures(ber, bler, tv, tv_short, information, cover_entropy)


def _errors(z: Tensor, channel: Tensor, seen: Tensor) -> tuple[float, float, float]:
    """BER, BLER and information of one block, averaged over the shared randomness."""
    words, surplus = channel.shape[1:3]
    count = int(seen.max()) + 1
    totals = np.zeros(3)
    for e in range(surplus):
        joint = (z[:, None, None] * channel[:, :, e]).transpose(1, 2) / words
        evidence = add_rows(joint.flatten(0, 1), seen.clamp_min(0).flatten(), count)
        ber, bler = error_rates(evidence[:, :, None], evidence.argmax(1)[:, None])
        information = entropy(evidence.sum(1)) + np.log2(words) - entropy(evidence, (0, 1))
        totals += ber, bler, float(information)
    ber, bler, information = totals / surplus
    return float(ber), float(bler), float(information)


def _short_variation(channel: Tensor, cover: Tensor, coded: Coded) -> Tensor:
    """TV of every state with 2^l keys: with the pad alone, or mean over sets of 2^l seeds where keys are seeds."""
    words = channel.shape[1]
    if not coded.draws:
        law = message_laws(channel, int(np.log2(words)))
        return total_variation(law, cover[:, None]).mean(1)
    groups = channel.reshape(*channel.shape[:2], -1, words, channel.shape[3])
    return total_variation(groups.mean(3), cover[:, None, None]).mean((1, 2))


def our_code(tree: StateTree, bits: int, budget: float, knowledge: Knowledge, dither: int = 0) -> Coded:
    """The planner's coded objective and the polar codec; a budget of total variation per block, pad and dither bits."""
    begin = time.process_time()
    seen = None
    if knowledge == "state":
        seen = [np.arange(block.cover.size).reshape(block.cover.shape) for block in tree.blocks]
    planned = plan_coded(tree, bits, budget * len(tree.blocks), seen=seen)
    name = "coded plan + polar" + (f", {dither} dither bits" if dither else "")
    return _polar(tree, planned.law, KeySchedule(bits, bits + dither, "dither"), name, begin)


def paper_code(tree: StateTree, bits: int, budget: float) -> Coded:
    """The paper's recipe: the law of the highest Gelfand-Pinsker rate, then a polar code cut out of it."""
    begin = time.process_time()
    planned = plan(tree, budget * len(tree.blocks))
    return _polar(tree, planned.law, KeySchedule(bits, bits), "GP plan + polar", begin)


def _polar(tree: StateTree, law: JointLaw, schedule: KeySchedule, name: str, begin: float) -> Coded:
    codes = design_codes(law, [chain_entropies(block, law.block_length) for block in law.blocks], schedule)
    channels = tuple(code_channel(block, code) for block, code in zip(law.blocks, codes, strict=True))
    seconds = time.process_time() - begin
    return _exact(tree, channels, name, str(schedule.key_bits), tree.states / seconds)


def _exact(tree: StateTree, channels: tuple[Tensor, ...], name: str, key_bits: str, speed: float) -> Coded:
    """A scheme whose message is padded and whose table is complete."""
    average = tuple(channel.mean((1, 2)) for channel in channels)
    covers = [torch.from_numpy(block.cover) for block in tree.blocks]
    variation = tuple(total_variation(law, cover) for law, cover in zip(average, covers, strict=True))
    return Coded(name, channels, average, variation, key_bits, 0, speed)


def imec_code(tree: StateTree, bits: int, budget: float = 0.0) -> Coded:
    """iMEC on every block, on the law that OD-Stega makes of it if there is a budget."""
    begin = time.process_time()
    channels = tuple(
        torch.from_numpy(
            np.stack([imec.message_channel(quantise(od_stega.flatten(row, budget)), bits) for row in block.cover])[
                :, :, None
            ]
        )
        for block in tree.blocks
    )
    seconds = time.process_time() - begin
    name = "OD-Stega + iMEC" if budget else "iMEC"
    return _exact(tree, channels, name, str(bits), tree.states / seconds)


def sparsamp_code(tree: StateTree, bits: int, draws: int, rng: np.random.Generator) -> Coded:
    """SparSamp with one shared angle a block."""
    angles = rng.random(draws)
    choices = [sparsamp.block_choices(block.cover, bits, angles) for block in tree.blocks]
    integers = [[[0, *accumulate(quantise(row))] for row in block.cover] for block in tree.blocks]
    words = 1 << bits

    def law(number: int, state: int) -> Floats:
        return np.array([sparsamp.message_law(integers[number][state], words, word) for word in range(words)])

    def one_block(row: Floats) -> None:
        cumulative = [0, *accumulate(quantise(row))]
        angle = int(rng.integers(1 << 62)) << (sparsamp.ANGLE_BITS - 62)
        cell = sparsamp.choose(cumulative, words, int(rng.integers(words)), angle)
        sparsamp.survivors((cumulative[cell], cumulative[cell + 1]), cumulative[-1], words, angle)

    return _streamed(tree, choices, "SparSamp", draws, law, _speed(tree, one_block))


def discop_code(tree: StateTree, bits: int, draws: int, rng: np.random.Generator) -> Coded:
    """Discop with one shared pointer for every depth of the tree and every block."""
    widest = max(block.cover.shape[1] for block in tree.blocks)
    pointers = [[int(value) << 2 for value in row] for row in rng.integers(1 << 62, size=(draws, widest))]
    roots = [[discop.huffman_tree(quantise(row)) for row in block.cover] for block in tree.blocks]
    choices = [
        np.array([[discop.message_leaves(root, bits, row) for row in pointers] for root in of_block]).swapaxes(1, 2)
        for of_block in roots
    ]
    digits = [[word >> place & 1 for place in reversed(range(bits))] for word in range(1 << bits)]

    def law(number: int, state: int) -> Floats:
        return np.array([discop.message_law(roots[number][state], message, widest) for message in digits])

    def one_block(row: Floats) -> None:
        root, row_pointers = discop.huffman_tree(quantise(row)), pointers[int(rng.integers(draws))]
        symbol, _ = discop.send(root, digits[int(rng.integers(1 << bits))], iter(row_pointers).__next__)
        discop.receive(root, symbol, iter(row_pointers).__next__)

    return _streamed(tree, choices, "Discop", draws, law, _speed(tree, one_block))


def _streamed(
    tree: StateTree,
    choices: Sequence[NDArray[np.int64]],
    name: str,
    draws: int,
    law: Callable[[int, int], Floats],
    speed: float,
) -> Coded:
    """A scheme without local randomness, from its choices (N, 2^l, E) and its exact laws (2^l, Q) over all keys."""
    covers = [torch.from_numpy(block.cover) for block in tree.blocks]
    channels = tuple(
        torch.nn.functional.one_hot(torch.from_numpy(chosen), cover.shape[1]).double()
        for chosen, cover in zip(choices, covers, strict=True)
    )
    laws = [
        torch.from_numpy(np.stack([law(number, state) for state in range(len(cover))]))
        for number, cover in enumerate(covers)
    ]
    average = tuple(of_block.mean(1) for of_block in laws)
    variation = tuple(
        total_variation(of_block, cover[:, None]).mean(1) for of_block, cover in zip(laws, covers, strict=True)
    )
    return Coded(name, channels, average, variation, "stream", draws, speed)


def colours_code(tree: StateTree, bits: int, delta: float, draws: int, rng: np.random.Generator) -> Coded:
    """Keyed colours of the blocks' texts, a fresh key for every block."""
    words = 1 << bits
    channels = []
    for block in tree.blocks:
        colour = rng.integers(words, size=(draws, int(block.symbol.max()) + 1))
        laws = [keyed_colours.favour(block.cover, row[np.maximum(block.symbol, 0)], words, delta) for row in colour]
        channels.append(torch.from_numpy(np.stack(laws, axis=2)))
    average = tuple(torch.from_numpy(keyed_colours.mean_law(block.cover, words, delta)) for block in tree.blocks)
    covers = [torch.from_numpy(block.cover) for block in tree.blocks]
    variation = tuple(total_variation(law, cover) for law, cover in zip(average, covers, strict=True))

    def one_block(row: Floats) -> None:
        colour = rng.integers(words, size=(1, len(row)))
        law = keyed_colours.favour(row[None], colour, words, delta)[0, int(rng.integers(words))]
        rng.choice(len(row), p=law)

    name = f"keyed colours, delta {delta:g}"
    return Coded(name, tuple(channels), average, variation, "stream", draws, _speed(tree, one_block))


def _speed(tree: StateTree, one_block: Callable[[Floats], None], count: int = 200) -> float:
    """Blocks a second, states in the order of the last block's."""
    begin = time.process_time()
    for number in range(count):
        one_block(tree.blocks[-1].cover[number % len(tree.blocks[-1].cover)])
    return count / (time.process_time() - begin)


def shared_mass(tree: StateTree) -> float:
    """Probability that a block's text is a candidate of another state too, averaged over the blocks."""
    masses = []
    for block, reach in zip(tree.blocks, state_reach(tree), strict=True):
        states = np.bincount(block.symbol[block.cover > 0])
        masses.append(float(reach @ np.where(states[np.maximum(block.symbol, 0)] > 1, block.cover, 0).sum(1)))
    return float(np.mean(masses))

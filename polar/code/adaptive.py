"""Messages whose length follows the state: every state carries the most bits that it carries well enough.

Both ends derive the lengths from the law, so nothing about them is sent. The decoder first decides on the state, from
the symbols received so far, then reads the message with that state's length. A message is padded with as many key bits;
further ones may be dither, see `polar.code.codec`, which both ends know.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from polar.code.codec import code_channel, encode_blocks
from polar.code.construction import BlockCode, ChainEntropies, chain_entropies, length_set, message_sets_of
from polar.code.decoders import TIE, likeliest
from wm_env.coded import label_bits
from wm_env.common.arrays import Floats, Ints
from wm_env.information import total_variation
from wm_env.law import BlockLaw, JointLaw, induced_cover
from wm_env.problem import MOST_DITHER_BITS

_SPARE = 1e-9
"""What an error or a variation may exceed its bound by: sums over a block's channel, each term rounded to 1e-16, are
right to 1e-12; a state that meets its bound exactly is to pass."""


@dataclass(frozen=True)
class AdaptiveSettings:
    """How well a state must carry its message.

    Attributes:
        block_error: most error of a decoder that knows the state, in [0, 1].
        extra_variation: most TV that the code may add in a state to what the law itself spends there, in [0, 1].
        dither_bits: d, bits of a block's key beyond the pad, 0 to 8.

    Raises:
        ValueError: the error or the variation is no probability, or dither bits out of range.
    """

    block_error: float = 0.0
    extra_variation: float = 0.0
    dither_bits: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.dither_bits <= MOST_DITHER_BITS:
            raise ValueError(f"dither_bits={self.dither_bits}: 0 to {MOST_DITHER_BITS} bits are possible")
        if not (0 <= self.block_error <= 1 and 0 <= self.extra_variation <= 1):
            raise ValueError(
                f"block_error={self.block_error}, extra_variation={self.extra_variation}: "
                "probabilities, 0 to 1, are needed"
            )


@dataclass(frozen=True)
class AdaptiveCode:
    """The code of one block: a length for every state, a message set for every length.

    Attributes:
        lengths: l(s), shape (N,).
        codes: the code of every length 0, 1, ..., in that order.
        channels: P(x | w, d, s) of the states with that length, shape (n, 2^l, D, Q) each, in the order of the states.
    """

    lengths: Ints
    codes: tuple[BlockCode, ...]
    channels: tuple[Tensor, ...]


def adapt_codes(law: JointLaw, settings: AdaptiveSettings) -> list[AdaptiveCode]:
    """The code of every block, on the law's own message sets where it has them; see `adapt_code`."""
    return [
        adapt_code(block, chain_entropies(block, law.block_length), chosen, settings)
        for block, chosen in zip(law.blocks, message_sets_of(law), strict=True)
    ]


def adapt_code(
    law: BlockLaw, chain: ChainEntropies, chosen: Sequence[int] | None, settings: AdaptiveSettings
) -> AdaptiveCode:
    """The longest message of every state of a block that meets the settings; 0 bits are always possible."""
    share = total_variation(induced_cover(law), law.cover)
    most = label_bits(law.labels) if chosen is None else len(chosen)
    lengths = np.zeros(len(law.cover), dtype=np.int64)
    codes, channels = [], []
    for bits in range(most + 1):
        message_set = length_set(chain, bits) if chosen is None else tuple(chosen[:bits])
        code = BlockCode(len(chain.given_state), message_set, dither_bits=settings.dither_bits)
        channel = code_channel(law, code)
        # What every candidate says of the other words: exactly 0 if no two words share a candidate at the same dither.
        error = (channel.sum(1) - channel.amax(1)).mean(1).sum(1) / code.words
        added = total_variation(channel.mean((1, 2)), law.cover) - share
        good = (error <= settings.block_error + _SPARE) & (added <= settings.extra_variation + _SPARE)
        lengths[good.numpy()] = bits
        codes.append(code)
        channels.append(channel)
    return AdaptiveCode(lengths, tuple(codes), tuple(channel[lengths == bits] for bits, channel in enumerate(channels)))


@dataclass(frozen=True)
class DecodedBlock:
    """What a decoder returns when candidate x is sent in state s at dither d: length and word, shape (N, Q, D) each."""

    lengths: Ints
    words: Ints


def fixed_code(law: BlockLaw, code: BlockCode) -> AdaptiveCode:
    """The code that has the length of `code`, which has no frozen bits, in every state."""
    states, candidates = law.cover.shape
    bits = len(code.message_set)
    shorter = [dataclasses.replace(code, message_set=code.message_set[:few]) for few in range(bits)]
    unused = [law.cover.new_zeros(0, each.words, 1 << code.dither_bits, candidates) for each in shorter]
    return AdaptiveCode(
        lengths=np.full(states, bits, dtype=np.int64),
        codes=(*shorter, code),
        channels=(*unused, code_channel(law, code)),
    )


def send_adapted(
    law: BlockLaw, code: AdaptiveCode, states: Ints, words: Ints, dithers: Ints, rng: np.random.Generator
) -> Ints:
    """Draw a candidate for each of T states, shape (T,); the encoder of `polar.code.codec` for every length.

    Args:
        law, code: of the block.
        states: rows of the law, shape (T,).
        words: message xor pad, in [0, 2^l(s)), shape (T,).
        dithers: d, in [0, D), shape (T,).
        rng: the encoder's own randomness.
    """
    candidates = np.zeros_like(states)
    for bits, of_length in enumerate(code.codes):
        mine = code.lengths[states] == bits
        if mine.any():
            candidates[mine] = encode_blocks(law, of_length, states[mine], words[mine], dithers[mine], rng).candidate
    return candidates


def decode_states(law: BlockLaw, code: AdaptiveCode, observation: Tensor) -> DecodedBlock:
    """Decide on (state, candidate) by the largest Z(s) P~(x|s,d) of all that look alike, then on its likeliest word."""
    shape = (*law.cover.shape, 1 << code.codes[0].dither_bits)
    words = np.zeros(shape, dtype=np.int64)
    weight = np.zeros(shape)
    for bits, channel in enumerate(code.channels):
        mine = code.lengths == bits
        words[mine] = likeliest(channel).mT.numpy()
        weight[mine] = channel.mean(1).mT.numpy() * law.state_probs.numpy()[mine, None, None]
    seen = observation.numpy().reshape(-1)
    decided = np.stack([_likeliest(seen, given_dither) for given_dither in weight.reshape(len(seen), -1).T], axis=1)
    lengths = np.repeat(code.lengths, shape[1])[decided]
    words = np.take_along_axis(words.reshape(len(seen), -1), decided, axis=0)
    return DecodedBlock(lengths.reshape(shape), words.reshape(shape))


def _likeliest(seen: Ints, weight: Floats) -> Ints:
    """For every (state, candidate) the one with the largest weight of those that look alike; arrays of shape (N Q,)."""
    there = np.flatnonzero(seen >= 0)
    largest = np.zeros(int(seen.max()) + 1)
    np.maximum.at(largest, seen[there], weight[there])
    # Of those that tie up to rounding the first wins, so that both ends decide alike on any machines.
    ties = there[weight[there] >= largest[seen[there]] * (1 - TIE)][::-1]
    winner = np.zeros(len(largest), dtype=np.int64)
    winner[seen[ties]] = ties
    return winner[np.maximum(seen, 0)]


def adaptive_errors(law: BlockLaw, code: AdaptiveCode, decoded: DecodedBlock) -> tuple[float, float, float]:
    """(E[l], expected number of wrong bits, probability of a wrong block) of one block, exact."""
    sent = wrong = blocks = 0.0
    for bits, channel in enumerate(code.channels):
        rows = code.lengths == bits
        _, words, dithers, _ = channel.shape
        mass = (law.state_probs[torch.from_numpy(rows), None, None, None] * channel).mT.numpy() / (words * dithers)
        difference = decoded.words[rows][:, None] ^ np.arange(words)[None, :, None, None]
        lost = (decoded.lengths[rows] != bits)[:, None]
        sent += bits * float(mass.sum())
        wrong += float((mass * np.where(lost, bits, np.bitwise_count(difference))).sum())
        blocks += float((mass * (lost | (difference != 0))).sum())
    return sent, wrong, blocks


def law_given_dither(code: AdaptiveCode) -> Tensor:
    """P~(x|s,d) of uniform words, shape (N, D, Q): what a receiver can expect."""
    _, _, dithers, candidates = code.channels[0].shape
    induced = torch.zeros(len(code.lengths), dithers, candidates, dtype=torch.float64)
    for bits, channel in enumerate(code.channels):
        induced[torch.from_numpy(code.lengths == bits)] = channel.mean(1)
    return induced


def induced_law(code: AdaptiveCode) -> Tensor:
    """P~(x|s) of uniform words and keys, shape (N, Q): what an observer can expect."""
    return law_given_dither(code).mean(1)

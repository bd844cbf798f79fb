"""Polar Gelfand-Pinsker coding of n independent tokens: Theorem 1 at block lengths where it starts to hold.

The index sets are those of `polar.code.index_sets`. All forced bits are uniform for whoever lacks the key, so the
induced law is the same for every message.

A forced bit may meet a dead end: V^{i-1} and S^n determine V_i, and it is the other value. The encoder then sends what
the state allows and loses the bit; it never sends a token that the cover would not. Two remedies, both optional:

* look-ahead: several drafts of the frame, see `polar.code.lists.passes.fill`;
* salt: the first message bits of a level carry a number, and a mask made from that number is added to the rest. The
  encoder tries the numbers in turn, with more drafts as they mount up, until a level has no dead end. The decoder
  reads the number and takes the mask off.

For an erasure law (every bit is uniform or determined given S^n) the law of the encoder is then still exactly the
cover: whatever it does commutes with moving from one word that the state allows to another, and the pad makes all of
them equally likely.

For research: benchmarks/memoryless.py measures it for docs/theory.md, and no command calls it.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from polar.code.batches import decide
from polar.code.compiled import Bits
from polar.code.index_sets import Bools, IndexSets, TokenCode
from polar.code.lists.passes import fill
from polar.code.transform import label_words, polar_transform
from wm_env.common.arrays import Floats, Ints
from wm_env.law import BlockLaw

TRIES_PER_DOUBLING = 4
"""Salts tried before the number of drafts doubles."""

DOUBLINGS = 4
"""How often it doubles at most."""


@dataclass(frozen=True)
class Sent:
    """Frames of tokens.

    Attributes:
        symbols: token numbers, shape (F, n).
        dead_ends: forced bits of each frame that had probability 0 and were not sent, shape (F,).
    """

    symbols: NDArray[np.int64]
    dead_ends: NDArray[np.int64]


def draw_states(code: TokenCode, frames: int, length: int, generator: torch.Generator) -> Ints:
    """States S^n drawn from P(s), shape (frames, length)."""
    drawn = torch.multinomial(code.law.state_probs, frames * length, replacement=True, generator=generator)
    return drawn.reshape(frames, length).numpy()


def encode_tokens(
    code: TokenCode,
    sets: IndexSets,
    states: Ints,
    messages: Ints,
    keys: Ints,
    generator: np.random.Generator,
    particles: int = 1,
) -> Sent:
    """Hide one message in every frame.

    Args:
        code: the law of one token.
        sets: what the positions are used for.
        states: S^n, shape (F, n).
        messages: bits, shape (F, message_bits).
        keys: bits that the decoder has too, shape (F, key_bits).
        generator: source of the encoder's own draws.
        particles: drafts per frame at the first salt, see `polar.code.lists.passes.fill`; 1 is plain filling.

    Raises:
        ValueError: shapes that do not fit the sets.
    """
    check_bits("messages", messages, (len(states), sets.message_bits))
    check_bits("keys", keys, (len(states), sets.key_bits))
    prefix = np.zeros(states.shape, dtype=np.int64)
    dead_ends = np.zeros(len(states), dtype=np.int64)
    for number, level in enumerate(code.encoder):
        message = messages[:, _payload_slice(sets, number)]
        word, lost = _fill_level(level.llr[states, prefix], sets, number, message, keys, generator, particles)
        dead_ends += lost
        prefix = 2 * prefix + word
    return Sent(_draw_symbols(code.law, states, prefix, generator), dead_ends)


def decode_tokens(code: TokenCode, sets: IndexSets, received: Ints, keys: Ints) -> Bits:
    """The messages of received symbols Y^n of shape (F, n), shape (F, message_bits).

    Raises:
        ValueError: shapes that do not fit the sets.
    """
    check_bits("keys", keys, (len(received), sets.key_bits))
    prefix = np.zeros(received.shape, dtype=np.int64)
    messages: list[Bits] = []
    for number, level in enumerate(code.decoder):
        pad, fixed = _level_key(sets, number, keys)
        forced = sets.key[number]
        sent = np.empty(received.shape, dtype=np.uint8)
        sent[:, forced] = fixed
        sent[:, ~forced] = decide(level.llr[received, prefix], forced, fixed)
        bits = sent[:, sets.message[number]] ^ pad
        salt, rest = np.split(bits, [sets.salts[number]], axis=1)
        numbers = salt @ (1 << np.arange(salt.shape[1])[::-1])
        masks = [_mask(number, int(value), rest.shape[1]) for value in numbers]
        messages.append(rest ^ np.stack(masks))
        prefix = 2 * prefix + polar_transform(sent)
    return np.concatenate(messages, 1)


def _fill_level(
    llr: Floats,
    sets: IndexSets,
    number: int,
    message: Ints,
    keys: Ints,
    generator: np.random.Generator,
    particles: int,
) -> tuple[Bits, NDArray[np.int64]]:
    """The words U of one level, shape (F, n), and their dead ends, shape (F,): one salt after another."""
    pad, fixed = _level_key(sets, number, keys)
    salt_bits = sets.salts[number]
    words = np.empty(llr.shape, dtype=np.uint8)
    dead_ends = np.empty(len(llr), dtype=np.int64)
    pending = np.arange(len(llr))
    for salt in range(2**salt_bits):
        masked = message[pending] ^ _mask(number, salt, message.shape[1])
        salted = np.hstack((np.tile(label_words(np.array(salt), salt_bits), (len(pending), 1)), masked))
        values = _forced_values(sets, number, salted ^ pad[pending], fixed[pending])
        forced = sets.message[number] | sets.key[number]
        # Most frames need a try or two; the few hard ones need drafts more than they need tries.
        drafts = particles << min(salt // TRIES_PER_DOUBLING, DOUBLINGS)
        filled = fill(llr[pending], forced, values, generator, drafts)
        words[pending], dead_ends[pending] = filled.word, filled.dead_ends
        pending = pending[filled.dead_ends > 0]
        if not len(pending):
            break
    return words, dead_ends


def _mask(level: int, salt: int, length: int) -> Bits:
    """The public mask of a salt, `length` bits; salt 0 leaves the message as it is."""
    if salt == 0:
        return np.zeros(length, dtype=np.uint8)
    stream = hashlib.shake_256(f"covert-watermark salt {level} {salt}".encode()).digest((length + 7) // 8)
    return np.unpackbits(np.frombuffer(stream, dtype=np.uint8), count=length)


def _level_key(sets: IndexSets, number: int, keys: Ints) -> tuple[Ints, Ints]:
    """The pad of one level's message positions, shape (F, positions), and the bits of its key positions."""
    pad, fixed = np.split(keys, [int(sets.message.sum())], axis=1)
    return pad[:, _level_slice(sets.message, number)], fixed[:, _level_slice(sets.key, number)]


def _level_slice(mask: Bools, number: int) -> slice:
    """Where the bits of one level lie among the bits of all levels."""
    before = int(mask[:number].sum())
    return slice(before, before + int(mask[number].sum()))


def _payload_slice(sets: IndexSets, number: int) -> slice:
    """Where the message bits of one level lie in the message."""
    positions = _level_slice(sets.message, number)
    before = positions.start - sum(sets.salts[:number])
    return slice(before, before + positions.stop - positions.start - sets.salts[number])


def _forced_values(sets: IndexSets, number: int, padded: Ints, fixed: Ints) -> Bits:
    """Values of the forced positions of one level in the order of the positions."""
    word = np.zeros((len(padded), sets.message.shape[1]), dtype=np.uint8)
    word[:, sets.message[number]] = padded
    word[:, sets.key[number]] = fixed
    return word[:, sets.message[number] | sets.key[number]]


def check_bits(name: str, bits: Ints, shape: tuple[int, int]) -> None:
    """Refuse messages or keys of another shape.

    Raises:
        ValueError: the shape differs.
    """
    if bits.shape != shape:
        raise ValueError(f"{name} must have shape {shape} (frames, bits), got {bits.shape}")


def _draw_symbols(law: BlockLaw, states: Ints, labels: Ints, generator: np.random.Generator) -> NDArray[np.int64]:
    """X drawn from W(x|u,s) at every position, as token numbers."""
    cumulative = law.p_candidate.cumsum(-1)[torch.from_numpy(states), torch.from_numpy(labels)]
    point = torch.from_numpy(generator.random(states.shape))[..., None] * cumulative[..., -1:]
    candidate = (cumulative[..., :-1] <= point).sum(-1)
    symbols: NDArray[np.int64] = law.symbol[torch.from_numpy(states), candidate].numpy()
    return symbols

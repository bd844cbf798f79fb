"""The receiver of the scheme `parallel`: text, tokenizer, key and settings are enough. Free of torch.

It tokenises the text, hashes the tokens, transforms every n labels, and reads the message positions. It does not know
how long the message is, nor where it was written with what entropy.

An edit may change the number of tokens and shift all later steps. The second reader tries for each step k and each
change d of at most `MOST_SHIFT` that the steps before k stand where they were, and those after k are shifted by d. The
third tries two such steps, if there is parity enough.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from polar.text.canonical import MOST_FORMS
from polar.text.keys.derivation import MessageKeys
from polar.text.scheme import Attempt, Reader, Readers
from polar.text.schemes.parallel.design import message_positions
from polar.text.schemes.parallel.labels import read_bits, token_label
from polar.text.schemes.parallel.outer_code import (
    LONGEST_CODEWORD,
    can_erase,
    decode_frames,
    decode_shifted,
    open_bytes,
)
from wm_env.common.arrays import Ints
from wm_env.common.progress import Report
from wm_env.lm.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from polar.text.schemes.parallel import Parallel

MOST_SHIFT = 4
"""Largest change of the number of tokens by edits that is tried."""

_KEPT_LABELS = 1 << 15
"""Labels that other forms and readers need again, of some hundred nonces."""

MOST_EDITS = 2
"""Steps with edits that change the number of tokens; three would take twenty times as long."""


def message_mask(scheme: "Parallel") -> NDArray[np.bool_]:
    """The message positions of a step, shape (b, n).

    Raises:
        ValueError: the design leaves none.
    """
    return message_positions(scheme.positions, scheme.hash_bits, scheme.effective_tokens, scheme.bit_error)


def tokenizer_readers(scheme: "Parallel", tokenizer: TextTokenizer) -> Readers:
    """As in `Scheme`: one that takes the text as it is, and others that try whether edits have changed the number of
    tokens in one step or in several.

    Raises:
        ValueError: the tokenizer is not a byte-level one, or the design leaves no message positions.
    """
    strings, mask = tokenizer.strings, message_mask(scheme)
    steps = -(-8 * LONGEST_CODEWORD // int(mask.sum()))
    longest = scheme.positions * (steps + 1) + MOST_EDITS * MOST_SHIFT

    @lru_cache(maxsize=2 * MOST_FORMS)
    def tokens_of(text: str) -> tuple[Ints, Ints]:
        """The distinct tokens of what a frame can reach, and which of them stands where."""
        distinct, places = np.unique(np.array(tokenizer.encode(text)[:longest], dtype=np.int64), return_inverse=True)
        return distinct, places

    @lru_cache(maxsize=_KEPT_LABELS)
    def label_of(token: int, label_key: bytes) -> int:
        return token_label(strings[token], label_key, scheme.hash_bits) if token in strings else 0

    def reader(found: Callable[[Ints, MessageKeys], Iterator[bytes]]) -> Reader:
        def read(text: bytes, keys: MessageKeys, report: Report) -> Attempt:
            label_key, compared = keys.derive("labels"), 0
            distinct, places = tokens_of(text.decode("utf-8"))
            labels = np.array([label_of(token, label_key) for token in distinct.tolist()], dtype=np.int64)[places]
            for data in found(labels, keys):
                message, opened = open_bytes(data, keys)
                compared += opened
                if message is not None:
                    return Attempt(message, compared)
            return Attempt(None, compared, reason="what was read is no frame of this key")

        return read

    def plain(labels: Ints, keys: MessageKeys) -> Iterator[bytes]:
        (received,) = shifted_readings(labels, mask, keys, [0])
        return decode_frames(received, scheme.parity, keys.check_bits)

    def shifted(edits: int) -> Callable[[Ints, MessageKeys], Iterator[bytes]]:
        return lambda labels, keys: shifted_frames(labels, mask, scheme.parity, keys, edits)

    least = len(step_bytes(int(mask.sum()), 1)[0])
    edits = [count for count in range(1, MOST_EDITS + 1) if can_erase(least * count, scheme.parity)]
    return reader(plain), *(reader(shifted(count)) for count in edits)


def shifted_frames(
    labels: Ints, mask: NDArray[np.bool_], parity: int, keys: MessageKeys, edits: int
) -> Iterator[bytes]:
    """The frames that the text may hold if edits in so many steps changed the number of tokens.

    The bytes of these steps count as erased. What is before the first stands where it was, what is behind one is
    shifted by up to `MOST_SHIFT` tokens.
    """
    shifts, bits = range(-MOST_SHIFT, MOST_SHIFT + 1), int(mask.sum())
    readings = shifted_readings(labels, mask, keys, shifts)
    steps = step_bytes(bits, -(-8 * max(map(len, readings)) // bits))
    return decode_shifted(dict(zip(shifts, readings, strict=True)), steps, edits, parity, keys.check_bits)


def step_bytes(bits: int, count: int) -> list[range]:
    """The numbers of the bytes that each of `count` steps of `bits` bits touches; neighbours may share one."""
    return [range(step * bits // 8, -(-(step + 1) * bits // 8)) for step in range(count)]


def shifted_readings(labels: Ints, mask: NDArray[np.bool_], keys: MessageKeys, shifts: Sequence[int]) -> list[bytes]:
    """Whole bytes of what the message positions hold, the pad taken off, if step j of the sender stands at token
    j n + shift; zeros, under the pad, for steps that would begin before the text.
    """
    width, bits = mask.shape[1], int(mask.sum())
    before = [max(0, -(shift // width)) for shift in shifts]
    counts = [
        ahead + max(0, len(labels) - shift - ahead * width) // width
        for shift, ahead in zip(shifts, before, strict=True)
    ]
    places = np.concatenate([shift + width * np.arange(count) for shift, count in zip(shifts, counts, strict=True)])
    # All shifts are transformed at once; only the rows that lie in the text hold anything.
    inside = places >= 0
    held = np.zeros((len(places), bits), dtype=np.int64)
    held[inside] = read_bits(labels[places[inside, None] + np.arange(width)], mask)
    rows = np.split(held, np.cumsum(counts[:-1]))
    flat = [np.packbits(part.reshape(-1)[: part.size - part.size % 8].astype(np.uint8)) for part in rows]
    longest = max(map(len, flat))
    pad = np.frombuffer(keys.stream("pad").leading(8 * longest).to_bytes(longest, "big"), dtype=np.uint8)
    return [(part ^ pad[: len(part)]).tobytes() for part in flat]

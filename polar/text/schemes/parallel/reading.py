"""The receiver of the scheme `parallel`: text, tokenizer, key and settings are enough. Free of torch.

It tokenises the text, hashes the tokens, transforms every n labels, and reads the message positions. It does not know
how long the message is, nor where it was written with what entropy.

An edit may change the number of tokens and shift all later steps. The second reader tries for each step k and each
change d of at most `MOST_SHIFT` that the steps before k stand where they were, and those after k are shifted by d. The
third tries two such steps, if there is parity enough.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from polar.text.keys.derivation import MessageKeys
from polar.text.scheme import Attempt, Reader, Readers
from polar.text.schemes.parallel.design import message_positions
from polar.text.schemes.parallel.labels import read_bits, token_label
from polar.text.schemes.parallel.outer_code import decode_frames, decode_shifted, open_bytes
from wm_env.common.arrays import Ints
from wm_env.common.progress import Report
from wm_env.lm.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from polar.text.schemes.parallel import Parallel

MOST_SHIFT = 4
"""Largest change of the number of tokens by edits that is tried."""

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
    tokens_of = lru_cache(maxsize=128)(tokenizer.encode)

    def reader(found: Callable[[Ints, MessageKeys], Iterator[bytes]]) -> Reader:
        def read(text: bytes, keys: MessageKeys, report: Report) -> Attempt:
            label_key, compared = keys.derive("labels"), 0
            tokens = tokens_of(text.decode("utf-8"))
            label_of = {
                token: token_label(strings[token], label_key, scheme.hash_bits) if token in strings else 0
                for token in set(tokens)
            }
            labels = np.array([label_of[token] for token in tokens], dtype=np.int64)
            for data in found(labels, keys):
                message, opened = open_bytes(data, keys)
                compared += opened
                if message is not None:
                    return Attempt(message, compared)
            return Attempt(None, compared, reason="what was read is no frame of this key")

        return read

    def plain(labels: Ints, keys: MessageKeys) -> Iterator[bytes]:
        return decode_frames(unpadded(step_bits(labels, mask), keys), scheme.parity, keys.check_bits)

    def shifted(edits: int) -> Callable[[Ints, MessageKeys], Iterator[bytes]]:
        return lambda labels, keys: shifted_frames(labels, mask, scheme.parity, keys, edits)

    return reader(plain), *(reader(shifted(edits)) for edits in range(1, MOST_EDITS + 1))


def step_bits(labels: Ints, mask: NDArray[np.bool_], start: int = 0) -> NDArray[np.int64]:
    """What the message positions of all whole steps from token `start` on hold, shape (steps, mask.sum())."""
    width = mask.shape[1]
    steps = max(0, len(labels) - start) // width
    return read_bits(labels[start : start + steps * width].reshape(steps, width), mask)


def shifted_frames(
    labels: Ints, mask: NDArray[np.bool_], parity: int, keys: MessageKeys, edits: int
) -> Iterator[bytes]:
    """The frames that the text may hold if edits in so many steps changed the number of tokens.

    The bytes of these steps count as erased. What is before the first stands where it was, what is behind one is
    shifted by up to `MOST_SHIFT` tokens.
    """
    width, bits = mask.shape[1], int(mask.sum())
    readings: dict[int, bytes] = {}
    for shift in range(-MOST_SHIFT, MOST_SHIFT + 1):
        # Row j holds step j of the sender, which stands at token j * width + shift; there is no row 0 to the left.
        rows = step_bits(labels, mask, shift % width if shift < 0 else shift)
        if shift < 0:
            rows = np.concatenate([np.zeros((-(shift // width), bits), dtype=np.int64), rows])
        readings[shift] = unpadded(rows, keys)
    count = -(-8 * max(map(len, readings.values())) // bits)
    steps = [range(step * bits // 8, -(-(step + 1) * bits // 8)) for step in range(count)]
    return decode_shifted(readings, steps, edits, parity, keys.check_bits)


def unpadded(bits: NDArray[np.int64], keys: MessageKeys) -> bytes:
    """Whole bytes of what was read, the pad taken off."""
    flat = bits.reshape(-1)[: bits.size - bits.size % 8].astype(np.uint8)
    pad = keys.stream("pad").leading(len(flat))
    return (int.from_bytes(np.packbits(flat).tobytes(), "big") ^ pad).to_bytes(len(flat) // 8, "big")

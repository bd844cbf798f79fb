"""The receiver of the scheme `parallel`: text, tokenizer, key and settings are enough. Free of torch.

It tokenises the text, hashes the tokens, transforms every n labels, and reads the message positions. It does not know
how long the message is, nor where it was written with what entropy.

An edit may change the number of tokens and shift all later steps. The second reader tries for each step k and each
change d of at most `MOST_SHIFT` that the steps before k stand where they were, and those after k are shifted by d.
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
from polar.text.schemes.parallel.outer_code import decode_erased, decode_frames, open_bytes
from wm_env.common.arrays import Ints
from wm_env.common.progress import Report
from wm_env.lm.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from polar.text.schemes.parallel import Parallel

MOST_SHIFT = 4
"""Largest change of the number of tokens by an edit that is tried."""


def message_mask(scheme: "Parallel") -> NDArray[np.bool_]:
    """The message positions of a step, shape (b, n).

    Raises:
        ValueError: the design leaves none.
    """
    return message_positions(scheme.positions, scheme.hash_bits, scheme.effective_tokens, scheme.bit_error)


def tokenizer_readers(scheme: "Parallel", tokenizer: TextTokenizer) -> Readers:
    """As in `Scheme`: one that takes the text as it is, and one that tries whether an edit has changed the number of
    tokens of one step.

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

    def shifted(labels: Ints, keys: MessageKeys) -> Iterator[bytes]:
        return shifted_frames(labels, mask, scheme.parity, keys)

    return reader(plain), reader(shifted)


def step_bits(labels: Ints, mask: NDArray[np.bool_], start: int = 0) -> NDArray[np.int64]:
    """What the message positions of all whole steps from token `start` on hold, shape (steps, mask.sum())."""
    width = mask.shape[1]
    steps = max(0, len(labels) - start) // width
    return read_bits(labels[start : start + steps * width].reshape(steps, width), mask)


def shifted_frames(labels: Ints, mask: NDArray[np.bool_], parity: int, keys: MessageKeys) -> Iterator[bytes]:
    """The frames that the text may hold if an edit in step k changed the number of tokens by d, for all k and d.

    The bytes of step k count as erased. What is before it stands where it was, what is behind it is shifted by d.
    """
    width, bits = mask.shape[1], int(mask.sum())
    plain = unpadded(step_bits(labels, mask), keys)
    for shift in sorted(range(-MOST_SHIFT, MOST_SHIFT + 1), key=abs)[1:]:
        # Row j holds step j of the sender, which stands at token j * width + shift; there is no row 0 to the left.
        rows = step_bits(labels, mask, shift % width if shift < 0 else shift)
        if shift < 0:
            rows = np.concatenate([np.zeros((-(shift // width), bits), dtype=np.int64), rows])
        behind = unpadded(rows, keys)
        for step in range(len(rows)):
            erased = range(step * bits // 8, -(-(step + 1) * bits // 8))
            yield from decode_erased(plain, behind, erased, parity, keys.check_bits)


def unpadded(bits: NDArray[np.int64], keys: MessageKeys) -> bytes:
    """Whole bytes of what was read, the pad taken off."""
    flat = bits.reshape(-1)[: bits.size - bits.size % 8].astype(np.uint8)
    pad = keys.stream("pad").leading(len(flat))
    return (int.from_bytes(np.packbits(flat).tobytes(), "big") ^ pad).to_bytes(len(flat) // 8, "big")

"""The outer code of the scheme `parallel`: a Reed-Solomon code over bytes around the frame (library reedsolo).

A step loses bits where the model's law forces them, and an edited token spoils the bits of its step, so errors come in
bursts: a code over bytes counts a spoilt byte once. The frame, filled up with zeros to whole bytes, k of them, gets P
parity bytes; up to P / 2 wrong bytes are corrected. The receiver does not know k. It tries all lengths, and the check
value of the frame decides.
"""

from collections.abc import Iterator
from contextlib import suppress

import numpy as np
from reedsolo import ReedSolomonError, RSCodec, init_tables

from polar.text.framing import CHECK_BITS, SHORT_HEADER, BitString, FrameKeys, Message, frame_length, open_frame
from wm_env.common.arrays import Ints

_LOG, _EXP = (np.array(table, dtype=np.int64) for table in init_tables()[:2])

LONGEST_CODEWORD = 255
"""Bytes: a Reed-Solomon code over bytes has no more positions."""


def encode_frame(frame: BitString, parity: int) -> bytes:
    """The codeword: the frame in whole bytes, then `parity` bytes.

    Raises:
        ValueError: it would be longer than a codeword can be.
    """
    size = -(-frame.length // 8)
    most = LONGEST_CODEWORD - parity
    if size > most:
        raise ValueError(
            f"the message does not fit: its frame has {size} bytes, with {parity} parity bytes at most {most} are "
            "possible; send it in parts, or with the scheme stream"
        )
    data = frame.then(BitString(0, 8 * size - frame.length)).to_bytes()
    return bytes(RSCodec(parity).encode(data)) if parity else data


def decode_frames(received: bytes, parity: int, check_bits: int = CHECK_BITS) -> Iterator[bytes]:
    """The frames that codewords at the beginning of `received` may hold, in whole bytes, the shortest first."""
    codec = RSCodec(parity) if parity else None
    for end in range((check_bits + SHORT_HEADER) // 8 + parity, min(len(received), LONGEST_CODEWORD) + 1):
        if codec is None:
            yield received[:end]
            continue
        try:
            yield bytes(codec.decode(received[:end])[0])
        except ReedSolomonError:
            continue


def decode_erased(
    before: bytes, behind: bytes, erased: range, parity: int, check_bits: int = CHECK_BITS
) -> Iterator[bytes]:
    """The frames of codewords that agree with `before` up to the erased bytes and with `behind` after them.

    A word whose only errors are E known places has syndromes S_j = sum_e y_e z_e^j, which obey the recurrence with the
    roots z_e: P - E checks, for all lengths of the codeword at once. Only what passes them is decoded.
    """
    size = min(len(behind), LONGEST_CODEWORD)
    if not len(erased) < parity or erased.start > len(before) or erased.stop > size:
        return
    syndromes = _running_syndromes(behind[:size], parity)
    start = _running_syndromes(before[: erased.start], parity)[-1] ^ syndromes[erased.stop]
    locator = np.array([1], dtype=np.int64)
    for place in erased:
        locator = np.append(locator, 0) ^ np.append(0, _times(locator, _EXP[-place % 255]))
    shortest = max(erased.stop, (check_bits + SHORT_HEADER) // 8 + parity)
    sums = start ^ syndromes[shortest:]
    checks = [
        np.bitwise_xor.reduce(_times(sums[:, number - len(erased) : number + 1][:, ::-1], locator), axis=1)
        for number in range(len(erased), parity)
    ]
    for end in (shortest + np.flatnonzero(~np.any(checks, axis=0))).tolist():
        word = before[: erased.start] + bytes(len(erased)) + behind[erased.stop : end]
        with suppress(ReedSolomonError):
            yield bytes(RSCodec(parity).decode(word, erase_pos=list(erased))[0])


def _running_syndromes(data: bytes, parity: int) -> Ints:
    """sum_(i < n) r_i a^(-i j) over the field of bytes, for every n up to the length, shape (length + 1, parity)."""
    powers = _EXP[-np.outer(np.arange(len(data)), np.arange(parity)) % 255]
    terms = _times(np.frombuffer(data, dtype=np.uint8).astype(np.int64)[:, None], powers)
    return np.concatenate([np.zeros((1, parity), dtype=np.int64), np.bitwise_xor.accumulate(terms, axis=0)])


def _times(first: Ints, second: Ints) -> Ints:
    """Products in the field of bytes."""
    product: Ints = np.where((first == 0) | (second == 0), 0, _EXP[(_LOG[first] + _LOG[second]) % 255])
    return product


def open_bytes(data: bytes, keys: FrameKeys) -> tuple[Message | None, int]:
    """The message of a frame in whole bytes if it fills them and its check value is right; check values compared."""
    bits = BitString(int.from_bytes(data, "big"), 8 * len(data))
    length = frame_length(bits, keys)
    if length is None or -(-length // 8) != len(data) or bits.after(length).value:
        return None, 0
    return open_frame(bits.first(length), keys), 1

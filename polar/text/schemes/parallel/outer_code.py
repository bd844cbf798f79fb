"""The outer code of the scheme `parallel`: a Reed-Solomon code over bytes around the frame (library reedsolo).

A step loses bits where the model's law forces them, and an edited token spoils the bits of its step, so errors come in
bursts: a code over bytes counts a spoilt byte once. The frame, filled up with zeros to whole bytes, k of them, gets P
parity bytes; up to P / 2 wrong bytes are corrected. The receiver does not know k. It tries all lengths, and the check
value of the frame decides.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import NDArray
from reedsolo import ReedSolomonError, RSCodec, init_tables

from polar.text.framing import CHECK_BITS, SHORT_HEADER, BitString, Message, frame_length, open_frame
from polar.text.keys.derivation import MessageKeys
from wm_env.common.arrays import Ints

_LOG, _EXP = (np.array(table, dtype=np.int64) for table in init_tables()[:2])

_PRODUCTS = np.zeros((256, 256), dtype=np.int64)
_PRODUCTS[1:, 1:] = _EXP[(_LOG[1:, None] + _LOG[1:]) % 255]

_CHECKS = 4
"""Parity checks that are compared before a word is decoded, if there are so many; another word passes with 2^-32."""

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
    return bytes(_codec(parity).encode(data)) if parity else data


@lru_cache(maxsize=8)
def _codec(parity: int) -> RSCodec:
    return RSCodec(parity)


def decode_frames(received: bytes, parity: int, check_bits: int = CHECK_BITS) -> Iterator[bytes]:
    """The frames that codewords at the beginning of `received` may hold, in whole bytes, the shortest first."""
    codec = _codec(parity) if parity else None
    for end in range((check_bits + SHORT_HEADER) // 8 + parity, min(len(received), LONGEST_CODEWORD) + 1):
        if codec is None:
            yield received[:end]
            continue
        try:
            yield bytes(codec.decode(received[:end])[0])
        except ReedSolomonError:
            continue


def can_erase(count: int, parity: int) -> bool:
    """Whether `decode_shifted` can do without so many bytes: a check must be left to tell a codeword."""
    return count < parity


def decode_shifted(
    readings: Mapping[int, bytes], steps: Sequence[range], edits: int, parity: int, check_bits: int = CHECK_BITS
) -> Iterator[bytes]:
    """The frames of codewords that were edited in so many steps, if each edit shifted what is behind it.

    Up to the first edited step the codeword agrees with the reading of shift 0, from one edited step to the next with
    that of one shift, behind the last with that of another. The bytes of the edited steps count as erased. A word whose
    only errors are E known places has syndromes S_j = sum_e y_e z_e^j, which obey the recurrence whose roots are the
    z_e. Its checks are linear, so those of a codeword are sums of those of running syndromes: `_CHECKS` of them are
    compared for all shifts and all lengths of the codeword at once, and only what passes is decoded.

    Args:
        readings: the bytes at every shift.
        steps: the bytes that each step touches.
        edits: number of edited steps.
    """
    size = min(max(map(len, readings.values())), LONGEST_CODEWORD)
    most = max(len(step) for step in steps) * edits if steps else 0
    if not steps or not can_erase(most, parity):
        return
    shifts = list(readings)
    running = np.stack([_running_syndromes(readings[shift], size, min(most + _CHECKS, parity)) for shift in shifts])
    known = np.array([min(len(readings[shift]), size) for shift in shifts])
    shortest = (check_bits + SHORT_HEADER) // 8 + parity
    ends = np.arange(size + 1)
    for edited in combinations(steps, edits):
        erased = sorted({place for step in edited for place in step})
        if erased[-1] >= size or edited[0].start > known[shifts.index(0)]:
            continue
        checks = _checks(running, tuple(erased))
        # One axis for the shift behind each edit; what was summed up to there is known from the shifts before.
        total = checks[shifts.index(0), edited[0].start]
        for step, following in pairwise(edited):
            total = total[..., None] ^ checks[:, step.stop] ^ checks[:, max(following.start, step.stop)]
        whole = (total[..., None] ^ checks[:, edited[-1].stop])[..., None] == checks
        whole &= (ends >= max(shortest, edited[-1].stop)) & (ends <= known[:, None])
        # The codeword may end inside the last edited step.
        cut = [
            (*chosen, end)
            for chosen in np.argwhere(total == 0).tolist()
            for end in range(max(shortest, edited[-1].start + 1), edited[-1].stop)
        ]
        for *chosen, end in [*map(tuple, np.argwhere(whole).tolist()), *cut]:
            word = bytearray(readings[0][: edited[0].start])
            for number, step in enumerate(edited):
                stop = edited[number + 1].start if number + 1 < len(edited) else end
                word += bytes(min(step.stop, end) - len(word))
                word += readings[shifts[chosen[number]]][step.stop : stop] if number < len(chosen) else b""
            if len(word) == end:
                places = [place for place in erased if place < end]
                with suppress(ReedSolomonError):
                    yield bytes(_codec(parity).decode(bytes(word), erase_pos=places)[0])


def _checks(syndromes: Ints, erased: tuple[int, ...]) -> NDArray[np.uint32]:
    """The checks that the erased places leave over, of syndromes (..., P), four bytes as one number: (...)."""
    locator, first = _locator(erased), len(erased)
    checks = np.zeros((*syndromes.shape[:-1], _CHECKS), dtype=np.uint8)
    for number in range(first, min(first + _CHECKS, syndromes.shape[-1])):
        terms = _times(syndromes[..., number - first : number + 1][..., ::-1], locator)
        checks[..., number - first] = np.bitwise_xor.reduce(terms, axis=-1)
    return checks.view(np.uint32)[..., 0]


@lru_cache(maxsize=1 << 12)
def _locator(erased: tuple[int, ...]) -> Ints:
    """The polynomial whose roots stand for the erased places, shape (E + 1,)."""
    locator = np.array([1], dtype=np.int64)
    for place in erased:
        locator = np.append(locator, 0) ^ np.append(0, _times(locator, _EXP[-place % 255]))
    return locator


def _running_syndromes(data: bytes, size: int, count: int) -> Ints:
    """sum_(i < n) r_i a^(-i j) over the field of bytes for every n <= `size`, shape (size + 1, count); r_i is 0 behind
    the data.
    """
    values = np.zeros(size, dtype=np.int64)
    values[: len(data)] = np.frombuffer(data[:size], dtype=np.uint8)
    terms = _times(values[:, None], _powers(size, count))
    return np.concatenate([np.zeros((1, count), dtype=np.int64), np.bitwise_xor.accumulate(terms, axis=0)])


@lru_cache(maxsize=64)
def _powers(size: int, count: int) -> Ints:
    powers: Ints = _EXP[-np.outer(np.arange(size), np.arange(count)) % 255]
    return powers


def _times(first: Ints, second: Ints) -> Ints:
    """Products in the field of bytes."""
    return _PRODUCTS.take(first << 8 | second)


def open_bytes(data: bytes, keys: MessageKeys) -> tuple[Message | None, int]:
    """The message of a frame in whole bytes if it fills them and its check value is right; check values compared."""
    bits = BitString(int.from_bytes(data, "big"), 8 * len(data))
    length = frame_length(bits, keys)
    if length is None or -(-length // 8) != len(data) or bits.after(length).value:
        return None, 0
    return open_frame(bits.first(length), keys), 1

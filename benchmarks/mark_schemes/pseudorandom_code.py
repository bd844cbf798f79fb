"""Text marks with a pseudo-random error-correcting code (after Christ and Gunn 2024).

A codeword has one bit a token and satisfies checks of three bits each, known to those who have the key; a pad makes it
uniform. A keyed hash cuts the tokens of a place in two; the sender draws a half by its mass with the codeword's bit as
the coin, then a token of it. The receiver decodes the halves with belief propagation, then with ordered statistics.
Places are counted from the beginning; beginnings and ends that were cut are looked for, other insertions are not.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar

import numpy as np

from mark_schemes.door import PAYLOAD_BITS, MarkRead
from mark_schemes.hashing import Words, sample, seed_of, words_of
from wm_env.common.arrays import Floats, Ints
from wm_env.lm.tokenizer import TextTokenizer

ROUNDS, FLIPPED, ORDERED = 40, 0.1, 2
_SHIFTS = 8


class PseudorandomCode:
    """As in `Mark`."""

    name: ClassVar[str] = "PRC"
    needs_length: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer

    def chooser(self, key: int, number: int, payload: Sequence[int], length: int) -> "_Chooser":
        return _Chooser(key, number, _code(key, length).codeword(payload) ^ _pad(key, number, length))

    def read(self, key: int, number: int, text: str, length: int) -> MarkRead:
        tokens = np.array(self._tokenizer.encode(text), dtype=np.int64)
        code, pad, seeds = _code(key, length), _pad(key, number, length), _place_seeds(key, length)
        best = MarkRead(np.zeros(PAYLOAD_BITS, dtype=np.int64), -np.inf)
        for shift in range(-_SHIFTS, _SHIFTS + 1):
            evidence = np.zeros(length)
            places = np.arange(max(0, shift), min(length, len(tokens) + shift))
            halves = _halves(seeds[places], tokens[places - shift])
            evidence[places] = 1 - 2 * (halves ^ pad[places])
            score = code.agreement(evidence)
            if score > best.score:
                best, kept = MarkRead(best.bits, score), evidence
        return MarkRead(code.decode(kept * np.log((1 - FLIPPED) / FLIPPED)), best.score)


class Code:
    """A linear code of `length` bits for `PAYLOAD_BITS`.

    Each bit behind the payload is the sum of two earlier ones, which a keyed generator chooses among those least used;
    then all are shuffled.
    """

    def __init__(self, key: int, length: int) -> None:
        rng = np.random.default_rng(seed_of(key, length))
        order = rng.permutation(length)
        generator = np.zeros((length, PAYLOAD_BITS), dtype=np.int64)
        generator[:PAYLOAD_BITS] = np.eye(PAYLOAD_BITS, dtype=np.int64)
        checks = np.zeros((length - PAYLOAD_BITS, 3), dtype=np.int64)
        used = np.zeros(length)
        for bit in range(PAYLOAD_BITS, length):
            two = np.lexsort((rng.random(bit), used[:bit]))[:2]
            used[two] += 1
            generator[bit] = generator[two].sum(axis=0) % 2
            checks[bit - PAYLOAD_BITS] = [*two, bit]
        self._checks, self._message = order[checks], order[:PAYLOAD_BITS]
        self._generator = np.empty_like(generator)
        self._generator[order] = generator

    def codeword(self, payload: Sequence[int]) -> Ints:
        """The bits of a payload, shape (length,)."""
        word: Ints = self._generator @ np.array(payload) % 2
        return word

    def agreement(self, evidence: Floats) -> float:
        """How many checks hold, less those that do not, in standard deviations."""
        products = evidence[self._checks].prod(axis=1)
        return float(products.sum() / np.sqrt(max(np.abs(products).sum(), 1.0)))

    def decode(self, evidence: Floats) -> Ints:
        """The likeliest payload; `evidence` is ln P(0) / P(1) of each bit."""
        sums = evidence.copy()
        sent = np.zeros(self._checks.shape)
        for _ in range(ROUNDS):
            slopes = np.tanh(np.clip(sums[self._checks] - sent, -20, 20) / 2)
            others = np.stack(
                [slopes[:, 1] * slopes[:, 2], slopes[:, 0] * slopes[:, 2], slopes[:, 0] * slopes[:, 1]], 1
            )
            sent = 2 * np.arctanh(np.clip(others, -0.999999, 0.999999))
            sums = evidence.copy()
            np.add.at(sums, self._checks, sent)
        return self._ordered(sums, evidence)

    def _ordered(self, sums: Floats, evidence: Floats) -> Ints:
        """The payload whose codeword fits best among those that differ from the surest bits in at most `ORDERED`."""
        reduced, inverse = self._generator.copy(), np.eye(PAYLOAD_BITS, dtype=np.int64)
        basis: list[int] = []
        # Columns are changed so that the surest independent bits become the payload themselves.
        for bit in np.argsort(-np.abs(sums)).tolist():
            free = np.flatnonzero(reduced[bit, len(basis) :]) + len(basis)
            if not len(free):
                continue
            place = len(basis)
            for matrix in (reduced, inverse):
                matrix[:, [place, free[0]]] = matrix[:, [free[0], place]]
            clear = np.flatnonzero(reduced[bit])
            clear = clear[clear != place]
            for matrix in (reduced, inverse):
                matrix[:, clear] ^= matrix[:, [place]]
            basis.append(bit)
            if len(basis) == PAYLOAD_BITS:
                break
        start = (sums[basis] < 0).astype(np.int64)
        flips = [np.zeros(PAYLOAD_BITS, dtype=np.int64), *np.eye(PAYLOAD_BITS, dtype=np.int64)]
        single = np.eye(PAYLOAD_BITS, dtype=np.int64)
        flips += [single[a] + single[b] for a in range(PAYLOAD_BITS) for b in range(a)]
        tried = np.stack(flips) ^ start
        words = tried @ reduced.T % 2
        payload: Ints = inverse @ tried[((1 - 2 * words) @ evidence).argmax()] % 2
        return payload


def _pad(key: int, number: int, length: int) -> Ints:
    bits: Ints = (words_of(seed_of(key, number, 7), np.arange(length)) & np.uint64(1)).astype(np.int64)
    return bits


@lru_cache(maxsize=16)
def _code(key: int, length: int) -> Code:
    return Code(key, length)


@lru_cache(maxsize=16)
def _place_seeds(key: int, length: int) -> Words:
    return np.array([seed_of(key, place, 8) for place in range(length)], dtype=np.uint64)


def _halves(seeds: Words, tokens: Ints) -> Ints:
    """The half of the vocabulary that each token is in; the seeds of the places broadcast with the tokens."""
    halves: Ints = (words_of(seeds, tokens) & np.uint64(1)).astype(np.int64)
    return halves


class _Chooser:
    def __init__(self, key: int, number: int, codeword: Ints) -> None:
        self._key, self._codeword, self._place = key, codeword, 0
        self._rng = np.random.default_rng([key, number])

    def choose(self, law: Floats) -> int:
        tokens = np.flatnonzero(law > 0)
        mass = law[tokens] / law[tokens].sum()
        halves = _halves(np.array(seed_of(self._key, self._place, 8), dtype=np.uint64), tokens)
        ones = float(mass @ halves)
        # The coin is the codeword's bit, the rest of a uniform number is the sender's own.
        point = (1 - self._codeword[self._place] + self._rng.random()) / 2
        inside = mass * (halves == int(point < ones))
        self._place += 1
        return int(tokens[sample(inside, self._rng)])

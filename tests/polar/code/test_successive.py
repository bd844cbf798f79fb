"""Successive cancellation against full enumeration of small words."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from polar.code.successive import CERTAIN, boxplus, conditional_llrs, decide, fill
from polar.code.transform import polar_transform

Floats = NDArray[np.float64]


def generator_matrix(n: int) -> NDArray[np.int64]:
    matrix = np.ones((1, 1), dtype=np.int64)
    while len(matrix) < n:
        matrix = np.kron(matrix, np.array([[1, 0], [1, 1]]))
    return matrix


def word_law(llr: Floats) -> dict[tuple[int, ...], float]:
    """P(V) for every V, from the product law of U."""
    n = len(llr)
    matrix = generator_matrix(n)
    law = {}
    for word in product((0, 1), repeat=n):
        u = np.array(word) @ matrix % 2
        law[word] = math.prod(1 / (1 + math.exp(-x if bit == 0 else x)) for x, bit in zip(llr, u, strict=True))
    return law


def prefix_prob(law: dict[tuple[int, ...], float], prefix: tuple[int, ...]) -> float:
    return sum(p for word, p in law.items() if word[: len(prefix)] == prefix)


def random_llrs(seed: int, frames: int, n: int) -> Floats:
    return np.random.default_rng(seed).normal(0, 2, (frames, n))


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.sampled_from([1, 2, 4, 8]))
def test_conditional_llrs_match_enumeration(seed: int, n: int) -> None:
    llr = random_llrs(seed, 2, n)
    sent = np.random.default_rng(seed + 1).integers(0, 2, (2, n))
    leaves = conditional_llrs(llr, sent)
    for frame in range(2):
        law = word_law(llr[frame])
        for i in range(n):
            prefix = tuple(int(bit) for bit in sent[frame, :i])
            expected = math.log(prefix_prob(law, (*prefix, 0)) / prefix_prob(law, (*prefix, 1)))
            assert leaves[frame, i] == pytest.approx(expected, abs=1e-8)


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.sampled_from([1, 2, 4, 8]))
def test_decide_takes_the_likelier_bit_given_the_bits_before(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    llr = random_llrs(seed, 3, n)
    forced = rng.random(n) < 0.4
    values = rng.integers(0, 2, (3, int(forced.sum())))
    decided = polar_transform(decide(llr, forced, values))
    for frame in range(3):
        law, known, prefix = word_law(llr[frame]), iter(values[frame]), ()
        for i in range(n):
            likelier = int(prefix_prob(law, (*prefix, 1)) > prefix_prob(law, (*prefix, 0)))
            prefix = (*prefix, int(next(known)) if forced[i] else likelier)
        assert tuple(decided[frame]) == prefix


def test_decide_breaks_ties_in_favour_of_bit_0() -> None:
    nothing = np.empty((1, 0), dtype=np.uint8)
    assert (decide(np.zeros((1, 8)), np.zeros(8, dtype=bool), nothing) == 0).all()
    assert (decide(np.full((1, 8), -0.0), np.zeros(8, dtype=bool), nothing) == 0).all()


def filling_law(law: dict[tuple[int, ...], float], forced: dict[int, int]) -> dict[tuple[int, ...], float]:
    """The law of V under successive-cancellation filling."""
    filled = {}
    for word in law:
        prob = 1.0
        for i, bit in enumerate(word):
            if i in forced:
                prob *= forced[i] == bit
            elif prob > 0:
                prob *= prefix_prob(law, word[: i + 1]) / prefix_prob(law, word[:i])
        filled[word] = prob
    return filled


def look_ahead_law(law: dict[tuple[int, ...], float], forced: dict[int, int]) -> dict[tuple[int, ...], float]:
    """P(V) conditioned on all forced bits at once."""
    kept = {word: p if all(word[i] == bit for i, bit in forced.items()) else 0.0 for word, p in law.items()}
    total = sum(kept.values())
    return {word: p / total for word, p in kept.items()}


def distance(first: dict[tuple[int, ...], float], second: dict[tuple[int, ...], float]) -> float:
    return sum(abs(first[word] - second[word]) for word in first) / 2


def empirical(words: NDArray[np.uint8]) -> dict[tuple[int, ...], float]:
    n = words.shape[1]
    number = polar_transform(words).astype(np.int64) @ (1 << np.arange(n)[::-1])
    share = np.bincount(number, minlength=2**n) / len(words)
    return {word: float(share[i]) for i, word in enumerate(product((0, 1), repeat=n))}


LLR = np.array([1.2, -0.4, 2.0, 0.7])
FORCED = {1: 1, 3: 0}
FRAMES = 25_000


def filled_frames(particles: int) -> dict[tuple[int, ...], float]:
    forced = np.array([i in FORCED for i in range(4)])
    values = np.tile(np.array(list(FORCED.values()), dtype=np.uint8), (FRAMES, 1))
    filled = fill(np.tile(LLR, (FRAMES, 1)), forced, values, torch.Generator().manual_seed(3), particles)
    assert (filled.dead_ends == 0).all()
    return empirical(filled.word)


def test_fill_with_one_particle_draws_from_the_filling_law_and_not_from_the_look_ahead_law() -> None:
    law = word_law(LLR)
    drawn = filled_frames(1)
    # Four free words and 25 000 draws: the distance of a right sampler is below 0.015 with room to spare.
    assert distance(filling_law(law, FORCED), look_ahead_law(law, FORCED)) > 0.05
    assert distance(drawn, filling_law(law, FORCED)) < 0.015


def test_fill_with_many_particles_draws_from_the_look_ahead_law() -> None:
    law = look_ahead_law(word_law(LLR), FORCED)
    far = distance(filled_frames(2), law)
    near = distance(filled_frames(64), law)
    assert near < 0.015
    assert near < far < distance(filling_law(word_law(LLR), FORCED), law)


def erasures(seed: int, frames: int, n: int, share: float) -> Floats:
    rng = np.random.default_rng(seed)
    known = np.where(rng.random((frames, n)) < 0.5, CERTAIN, -CERTAIN)
    return np.where(rng.random((frames, n)) < share, 0.0, known)


@pytest.mark.parametrize("particles", [1, 5, 16])
@pytest.mark.parametrize("n", [2, 16, 128])
def test_fill_never_contradicts_a_certain_bit_and_counts_what_it_could_not_send(n: int, particles: int) -> None:
    llr = erasures(n, 200, n, 0.5)
    rng = np.random.default_rng(0)
    forced = rng.random(n) < 0.5
    values = rng.integers(0, 2, (200, int(forced.sum())), dtype=np.uint8)
    filled = fill(llr, forced, values, torch.Generator().manual_seed(1), particles)
    assert ((filled.word == (llr < 0)) | (llr == 0)).all()
    lost = (polar_transform(filled.word)[:, forced] != values).sum(1)
    assert lost.any()
    assert (lost == filled.dead_ends).all()


def test_look_ahead_meets_fewer_dead_ends() -> None:
    n = 64
    llr = erasures(4, 300, n, 0.5)
    order = np.argsort([bin(i).count("1") for i in range(n)], kind="stable")
    forced = np.zeros(n, dtype=bool)
    forced[order[:22]] = True
    values = np.random.default_rng(1).integers(0, 2, (300, 22), dtype=np.uint8)
    failed = [
        int((fill(llr, forced, values, torch.Generator().manual_seed(2), particles).dead_ends > 0).sum())
        for particles in (1, 8, 64)
    ]
    assert failed[0] > 2 * failed[2]
    assert failed[0] > failed[1] >= failed[2]


def test_fill_and_decide_agree_when_everything_is_known() -> None:
    rng = np.random.default_rng(5)
    sent = rng.integers(0, 2, (4, 16), dtype=np.uint8)
    word = polar_transform(sent)
    everything = np.ones(16, dtype=bool)
    llr = random_llrs(6, 4, 16)
    assert (decide(llr, everything, sent) == word).all()
    assert (fill(llr, everything, sent, torch.Generator().manual_seed(0)).word == word).all()


@settings(max_examples=100)
@given(st.floats(-CERTAIN, CERTAIN), st.floats(-CERTAIN, CERTAIN))
def test_boxplus_is_the_llr_of_the_sum(first: float, second: float) -> None:
    value = float(boxplus(torch.tensor([first], dtype=torch.float64), torch.tensor([second], dtype=torch.float64)))
    expected = np.logaddexp(0.0, first + second) - np.logaddexp(first, second)
    assert value == pytest.approx(float(expected), abs=1e-9)


def test_wrong_shapes_are_named() -> None:
    generator = torch.Generator()
    with pytest.raises(ValueError, match="power of two"):
        conditional_llrs(np.zeros((1, 3)), np.zeros((1, 3), dtype=np.uint8))
    with pytest.raises(ValueError, match="2 forced positions need values of shape"):
        decide(np.zeros((3, 4)), np.array([True, True, False, False]), np.zeros((3, 1), dtype=np.uint8))
    with pytest.raises(ValueError, match="particles"):
        fill(np.zeros((1, 4)), np.zeros(4, dtype=bool), np.zeros((1, 0), dtype=np.uint8), generator, 0)

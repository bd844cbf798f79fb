"""List decoding and list filling against enumeration of small words."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from word_laws import Floats, prefix_prob, random_llrs, word_law

from polar.code.batches import decide
from polar.code.lists.passes import decode_paths, fill
from polar.code.lists.precoding import PAC_TAPS
from polar.code.successive import CERTAIN
from polar.code.transform import polar_transform

TAPS = st.sampled_from([1, 3, 0o13, PAC_TAPS])


def precoded(word: tuple[int, ...], taps: int) -> tuple[int, ...]:
    """V of W, by the sum of its definition."""
    return tuple(sum(taps >> j & word[i - j] for j in range(i + 1)) % 2 for i in range(len(word)))


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.sampled_from([1, 2, 4, 8]), TAPS)
def test_enough_paths_find_every_word_in_the_order_of_its_probability(seed: int, n: int, taps: int) -> None:
    rng = np.random.default_rng(seed)
    llr = random_llrs(seed, 3, n)
    forced = rng.random(n) < 0.4
    values = rng.integers(0, 2, (3, int(forced.sum())))
    count = 1 << int((~forced).sum())
    found = decode_paths(llr, forced, values, count + 1, taps)
    for frame in range(3):
        law = word_law(llr[frame])
        expected = {}
        for free in product((0, 1), repeat=int((~forced).sum())):
            word = np.empty(n, dtype=int)
            word[forced], word[~forced] = values[frame], free
            expected[free] = law[precoded(tuple(map(int, word)), taps)]
        words = [tuple(map(int, row)) for row in found.free[frame, :count]]
        assert sorted(words) == sorted(expected)
        logs = np.log([expected[word] for word in words])
        assert found.log_prob[frame, :count] == pytest.approx(logs, abs=1e-6)
        assert (np.diff(logs) <= 1e-6).all()
        assert found.log_prob[frame, count] == -np.inf


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.sampled_from([2, 16, 64]))
def test_one_path_is_successive_cancellation(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    llr = random_llrs(seed, 5, n)
    forced = rng.random(n) < 0.5
    values = rng.integers(0, 2, (5, int(forced.sum())))
    assert (decode_paths(llr, forced, values, 1).free[:, 0] == decide(llr, forced, values)).all()


def list_by_sorting(llr: Floats, forced: NDArray[np.bool_], paths: int) -> list[tuple[int, ...]]:
    """Successive-cancellation lists by their definition: all prefixes, sorted, the likeliest kept; forced bits 0."""
    law = word_law(llr)
    kept: list[tuple[int, ...]] = [()]
    for position in range(len(llr)):
        longer = [(*word, bit) for word in kept for bit in ((0,) if forced[position] else (0, 1))]
        kept = sorted(longer, key=lambda word: -prefix_prob(law, word))[:paths]
    return kept


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(1, 6))
def test_a_list_keeps_the_likeliest_prefixes(seed: int, paths: int) -> None:
    llr = random_llrs(seed, 1, 8)
    forced = np.random.default_rng(seed).random(8) < 0.3
    found = decode_paths(llr, forced, np.zeros((1, int(forced.sum())), dtype=int), paths)
    expected = [tuple(np.array(word)[~forced].tolist()) for word in list_by_sorting(llr[0], forced, paths)]
    words = [
        tuple(row)
        for row, log_prob in zip(found.free[0].tolist(), found.log_prob[0], strict=True)
        if log_prob > -np.inf
    ]
    assert words == expected


def test_certain_bits_and_contradictions_have_no_path_without_end() -> None:
    """Contradictory certain bits leave paths of tiny, finite probability."""
    found = decode_paths(np.array([[CERTAIN, -CERTAIN]]), np.array([True, False]), np.zeros((1, 1), dtype=int), 2)
    assert np.isfinite(found.log_prob).all()


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
    filled = fill(np.tile(LLR, (FRAMES, 1)), forced, values, np.random.default_rng(3), particles)
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
    filled = fill(llr, forced, values, np.random.default_rng(1), particles)
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
        int((fill(llr, forced, values, np.random.default_rng(2), particles).dead_ends > 0).sum())
        for particles in (1, 8, 64)
    ]
    assert failed[0] > 2 * failed[2]
    assert failed[0] > failed[1] >= failed[2]


@pytest.mark.parametrize("taps", [1, 3, PAC_TAPS])
def test_a_filled_word_carries_its_forced_bits_behind_the_convolution(taps: int) -> None:
    rng = np.random.default_rng(2)
    n, frames = 32, 50
    forced = rng.random(n) < 0.5
    values = rng.integers(0, 2, (frames, int(forced.sum())), dtype=np.uint8)
    llr = random_llrs(4, frames, n)
    filled = fill(llr, forced, values, rng, 3, taps)
    assert (filled.dead_ends == 0).all()
    # One path that knows the word for sure reads it back.
    certain = CERTAIN * (1.0 - 2.0 * filled.word)
    assert (decode_paths(certain, forced, values, 1, taps).log_prob == 0).all()
    everything = decode_paths(certain, np.zeros(n, dtype=bool), values[:, :0], 1, taps)
    assert (everything.free[:, 0][:, forced] == values).all()


def test_fill_and_decide_agree_when_everything_is_known() -> None:
    rng = np.random.default_rng(5)
    sent = rng.integers(0, 2, (4, 16), dtype=np.uint8)
    llr = random_llrs(6, 4, 16)
    assert (fill(llr, np.ones(16, dtype=bool), sent, rng).word == polar_transform(sent)).all()


def test_wrong_arguments_are_named() -> None:
    llr, free, nothing = np.zeros((1, 4)), np.zeros(4, dtype=bool), np.zeros((1, 0), dtype=np.uint8)
    with pytest.raises(ValueError, match="0 paths or drafts"):
        fill(llr, free, nothing, np.random.default_rng(0), 0)
    with pytest.raises(ValueError, match="odd number"):
        decode_paths(llr, free, nothing, 2, 6)
    with pytest.raises(ValueError, match="power of two"):
        decode_paths(np.zeros((1, 3)), np.zeros(3, dtype=bool), nothing, 2)
    with pytest.raises(ValueError, match="need values of shape"):
        decode_paths(llr, ~free, nothing, 2)

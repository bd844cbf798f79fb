"""The compiled searches of the tape against the same recursions written out with whole arrays."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from polar.text.schemes.robust.reading.filters import advance_scan, advance_starts, multiply_scan, multiply_starts

SEEDS = st.integers(0, 2**32 - 1)


@given(SEEDS, st.integers(-6, 10))
@settings(max_examples=15, deadline=None)
def test_ratios_of_a_token_at_the_beginnings_of_nonces(seed, first):
    rng = np.random.default_rng(seed)
    tables, nonces, shifts, places = 2, 3, 5, 8
    ratio = rng.random((tables, nonces, shifts)) + 0.5
    leads = rng.integers(0, 1 << 16, (nonces, places)).astype(np.uint16)
    pilot = rng.random(places) < 0.5
    cell = rng.integers(0, 7, 1 << 16).astype(np.int32)
    table = (rng.random((tables, 7)) + 0.5).astype(np.float32)
    wanted = ratio.copy()
    for shift in range(shifts):
        place = first + shift
        if 0 <= place < places and pilot[place]:
            wanted[:, :, shift] *= table[:, cell[leads[:, place]]]
    multiply_starts(ratio, leads, pilot, first, cell, table)
    assert np.allclose(ratio, wanted, rtol=1e-12)


@given(SEEDS)
@settings(max_examples=15, deadline=None)
def test_a_word_further_at_the_beginnings(seed):
    rng = np.random.default_rng(seed)
    weight, ratio = rng.random((2, 2, 3, 6))
    weight /= weight.sum(axis=(1, 2), keepdims=True)
    edits = rng.random((2, 3)) / 3
    moved = np.empty_like(weight)
    for table, (replaced, added, deleted) in enumerate(edits):
        seen = weight[table] * ((1 - replaced) * ratio[table] + replaced) * (1 - added)
        # A word added to the text moves the text back along the tape, a deleted one forth.
        moved[table] = seen @ ((1 - deleted) * np.eye(6) + deleted * np.eye(6, k=1))
        moved[table] += weight[table] @ (added * np.eye(6, k=-1))
    totals = advance_starts(weight, ratio, edits)
    assert np.allclose(totals, moved.sum(axis=(1, 2)), rtol=1e-12)
    assert np.allclose(weight, moved / moved.sum(axis=(1, 2), keepdims=True), rtol=1e-12)


def test_the_evidence_of_one_word_said_again_and_again_is_an_e_value():
    """The mean over all numbers of the evidence is at most 1, also where all words of the text are the same."""
    rng = np.random.default_rng(0)
    words, shifts, runs = 6, 4, 20_000
    law = np.array([[0.25, 4.0], [0.8, 0.2]])  # A ratio of mean 1: its values, and how often it has each.
    numbers = rng.choice(law[0], (runs, words + shifts), p=law[1])
    weight = np.full((1, runs, shifts), 1 / shifts)
    evidence = np.ones(runs)
    for word in range(words):
        ratio = numbers[None, :, word : word + shifts].copy()
        for run in range(runs):
            own = weight[:, run : run + 1].copy()
            evidence[run] *= advance_starts(own, ratio[:, run : run + 1], np.array([[0.0, 0.3, 0.1]]))[0]
            weight[:, run : run + 1] = own
    assert evidence.mean() < 1 + 4 * evidence.std() / np.sqrt(runs)


@given(SEEDS, st.integers(0, 1))
@settings(max_examples=15, deadline=None)
def test_a_word_further_along_the_tape(seed, back):
    rng = np.random.default_rng(seed)
    size = 20
    places = np.flatnonzero(rng.random(size) < 0.4)
    cells = rng.integers(0, 5, len(places)).astype(np.int32)
    table = (rng.random(5) + 0.5).astype(np.float32)
    ratio = np.ones(size, dtype=np.float32)
    multiply_scan(ratio, places, back, cells, table)
    wanted = np.ones(size + 1)
    wanted[places + back] = table[cells]
    assert np.allclose(ratio, wanted[:size], rtol=1e-6)
    weight = rng.random(size).astype(np.float32)
    replaced, added, deleted, left = edits = rng.random(4) / 4
    coming = 0.01
    steps = (1 - added - deleted - left) * np.eye(size, k=1) + deleted * np.eye(size, k=2)
    then = np.empty(size, dtype=np.float32)
    advance_scan(weight, then, ratio, coming, edits)
    whole = (coming + weight @ steps) * ((1 - replaced) * ratio + replaced) + added * weight
    assert np.allclose(then, whole, rtol=1e-5)

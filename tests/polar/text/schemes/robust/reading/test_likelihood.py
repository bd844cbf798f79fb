import numpy as np
import pytest

from polar.text.schemes.robust.reading.likelihood import (
    cells,
    lead_ratios,
    load_likelihoods,
    make_likelihood,
    race_times,
    word_ratios,
)
from polar.text.schemes.robust.words import KINDS


def test_ratios_are_those_of_the_mixture():
    masses, weights = np.array([0.01, 0.5]), np.array([[0.3, 0.7]])
    table = make_likelihood(masses, weights)
    words = np.random.default_rng(0).integers(0, 2**64, 2000, dtype=np.uint64)
    times = race_times(words)
    exact = (weights[0] / masses * np.exp(-times[:, None] / masses + times[:, None])).sum(axis=1)
    assert word_ratios(table, np.zeros(2000, dtype=np.int64), words) == pytest.approx(exact, rel=0.15, abs=0.02)
    leads = (words >> np.uint64(48)).astype(np.uint16)
    usual = times > 2.0**-8
    assert lead_ratios(table, 0, leads)[usual] == pytest.approx(exact[usual], rel=0.15, abs=0.02)


@pytest.mark.parametrize("number", [0, 1])
def test_the_mean_ratio_of_any_kind_is_1(number):
    table = load_likelihoods()[number]
    assert len(table.cell_ratio) == KINDS
    edges = np.concatenate([[0], np.exp2(np.arange(0, 64 * 32 + 1) / 32 - 64)])
    leads = np.arange(1 << 16).astype(np.uint16)
    for kind in range(KINDS):
        assert lead_ratios(table, kind, leads).mean(dtype=np.float64) == pytest.approx(1, abs=1e-5)
    middle = np.sqrt(edges[1:-1] * edges[2:])
    cell = cells((middle * 2.0**64).astype(np.uint64))
    assert (np.diff(cell) >= 0).all()


def test_the_mean_ratio_over_cells_is_1():
    masses, weights = np.array([1e-4, 0.1, 1.0]), np.array([[0.2, 0.5, 0.3]])
    table = make_likelihood(masses, weights)
    octave = np.arange(64 * 32 + 1)
    edges = np.exp2(octave // 32 - 64.0) * (1 + octave % 32 / 32)
    edges[0] = 0
    assert (table.cell_ratio[0] * np.diff(edges)).sum() == pytest.approx(1, abs=1e-5)
    low = (edges[:-1][600:] * 2.0**64).astype(np.uint64)
    assert np.array_equal(cells(low), np.arange(600, 64 * 32))

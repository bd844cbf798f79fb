"""Areas under ROC curves by counting pairs and by integrating a curve, and their bound by total variation."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polar.evaluation.detection import auc, auc_bound, auc_interval, likelihood_ratio_auc

LAWS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=8).filter(
    lambda pairs: sum(a for a, _ in pairs) and sum(b for _, b in pairs)
)


def roc_area(marked: np.ndarray, plain: np.ndarray) -> float:
    """Trapezoids under the curve of (false alarm, detection) as the threshold on the ratio falls."""
    ratio = [math.inf if b == 0 else a / b for a, b in zip(marked, plain, strict=True)]
    area = alarm = detection = 0.0
    for level in sorted(set(ratio), reverse=True):
        more = sum(b for b, r in zip(plain, ratio, strict=True) if r == level)
        right = sum(a for a, r in zip(marked, ratio, strict=True) if r == level)
        area += more * (detection + right / 2)
        alarm, detection = alarm + more, detection + right
    assert alarm == pytest.approx(1)
    return area


@given(LAWS)
def test_the_exact_area_is_that_under_the_curve_and_within_the_bound(pairs):
    marked, plain = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    marked, plain = marked / marked.sum(), plain / plain.sum()
    keep = (marked > 0) | (plain > 0)
    area = likelihood_ratio_auc(marked, plain)
    assert area == pytest.approx(roc_area(marked[keep], plain[keep]))
    variation = abs(marked - plain).sum() / 2
    assert 0.5 - 1e-12 <= area <= auc_bound(variation) + 1e-12


@given(st.lists(st.sampled_from([-math.inf, -1.0, 0.0, 0.5, math.inf]), min_size=1, max_size=6), st.data())
def test_the_measured_area_counts_pairs(marked, data):
    plain = data.draw(st.lists(st.sampled_from([-math.inf, 0.0, 0.5, math.inf]), min_size=1, max_size=6))
    wins = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a in marked for b in plain)
    assert auc(marked, plain) == pytest.approx(wins / len(marked) / len(plain))


def test_the_bound_at_its_ends():
    assert auc_bound(0.0) == 0.5
    assert auc_bound(1.0) == 1.0
    # Two laws with a common part: on it the ratio is constant, elsewhere one of them is 0. The bound is met.
    assert likelihood_ratio_auc(np.array([0.3, 0.7, 0.0]), np.array([0.0, 0.7, 0.3])) == pytest.approx(auc_bound(0.3))


@settings(max_examples=50)
@given(st.integers(0, 40), st.integers(2, 40), st.integers(2, 40))
def test_the_limits_are_where_the_score_test_just_accepts(wins, marked, plain):
    area = min(1.0, wins / 40)
    low, high = auc_interval(area, marked, plain)
    assert 0 <= low <= area <= high <= 1

    def deviation(true: float) -> float:
        q1, q2 = true / (2 - true), 2 * true**2 / (1 + true)
        variance = true * (1 - true) + (marked - 1) * (q1 - true**2) + (plain - 1) * (q2 - true**2)
        return abs(area - true) / math.sqrt(variance / marked / plain)

    for limit in (low, high):
        if 1e-6 < limit < 1 - 1e-6:
            assert deviation(limit) == pytest.approx(1.959964, rel=1e-3)


def test_the_interval_covers_as_often_as_it_says():
    rng = np.random.default_rng(0)
    truth = 0.5 + math.atan(1 / math.sqrt(3)) / math.pi  # P(N(d,1) > N(0,1)) with d = sqrt 2 * Phi^-1 is fixed below
    shift = math.sqrt(2) * _normal_quantile(truth)
    covered = 0
    for _ in range(300):
        low, high = auc_interval(auc(rng.normal(shift, 1, 20), rng.normal(0, 1, 20)), 20, 20)
        covered += low <= truth <= high
    assert 0.91 <= covered / 300 <= 0.99


def _normal_quantile(probability: float) -> float:
    low, high = -10.0, 10.0
    for _ in range(80):
        middle = (low + high) / 2
        below = 0.5 * (1 + math.erf(middle / math.sqrt(2))) < probability
        low, high = (middle, high) if below else (low, middle)
    return low

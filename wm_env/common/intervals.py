"""Confidence intervals of means and of error rates."""

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import betaincinv


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, tuple[float, float]]:
    """The mean of independent values, at least 2, and its t-interval."""
    # scipy.stats takes long to import, and whoever counts errors does without it.
    from scipy.stats import t as student

    data = np.asarray(values, dtype=np.float64)
    mean, error = float(data.mean()), float(data.std(ddof=1)) / math.sqrt(len(data))
    width = float(student.ppf((1 + confidence) / 2, len(data) - 1)) * error
    return mean, (mean - width, mean + width)


def block_interval(successes: float, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Clopper-Pearson interval of a rate; a fractional number of successes is rounded outwards."""
    tail = (1 - confidence) / 2
    fewest, most = math.floor(successes), math.ceil(successes)
    low = betaincinv(fewest, trials - fewest + 1, tail) if fewest > 0 else 0.0
    high = betaincinv(most + 1, trials - most, 1 - tail) if most < trials else 1.0
    return float(low), float(high)

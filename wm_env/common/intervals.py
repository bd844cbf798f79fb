"""Confidence intervals of measured probabilities."""

import math

from scipy.special import betaincinv


def block_interval(successes: float, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Clopper-Pearson interval of a rate; a fractional number of successes is rounded outwards."""
    tail = (1 - confidence) / 2
    fewest, most = math.floor(successes), math.ceil(successes)
    low = betaincinv(fewest, trials - fewest + 1, tail) if fewest > 0 else 0.0
    high = betaincinv(most + 1, trials - most, 1 - tail) if most < trials else 1.0
    return float(low), float(high)

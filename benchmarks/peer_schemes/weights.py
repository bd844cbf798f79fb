"""Probabilities as integers, so that both ends of a scheme compute the same."""

import numpy as np
from numpy.typing import NDArray

WEIGHT_BITS = 48


def quantise(pmf: NDArray[np.float64], bits: int = WEIGHT_BITS) -> list[int]:
    """Integers that sum to 2^bits, each within 1 of p(x) 2^bits: largest remainders, ties to the smaller index."""
    scaled = pmf / pmf.sum() * 2.0**bits
    weights = np.floor(scaled).astype(np.int64)
    missing = (1 << bits) - int(weights.sum())
    order = np.argsort(-(scaled - weights), kind="stable")
    if missing >= 0:
        weights[order[:missing]] += 1
    else:  # the float sum was rounded upwards by a few units
        weights[weights.argmax()] += missing
    return [int(weight) for weight in weights]

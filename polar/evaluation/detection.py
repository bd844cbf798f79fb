"""How well an observer tells watermarked from plain texts: the area under the ROC curve, and what bounds it.

A detector gives every text a score; the AUC is the probability that a watermarked text has a higher score than a plain
one, equal scores counted half. No score has a higher AUC than the likelihood ratio, and none exceeds

    1/2 + TV - TV^2 / 2,

with TV the total variation between the two laws of one text (Sadasivan et al., arXiv 2303.11156, theorem 1).
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm

from wm_env.common.arrays import Floats

_DIGITS = 9
"""Decimals to which log-likelihood ratios are compared, so that rounding makes no difference of equal ones."""


def auc(marked: Sequence[float], plain: Sequence[float]) -> float:
    """P(score of a marked text > score of a plain one) + 1/2 P(equal), over all pairs; scores may be infinite."""
    first, second = np.asarray(marked)[:, None], np.asarray(plain)[None, :]
    return float(((first > second) + 0.5 * (first == second)).mean())


def auc_interval(area: float, marked: int, plain: int, confidence: float = 0.95) -> tuple[float, float]:
    """Score interval of an AUC measured on so many texts: Hanley and McNeil's variance, taken at the limits themselves.

    Newcombe, Statistics in Medicine 25 (2006) 559-573. Unlike the interval around the estimate it has a width where
    the estimate is 0 or 1.
    """
    z = float(norm.ppf((1 + confidence) / 2))
    return _lower(area, marked, plain, z), 1 - _lower(1 - area, plain, marked, z)


def auc_bound(total_variation: float) -> float:
    """The highest AUC of any detector of one text, from the total variation between the two laws."""
    return 0.5 + total_variation - total_variation**2 / 2


def likelihood_ratio_auc(marked: Floats, plain: Floats) -> float:
    """The AUC of the likelihood ratio between two known laws over the same texts, exactly.

    `marked` and `plain` are the probabilities of the texts, of any equal shape; each sums to 1.
    """
    present = (marked > 0) | (plain > 0)
    first, second = marked[present], plain[present]
    with np.errstate(divide="ignore"):
        ratio = np.round(np.log2(first) - np.log2(second), _DIGITS)
    _, group = np.unique(ratio, return_inverse=True)
    higher, lower = np.bincount(group, first), np.bincount(group, second)
    return float(higher @ (np.cumsum(lower) - lower / 2))


def _lower(area: float, marked: int, plain: int, z: float) -> float:
    """The smallest true AUC from which `area` is not more than z standard deviations away."""

    def excess(true: float) -> float:
        spread = 1 + (marked - 1) * (1 - true) / (2 - true) + (plain - 1) * true / (1 + true)
        return area - true - z * math.sqrt(true * (1 - true) * spread / (marked * plain))

    # At 1 the variance vanishes and with it the difference: the root sought is the one below.
    top = min(area, 1 - 1e-9)
    return 0.0 if excess(top) > 0 or area <= 0 else float(brentq(excess, 0.0, top))

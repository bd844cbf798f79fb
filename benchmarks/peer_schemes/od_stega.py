"""OD-Stega: before coding, the law is flattened as far as a total-variation budget allows."""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

Floats = NDArray[np.float64]


def flatten(pmf: Floats, budget: float) -> Floats:
    """The law of most entropy within total variation `budget` of a pmf (Q,) and inside its support.

    The tops are cut to a common cap and the bottoms filled to a common floor, both by the budget; uniform if it allows.
    """
    support = pmf > 0
    uniform = np.where(support, 1 / support.sum(), 0)
    if budget <= 0 or np.abs(pmf - uniform).sum() / 2 <= budget:
        return pmf.copy() if budget <= 0 else uniform
    middle, top = 1 / support.sum(), float(pmf.max())
    cap = brentq(lambda level: np.maximum(pmf - level, 0).sum() - budget, middle, top, xtol=1e-16)
    floor = brentq(lambda level: np.maximum(level - pmf[support], 0).sum() - budget, 0.0, middle, xtol=1e-16)
    flat = np.where(support, np.clip(pmf, floor, cap), 0)
    law: Floats = flat / flat.sum()
    return law

"""Keyed colours, in the manner of MPAC on blocks: a hash gives every block a colour, and the message's is favoured.

The receiver needs the key only: neither state nor law. The law is biased.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_NODES = 96
"""Nodes of the Gauss-Laguerre rule; the integrand is smooth, and 64 and 96 nodes agree to 1e-6 for biases up to 4."""


def favour(pmf: Floats, colour: NDArray[np.int64], colours: int, delta: float) -> Floats:
    """P(x | w), shape (N, colours, Q): p(x) e^delta where the colour of x is w, p(x) elsewhere, normalised.

    Args:
        pmf: p(x|s), shape (N, Q).
        colour: of every candidate, shape (N, Q).
        colours: their number, 2^l.
        delta: the bias in nats, as the literature gives it.
    """
    favoured = colour[:, None, :] == np.arange(colours)[:, None]
    weighed = pmf[:, None, :] * np.where(favoured, np.exp(delta), 1.0)
    law: Floats = weighed / weighed.sum(2, keepdims=True)
    return law


def mean_law(pmf: Floats, colours: int, delta: float) -> Floats:
    """E[P(x | w)] over independent uniform colours, shape (N, Q), the same for every w.

    1/Z is the integral of e^(-tZ) over t, and Z = 1 + (e^delta - 1) sum_y p(y) [y has colour w] is a sum of independent
    terms, so that E[e^(-tZ)] is a product.
    """
    gain = np.exp(delta) - 1
    node, weight = np.polynomial.laguerre.laggauss(_NODES)
    raised = np.exp(-node[:, None, None] * gain * pmf)
    factor = 1 - 1 / colours + raised / colours
    others = factor.prod(2, keepdims=True) / factor
    terms = others * (raised * (1 + gain) / colours + 1 - 1 / colours)
    law: Floats = pmf * np.tensordot(weight, terms, 1)
    return law

"""Which positions of V carry message bits, by a design law that both ends know without a model.

A keyed hash splits a law over tokens at random. Of a law with collision probability sum_x p(x)^2 = 1/N, as that of N
equally likely tokens, a bit of the hash takes the value 0 with a probability q of mean 1/2 and variance 1 / (4 N). The
design law takes q from the beta law of that variance, both parameters (N - 1) / 2, independently at each position; on
the next bit level, inside what the bits so far have left over, N is half as much. N is the design parameter: a nominal
number of effective tokens. It need not fit the model: tokens keep the model's law whatever the positions are, and a
design that is too bold or too timid costs message bits only.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from polar.code.density_evolution import polarise, variation_bound

_ATOMS = 512
"""Equally likely values of q that stand for the beta law."""

_FLATTEST = 1e-3
"""N - 1 of a law that is all but certain; the beta law needs a positive parameter."""


@lru_cache(maxsize=64)
def message_positions(positions: int, hash_bits: int, effective_tokens: float, bit_error: float) -> NDArray[np.bool_]:
    """The message set of a step, a mask of shape (b, n).

    Position i of level k is in it if a message bit there is lost with probability at most `bit_error` under the design
    law: that probability is E|P(V_i = 1 | V^{i-1}, S^n) - 1/2| <= sqrt((1 - H(V_i | V^{i-1}, S^n)) ln(2) / 2).

    Args:
        positions: n, tokens of a step, a power of two.
        hash_bits: b, bits of a token's label.
        effective_tokens: N >= 1.
        bit_error: in (0, 1/2].

    Raises:
        ValueError: no position is that good.
    """
    deficit = np.stack([_deficit(positions, effective_tokens / 2**level) for level in range(hash_bits)])
    mask = np.vectorize(variation_bound)(deficit) <= bit_error
    if not mask.any():
        raise ValueError(
            f"{positions} positions with {hash_bits} hash bits carry no message bit under a design of "
            f"{effective_tokens:g} effective tokens: take more of any, or allow a larger bit error"
        )
    mask.flags.writeable = False
    return np.asarray(mask, dtype=np.bool_)


def split_law(effective_tokens: float) -> NDArray[np.float64]:
    """Equally likely values of q = P(bit = 0) under the design law, ascending, shape (`_ATOMS`,)."""
    shape = max(effective_tokens - 1, _FLATTEST) / 2
    quantiles: NDArray[np.float64] = betaincinv(shape, shape, (np.arange(_ATOMS) + 0.5) / _ATOMS)
    return np.clip(quantiles, 0.0, 1.0)


def _deficit(positions: int, effective_tokens: float) -> NDArray[np.float64]:
    """1 - H(V_i | V^{i-1}, S^n) of one bit level, shape (n,), never too small."""
    share = split_law(effective_tokens)
    return polarise(np.minimum(share, 1 - share), np.full(_ATOMS, 1 / _ATOMS), positions.bit_length() - 1).deficit

"""Soft bits in float32 against the hyperbolic tangent in float64."""

import numpy as np

from polar.code.compiled import soft_bits

LLRS = np.concatenate([np.linspace(-40, 40, 100_001), 10.0 ** np.linspace(-30, 30, 10_001), [np.inf, -np.inf, 0.0]])


def test_single_soft_bits_are_the_tangent_to_rounding_and_keep_the_sign():
    llr = np.stack([LLRS, -LLRS]).astype(np.float32)
    soft = soft_bits(llr, np.empty_like(llr))
    exact = np.tanh(llr.astype(np.float64) / 2)
    assert np.abs(soft - exact).max() < 2e-7
    small = (llr != 0) & (np.abs(llr) < 1)
    assert np.abs(soft[small] / exact[small] - 1).max() < 4e-7
    assert (np.sign(soft) == np.sign(llr)).all()
    assert np.abs(soft).max() == 1


def test_single_soft_bits_are_certain_from_an_llr_of_24_on():
    llr = np.array([[18, 19.5, 24, 1e9, np.inf]], dtype=np.float32)
    assert (soft_bits(llr, np.empty_like(llr)) > 1 - 2e-7).all()
    assert (soft_bits(llr[:, 2:], np.empty_like(llr[:, 2:])) == 1).all()

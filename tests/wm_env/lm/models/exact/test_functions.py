import math
from decimal import Decimal, localcontext
from fractions import Fraction

import exact_reference as reference
import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from wm_env.lm.models.exact.functions import exp2, exp2_float32_, log2, rotary_tables, sqrt


@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=40))
def test_single_powers_are_the_bits_of_the_documented_steps(values: list[float]) -> None:
    x = np.array(values, dtype=np.float32)
    expected = reference.exp2_single(x)
    assert exp2_float32_(torch.from_numpy(x.copy())).numpy().tobytes() == expected.tobytes()
    assert np.abs(expected / 2.0 ** x.astype(np.float64) - 1).max() < 3.1e-6


@given(st.lists(st.floats(-1000, 1000), min_size=1, max_size=40))
def test_double_powers_are_the_bits_of_the_documented_steps(values: list[float]) -> None:
    x = np.array(values)
    got = exp2(torch.from_numpy(x))
    assert got.numpy().tobytes() == reference.exp2_double(x).tobytes()
    with localcontext() as context:
        context.prec = 40
        truth = [Decimal(2) ** Decimal(value) for value in values]
        errors = [abs(Decimal(float(g)) / t - 1) for g, t in zip(got, truth, strict=True)]
    assert max(errors) < Decimal("2.3e-16")


def test_the_power_of_minus_infinity_is_zero_and_the_argument_stays() -> None:
    x = torch.tensor([-math.inf, 0.0, 1.0], dtype=torch.float64)
    assert exp2(x).tolist() == [0.0, 1.0, 2.0]
    assert x.tolist() == [-math.inf, 0.0, 1.0]


@given(st.lists(st.floats(2.0**-60, 2.0**63), min_size=1, max_size=40))
def test_logarithms_are_the_bits_of_the_documented_steps(values: list[float]) -> None:
    x = np.array(values)
    got = log2(torch.from_numpy(x)).numpy()
    assert got.tobytes() == reference.log2_double(x).tobytes()
    with localcontext() as context:
        context.prec = 40
        errors = [
            abs(Decimal(float(g)) - Decimal(value).ln() / Decimal(2).ln()) for g, value in zip(got, values, strict=True)
        ]
    assert max(errors) < Decimal("8e-15")


def test_rotary_tables_are_the_correctly_rounded_angles() -> None:
    cosine, sine = rotary_tables(512, 64, 10000.0)
    assert cosine.shape == sine.shape == (512, 32)
    # mpmath is not at hand; numpy's long double carries 11 bits more than float64.
    angle = np.arange(512, dtype=np.longdouble)[:, None] * np.longdouble(10000) ** (
        np.arange(32, dtype=np.longdouble) * -2 / 64
    )
    assert (cosine.numpy() == np.cos(angle).astype(np.float32)).all()
    assert (sine.numpy() == np.sin(angle).astype(np.float32)).all()


def test_a_longer_table_begins_with_the_shorter_one() -> None:
    for short, long in zip(rotary_tables(16, 8, 500000.0), rotary_tables(64, 8, 500000.0), strict=True):
        assert torch.equal(short, long[:16])


@given(st.lists(st.floats(2.0**-300, 2.0**300), min_size=1, max_size=70))
def test_square_roots_are_correctly_rounded(values: list[float]) -> None:
    for root, value in zip(sqrt(torch.tensor(values, dtype=torch.float64)).tolist(), values, strict=True):
        # The true root lies between the midpoints to the neighbours of a correctly rounded one.
        below, above = (Fraction(root) + Fraction(math.nextafter(root, end)) for end in (0, math.inf))
        assert below**2 <= 4 * Fraction(value) <= above**2


@given(st.integers(0, 1 << 30), st.integers(1, 300))
def test_torch_rounds_the_operations_that_are_used_as_ieee_754_asks(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    for kind, exponents in ((np.float32, 20), (np.float64, 100)):
        x, y = (rng.standard_normal((2, count)) * 2.0 ** rng.integers(-exponents, exponents, (2, count))).astype(kind)
        a, b = torch.from_numpy(x), torch.from_numpy(y)
        for ours, truth in (
            (a + b, [Fraction(p) + Fraction(q) for p, q in zip(x.tolist(), y.tolist(), strict=True)]),
            (a - b, [Fraction(p) - Fraction(q) for p, q in zip(x.tolist(), y.tolist(), strict=True)]),
            (a * b, [Fraction(p) * Fraction(q) for p, q in zip(x.tolist(), y.tolist(), strict=True)]),
            (torch.div(a, b), [Fraction(p) / Fraction(q) for p, q in zip(x.tolist(), y.tolist(), strict=True)]),
            (torch.div(a[:1], b), [Fraction(float(x[0])) / Fraction(q) for q in y.tolist()]),
        ):
            for number, exact in zip(ours.tolist(), truth, strict=True):
                low, high = (np.nextafter(kind(number), kind(end)) for end in (-np.inf, np.inf))
                assert Fraction(number) + Fraction(float(low)) <= 2 * exact <= Fraction(number) + Fraction(float(high))
    whole = torch.from_numpy(rng.integers(-(1 << 62), 1 << 62, count))
    assert whole.to(torch.float64).tolist() == [float(value) for value in whole.tolist()]
    assert a.to(torch.float32).tolist() == [float(np.float32(value)) for value in a.tolist()]

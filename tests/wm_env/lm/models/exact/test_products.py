import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from wm_env.lm.models.exact import products
from wm_env.lm.models.exact.products import (
    NotExactError,
    Product,
    check_float32,
    exact_kinds,
    fastest_kind,
    operand,
)
from wm_env.lm.models.exact.quantise import W8, W24, Form, Matrix, quantise_matrix

CPU = torch.device("cpu")


def integers(form: Form, rows: int, columns: int, seed: int, top: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-top, top + 1, (rows, columns), generator=generator)


@given(
    st.sampled_from((W8, W24)),
    st.integers(1, 70),
    st.sampled_from((16, 640, 1024, 1025, 2047, 2048, 5000)),
    st.integers(0, 1 << 30),
)
@settings(max_examples=40, deadline=None)
def test_every_kind_is_the_exact_sum_rounded_once(form: Form, rows: int, columns: int, seed: int) -> None:
    x = integers(form, rows, columns, seed, form.top)
    w = integers(form, 24, columns, seed + 1, form.weight_top)
    x[0], w[0] = form.top, form.weight_top
    truth = (x @ w.T).to(torch.float64).to(torch.float32)
    matrix = Matrix(w.to(torch.int8 if form == W8 else torch.int32), torch.ones(24))
    kinds = exact_kinds(form, "cpu", [columns])
    assert set(kinds) >= ({"float64", "float32"} if form == W8 else {"float64"})
    for kind in kinds:
        assert torch.equal(Product(matrix, form, kind, "cpu")(operand(x.float(), kind)), truth)


@given(st.lists(st.integers(-32639, 32639), min_size=1, max_size=50))
def test_halves_are_two_bytes_of_the_integer(values: list[int]) -> None:
    x = torch.tensor([values], dtype=torch.float32)
    for kind in ("int8", "float32"):
        high, low = operand(x, kind).to(torch.int64)
        assert (256 * high + low).tolist() == values
        assert high.abs().max() <= 127
        assert low.min() >= -128
        assert low.max() <= 127


def test_int8_products_that_saturate_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def saturating(x: Tensor, w: Tensor) -> Tensor:
        # What pmaddubsw does: x is moved to 0..255, and sums of two products are cut to 16 bits.
        wide = w.to(torch.int32)
        pairs = ((x.to(torch.int32) + 128)[:, :, None] * wide[None]).unflatten(1, (-1, 2)).sum(2)
        return (pairs.clamp(-(2**15), 2**15 - 1).sum(1) - 128 * wide.sum(0)).to(torch.int32)

    monkeypatch.setattr(torch, "_int_mm", saturating)
    assert exact_kinds(W8, "cpu", [64]) == ("float64", "float32")


def test_a_kind_that_takes_long_is_passed_over_where_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """int8 of a CPU without instructions for it, as slow as can be; LLaDA-8B in floats would take 32 GB."""
    multiply = torch._int_mm

    def slow(x: Tensor, w: Tensor) -> Tensor:
        time.sleep(0.1)
        return multiply(x, w)

    monkeypatch.setattr(torch, "_int_mm", slow)
    assert fastest_kind(("int8", "float64", "float32"), CPU, 64, 19_000_000) != "int8"
    assert fastest_kind(("int8", "float64", "float32"), CPU, 64, 8_000_000_000) == "int8"
    assert fastest_kind(("int8", "float64"), torch.device("cuda"), 64, 19_000_000) == "int8"
    assert fastest_kind(("float64",), CPU, 64, 8_000_000_000) == "float64"


def test_a_device_without_exact_products_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_is_exact", lambda *_: False)
    with pytest.raises(NotExactError, match="--arithmetic float"):
        exact_kinds(W24, "cpu", [64])


def test_24_bits_are_multiplied_in_float64_only() -> None:
    with pytest.raises(ValueError, match="w24 is multiplied in float64"):
        Product(quantise_matrix(torch.ones(2, 2), W24), W24, "int8", "cpu")


@pytest.mark.parametrize("precision", ["medium", "high"])
def test_reduced_products_are_refused_by_name(precision: str) -> None:
    torch.set_float32_matmul_precision(precision)
    try:
        with pytest.raises(NotExactError, match="float32 products are reduced"):
            check_float32(torch.device("cuda"))
    finally:
        torch.set_float32_matmul_precision("highest")
    check_float32(torch.device("cuda"))
    check_float32(CPU)


def test_weights_become_the_nearest_multiples_of_their_row() -> None:
    weight = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    weight[1] = 0
    gain = torch.rand(40) + 0.5
    for form in (W8, W24):
        matrix = quantise_matrix(weight, form, gain)
        exact = weight.double() * gain.double()
        error = (matrix.q.double() * matrix.scale.double()[:, None] - exact).abs()
        assert (error <= matrix.scale.double()[:, None] * (0.5 + 1e-5)).all()
        assert matrix.q.abs().amax(1).tolist() == [form.weight_top, 0, *[form.weight_top] * 3]


def test_a_weight_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="no finite number"):
        quantise_matrix(torch.tensor([[1.0, float("nan")]]), W8)

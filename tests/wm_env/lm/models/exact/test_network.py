import math
from dataclasses import replace

import exact_reference as reference
import pytest
import torch
from exact_networks import DREAM, LLADA, TIED, WIDE, random_network, reading
from torch import Tensor

from wm_env.lm.models.exact.functions import exp2
from wm_env.lm.models.exact.law import (
    BANNED,
    TICK_BITS,
    bits_of,
    log2_sum,
    log2_ticks,
    masses,
    probabilities,
    renormalised,
)
from wm_env.lm.models.exact.network import ExactNetwork
from wm_env.lm.models.exact.products import Kind, NotExactError, exact_kinds
from wm_env.lm.models.exact.quantise import W8, W24, Form
from wm_env.lm.models.exact.weights import ExactShape, FloatSource, IntegerSource, form_for, form_named, integer_tensors

CANVAS = torch.randint(0, 100, (3, 21), generator=torch.Generator().manual_seed(5))


def network(shape: ExactShape, form: Form = W8, kind: Kind | None = None, **tensors: Tensor) -> ExactNetwork:
    stored = random_network(shape) | {name.replace("__", "."): tensor for name, tensor in tensors.items()}
    return ExactNetwork(FloatSource(shape, form, reading(stored)), kind=kind)


@pytest.mark.parametrize("form", [W8, W24], ids=lambda form: form.name)
@pytest.mark.parametrize("shape", [LLADA, TIED, DREAM, WIDE], ids=["llada", "tied", "dream", "wide"])
def test_the_pass_is_the_bits_of_its_documentation(shape: ExactShape, form: Form) -> None:
    tensors = {name: tensor.numpy() for name, tensor in random_network(shape).items()}
    written = reference.Reference(tensors, shape.heads, shape.groups, shape.theta, shape.eps, form.name)
    row = CANVAS[0].tolist()
    expected = torch.from_numpy(written.logits(row))
    for kind in exact_kinds(form, "cpu", (shape.width, shape.inner)):
        ours = network(shape, form, kind).logits(CANVAS, [0, 7, 20])
        assert torch.equal(ours[0], expected[[0, 7, 20]])
    for temperature in (1.0, 0.7, 2.5):
        law = torch.from_numpy(reference.ticks(expected[7].numpy(), temperature))
        assert torch.equal(log2_ticks(expected[7][None], temperature)[0], law)


def test_neither_batch_nor_threads_nor_other_positions_nor_flushed_numbers_change_a_bit() -> None:
    ours = network(TIED)
    together = ours.logits(CANVAS, [3, 20])
    assert torch.equal(torch.cat([ours.logits(row[None], [3, 20]) for row in CANVAS]), together)
    assert torch.equal(ours.logits(CANVAS, [20])[:, 0], together[:, 1])
    many = CANVAS.repeat(20, 1)
    assert torch.equal(ours.logits(many, [3, 20]), together.repeat(20, 1, 1))
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    torch.set_flush_denormal(True)
    try:
        assert torch.equal(ours.logits(CANVAS, [3, 20]), together)
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)


def test_tiny_weights_meet_no_subnormal_number() -> None:
    tensors = random_network(LLADA)
    for name in tensors:
        if name.endswith(("proj.weight", "embed_tokens.weight")):
            tensors[name] = tensors[name].float() * 2.0**-60
    ours = ExactNetwork(FloatSource(LLADA, W8, reading(tensors)))
    usual = ours.logits(CANVAS, [4])
    torch.set_flush_denormal(True)
    try:
        assert torch.equal(ExactNetwork(FloatSource(LLADA, W8, reading(tensors))).logits(CANVAS, [4]), usual)
    finally:
        torch.set_flush_denormal(False)


def test_the_order_of_hidden_dimensions_changes_no_bit() -> None:
    tensors = random_network(LLADA)
    order = torch.randperm(LLADA.inner, generator=torch.Generator().manual_seed(1))
    moved = dict(tensors)
    for number in range(LLADA.layers):
        for name in ("gate", "up"):
            moved[f"model.layers.{number}.mlp.{name}_proj.weight"] = tensors[
                f"model.layers.{number}.mlp.{name}_proj.weight"
            ][order]
        down = f"model.layers.{number}.mlp.down_proj.weight"
        moved[down] = tensors[down][:, order]
    for form in (W8, W24):
        first, second = (ExactNetwork(FloatSource(LLADA, form, reading(t))) for t in (tensors, moved))
        assert torch.equal(first.logits(CANVAS, [9]), second.logits(CANVAS, [9]))


def test_integers_that_were_stored_are_the_same_network() -> None:
    for shape in (LLADA, DREAM):
        source = FloatSource(shape, W8, reading(random_network(shape)))
        stored = dict(integer_tensors(source))
        assert not any("layernorm" in name for name in stored)
        assert {tensor.dtype for name, tensor in stored.items() if name.endswith("proj.weight")} == {torch.int8}
        ours = ExactNetwork(IntegerSource(shape, W8, reading(stored)))
        assert torch.equal(ours.logits(CANVAS, [6]), ExactNetwork(source).logits(CANVAS, [6]))


def test_stored_tensors_of_another_format_are_refused() -> None:
    stored = dict(integer_tensors(FloatSource(LLADA, W8, reading(random_network(LLADA)))))
    name = "model.layers.1.self_attn.o_proj.weight"
    for tensor, reason in ((stored[name].float(), "torch.float32"), (stored[name].fill_(-128), "beyond 127")):
        broken = stored | {name: tensor}
        with pytest.raises(ValueError, match=reason):
            ExactNetwork(IntegerSource(LLADA, W8, reading(broken)))
    with pytest.raises(ValueError, match="weight_format 'w4' is not implemented"):
        form_named("w4")


def test_the_format_follows_from_the_size() -> None:
    assert form_for(TIED) == W24
    assert form_for(replace(TIED, inner=2048)) == W8


def test_autocast_is_refused_and_compilation_has_no_effect() -> None:
    ours = network(LLADA)
    usual = ours.logits(CANVAS, [4])
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(NotExactError, match="autocast"):
        ours.logits(CANVAS, [4])
    # The backend sees what would be compiled: no operation of the pass.
    seen: list[str] = []

    def backend(module: torch.fx.GraphModule, _: list[Tensor]) -> torch.fx.GraphModule:
        seen.extend(str(node.target) for node in module.graph.nodes if node.op.startswith("call"))
        return module

    torch.compiler.reset()
    compiled = torch.compile(lambda canvas: ours.logits(canvas, [4]) * 2, backend=backend)
    assert torch.equal(compiled(CANVAS), usual * 2)
    assert len(seen) == 1
    torch.compiler.reset()


@pytest.mark.parametrize("form", [W8, W24], ids=lambda form: form.name)
@pytest.mark.parametrize("usual", [torch.float16, torch.bfloat16, torch.float64])
def test_the_default_number_format_changes_no_bit(usual: torch.dtype, form: Form) -> None:
    tensors, canvas = random_network(LLADA), torch.arange(5, 37)[None]

    def network() -> ExactNetwork:
        return ExactNetwork(FloatSource(LLADA, form, reading(tensors)))

    expected = network().logits(canvas, [3])
    torch.set_default_dtype(usual)
    try:
        found = network().logits(canvas, [3])
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(found, expected)


def test_reduced_float32_products_are_refused_where_they_are_used() -> None:
    safe, exposed = network(LLADA, kind="float64"), network(LLADA, kind="float32")
    usual = safe.logits(CANVAS, [4])
    torch.set_float32_matmul_precision("medium")
    try:
        assert torch.equal(safe.logits(CANVAS, [4]), usual)
        with pytest.raises(NotExactError, match="reduced"):
            exposed.logits(CANVAS, [4])
    finally:
        torch.set_float32_matmul_precision("highest")
    assert torch.equal(exposed.logits(CANVAS, [4]), usual)


def test_sizes_beyond_the_bounds_are_refused() -> None:
    with pytest.raises(NotExactError, match="beyond the bounds of w8"):
        ExactNetwork(FloatSource(replace(LLADA, inner=140_000), W8, reading(random_network(LLADA))))
    with pytest.raises(NotExactError, match="exact up to 4096"):
        network(LLADA, W24).logits(torch.zeros((1, 5000), dtype=torch.int64), [0])


def test_the_law_is_that_of_the_softmax_over_what_is_allowed() -> None:
    logits = torch.randn(4, 500, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) * 5
    banned = torch.rand(500, generator=torch.Generator().manual_seed(3)) < 0.2
    ticks = log2_ticks(logits, 0.8, banned)
    assert (ticks[:, banned] == BANNED).all()
    expected = torch.log_softmax((logits / 0.8).masked_fill(banned, -torch.inf), -1) / math.log(2)
    assert ((bits_of(ticks) - expected)[:, ~banned].abs() < 1e-11).all()
    assert (bits_of(ticks)[:, banned] == -torch.inf).all()
    assert ((masses(bits_of(ticks), 48).sum(1) - 2**48).abs() < 500).all()
    # The order of the terms does not matter.
    order = torch.randperm(500, generator=torch.Generator().manual_seed(4))
    assert torch.equal(log2_ticks(logits[:, order], 0.8, banned[order]), ticks[:, order])
    assert 2.0**-TICK_BITS * int(ticks.max()) < 0


def test_logits_that_are_no_numbers_are_refused() -> None:
    for bad in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="no finite number"):
            log2_ticks(torch.tensor([[0.0, bad]]), 1.0)
    with pytest.raises(ValueError, match="no finite number"):
        log2_ticks(torch.tensor([[0.0, 1.0]]), 1e-320)


def test_sums_over_a_law_are_those_of_whole_numbers() -> None:
    """Python's integers of any size, from the same powers of two."""
    generator = torch.Generator().manual_seed(7)
    for terms in (1, 2, 20, 3000):
        bits = -40 * torch.rand(3, terms, dtype=torch.float64, generator=generator)
        fine = 62 - terms.bit_length()
        for row, total, cover in zip(bits, log2_sum(bits), renormalised(bits), strict=True):
            weights = [round(float(x)) for x in exp2(row - row.max()) * 2.0**fine]
            assert cover.tolist() == [float(weight) / float(sum(weights)) for weight in weights]
            assert float(total) == pytest.approx(math.log2(sum(2.0 ** float(x) for x in row)), abs=1e-12)
            order = torch.randperm(terms, generator=generator)
            assert float(log2_sum(row[order])) == float(total)
        assert torch.equal(log2_sum(bits[:, :1]), bits[:, 0])
    single = probabilities(torch.tensor([0.0, -1.0, -60.0, -torch.inf], dtype=torch.float64))
    assert single.tolist() == [1.0, 0.5, 0.0, 0.0]

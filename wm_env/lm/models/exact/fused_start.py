"""Whether fused layers may be used: kernels against the eager operations, bit for bit, on random and extreme numbers.

A compiler that rounds once where the eager pass rounds twice, a quotient that is not the correctly rounded one, a
device that saturates: all would give other numbers without a word. So a network compares each kernel, with its own
sizes, before it uses one.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from wm_env.common.foreign.imports import is_installed
from wm_env.lm.models.exact.fused import FusedLayers
from wm_env.lm.models.exact.products import Halves, Product, operand
from wm_env.lm.models.exact.quantise import Matrix, quantise
from wm_env.lm.models.exact.steps import EagerSteps

_HEAD_WIDTHS = (32, 64, 128, 256)


def start(steps: EagerSteps) -> tuple[FusedLayers | None, str]:
    """The fused layers of a network with these steps, and how it runs: "fused", or why it is eager."""
    if steps.kind != "int8":
        return None, f"eager: {steps.kind} products are not fused"
    if not is_installed("triton"):
        return None, "eager: Triton is not installed"
    from triton import knobs

    if steps.device.type != "cuda" and not knobs.runtime.interpret:
        return None, f"eager: Triton has no kernels for {steps.device.type}"
    if steps.shape.head_width not in _HEAD_WIDTHS:
        return None, f"eager: heads {steps.shape.head_width} wide are not fused"
    fused = FusedLayers(steps)
    wrong = [f"{name} {problem}" for name, problem in problems(fused, steps) if problem]
    return (None, f"eager: {'; '.join(wrong)}") if wrong else (fused, "fused")


def problems(fused: FusedLayers, steps: EagerSteps) -> Iterator[tuple[str, str]]:
    """Compare every kernel with the eager operations: its name, and what is wrong with it, "" if nothing."""
    for name, compare in _comparisons(fused, steps):
        try:
            wrong = sum(int((ours != eager).sum()) for ours, eager in compare())
            yield name, f"differs from the eager operations in {wrong} numbers" if wrong else ""
        except Exception as error:  # whatever a compiler or a driver says: the eager pass needs neither
            first = next(iter(str(error).strip().splitlines()), "")
            yield name, f"does not run ({type(error).__name__}: {first})"


_Pairs = list[tuple[Tensor, Tensor]]


def _comparisons(fused: FusedLayers, steps: EagerSteps) -> Iterator[tuple[str, Callable[[], _Pairs]]]:
    """The kernels and their comparisons with random and extreme numbers: pairs of tensors that must be equal."""
    shape, device = steps.shape, steps.device
    drawn = _Drawn(device)
    count, short, kv, width = 2, 9, shape.groups * shape.head_width, shape.head_width
    rows = count * short
    tables = (drawn.numbers(short, width // 2), drawn.numbers(short, width // 2))

    def pairs(halves: Halves, eager: tuple[Tensor, Tensor]) -> _Pairs:
        return [(halves.q, operand(eager[0], "int8")), (halves.scale, eager[1])]

    def linear(rows: int, depth: int, biased: bool) -> _Pairs:
        x, scale = drawn.integers(steps.form.top, rows, 1, depth)
        x = x[:, 0]
        weight, scales = drawn.integers(steps.form.weight_top, 144, 1, depth)
        matrix = Product(Matrix(weight[:, 0].to(torch.int8), scales[:, 0]), steps.form, steps.kind, device)
        bias = drawn.numbers(144) if biased else None
        ours = fused.linear(Halves(operand(x, "int8"), scale), matrix, bias)
        return [(ours, steps.linear(matrix, x, scale, bias))]

    def norm() -> _Pairs:
        h = drawn.rows(rows, shape.width)
        return pairs(fused.norm(h), steps.norm(h))

    def added_norm() -> _Pairs:
        h, y = drawn.rows(rows, shape.width), drawn.rows(rows, shape.width).flip(0)
        expected = h + y
        return [*pairs(fused.added_norm(h, y), steps.norm(expected)), (h, expected)]

    def integers() -> _Pairs:
        x = drawn.rows(rows, shape.width)
        return pairs(fused.integers(x), steps.integers(x))

    def turned(heads: int, columns: int, is_query: bool) -> _Pairs:
        y = drawn.rows(rows, columns)
        x = y[:, : heads * width].view(count, short, heads, width)
        q, most = quantise(steps.turned(x, *(table[:, None] for table in tables)), steps.top)
        eager = q.reshape(rows, -1), steps.stepped(most, is_query).reshape(rows, -1)
        return pairs(fused.turned(y, tables, heads, is_query), eager)

    def values() -> _Pairs:
        length = 70
        y = drawn.rows(count * length, 2 * kv)
        q, most = quantise(y[:, kv:].view(count, length, kv), steps.top, 1)
        ours = fused.values(y, length)
        halves = operand(q.transpose(1, 2).reshape(-1, length), "int8").view(2, count, kv, length)
        return [(ours.q[..., :length], halves), (ours.scale, steps.stepped(most)[:, 0])]

    def attention(queries: int, length: int) -> _Pairs:
        q, q_scale = drawn.integers(steps.form.top, count * queries, shape.heads, width)
        k, k_scale = drawn.integers(steps.form.top, count * length, shape.groups, width)
        v, v_scale = drawn.integers(steps.form.top, count * kv, 1, length)
        # Of the size that attentions have: the largest S is some tens.
        q_scale.mul_(20.0 / width / steps.form.top**2)
        room = (0, -length % 16)
        halves = torch.nn.functional.pad(operand(v.view(-1, length), "int8").view(2, count, kv, length), room)
        ours = fused.attended(
            Halves(operand(q.flatten(1), "int8"), q_scale),
            Halves(operand(k.flatten(1), "int8"), k_scale),
            Halves(halves.contiguous(), v_scale.view(count, kv)),
            length,
        )
        eager = steps.attended(
            (q.view(count, queries, shape.heads, width), q_scale.view(count, queries, -1, 1)),
            (k.view(count, length, shape.groups, width), k_scale.view(count, length, -1, 1)),
            (
                v.view(count, shape.groups, width, length).permute(0, 3, 1, 2),
                v_scale.view(count, 1, shape.groups, width),
            ),
        )
        return [(ours, eager)]

    def gated() -> _Pairs:
        y = drawn.rows(rows, 2 * shape.inner)
        eager = steps.integers(steps.gated(*y.chunk(2, 1)))
        return pairs(fused.gated(y), eager)

    for depth in sorted({shape.width, shape.inner}):
        for count_of_rows in (5, 70, 530):
            yield f"linear of {count_of_rows} x {depth}", partial(linear, count_of_rows, depth, shape.biases)
    yield "norm", norm
    yield "added_norm", added_norm
    yield "integers", integers
    yield "turned queries", partial(turned, shape.heads, shape.heads * width, True)
    yield "turned keys", partial(turned, shape.groups, 2 * kv, False)
    yield "values", values
    for queries, length in ((3, 21), (70, 130)):
        yield f"attention over {length}", partial(attention, queries, length)
    yield "gated", gated


class _Drawn:
    """Random numbers with the extremes that a kernel may meet."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._generator = torch.Generator().manual_seed(0)

    def numbers(self, *size: int) -> Tensor:
        """Normal float32."""
        return torch.randn(size, generator=self._generator, dtype=torch.float32).to(self._device)

    def spread(self, rows: int) -> Tensor:
        """Powers of ten between 1e-6 and 1e4, (rows, 1) float32."""
        return (10.0 ** (10 * torch.rand(rows, 1, generator=self._generator, dtype=torch.float32) - 6)).to(self._device)

    def rows(self, rows: int, width: int) -> Tensor:
        """float32 rows of all sizes: outliers, one number alone, nothing, ties of the rounding."""
        x = self.numbers(rows, width) * self.spread(rows)
        x[:, 3] *= 300.0
        x[0] = 0.0
        x[1, 1:] = 0.0
        x[2] = -x[2].abs().amax()
        x[3] = (torch.arange(width, device=self._device) % 4097 - 2048).float() / 2.0
        x[3, 0] = 32639.0
        x[4] = 2.0**-60
        return x

    def integers(self, top: int, rows: int, heads: int, width: int) -> tuple[Tensor, Tensor]:
        """(rows, heads, width) integers within `top` in float32, the largest among them, and scales (rows, heads)."""
        q = torch.randint(-top, top + 1, (rows, heads, width), generator=self._generator).float()
        q[:2] = top
        q[2:4] = -top
        return q.to(self._device), self.numbers(rows, heads).abs_().add_(0.1)

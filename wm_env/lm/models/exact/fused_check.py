"""Kernels against the eager operations, bit for bit, on random and on extreme numbers.

A compiler that rounds once where the eager pass rounds twice, a quotient that is not the correctly rounded one, a
device that saturates: all would give other numbers without a word. So a network compares each kernel, with its own
sizes, before it uses one.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from wm_env.lm.models.exact.products import Halves, operand, whole
from wm_env.lm.models.exact.quantise import quantise

if TYPE_CHECKING:
    from wm_env.lm.models.exact.fused import FusedLayers
    from wm_env.lm.models.exact.network import ExactNetwork


def problems(fused: "FusedLayers", network: "ExactNetwork") -> Iterator[tuple[str, str]]:
    """Compare every kernel with the eager operations: its name, and what is wrong with it, "" if nothing."""
    for name, compare in _comparisons(fused, network):
        try:
            wrong = sum(int((ours != eager).sum()) for ours, eager in compare())
            yield name, f"differs from the eager operations in {wrong} numbers" if wrong else ""
        except Exception as error:  # whatever a compiler or a driver says: the eager pass needs neither
            first = next(iter(str(error).strip().splitlines()), "")
            yield name, f"does not run ({type(error).__name__}: {first})"


_Pairs = list[tuple[Tensor, Tensor]]


def _comparisons(fused: "FusedLayers", network: "ExactNetwork") -> Iterator[tuple[str, Callable[[], _Pairs]]]:
    """The kernels and their comparisons with random and extreme numbers: pairs of tensors that must be equal."""
    shape, device = network.shape, network.device
    drawn = _Drawn(device)
    count, length, wanted, short = 2, 70, 3, 9
    rows, kv, width = count * short, shape.groups * shape.head_width, shape.head_width
    tables = (drawn.numbers(short, width // 2), drawn.numbers(short, width // 2))

    def pairs(halves: Halves, eager: tuple[Tensor, Tensor]) -> _Pairs:
        return [(halves.q, operand(eager[0], "int8")), (halves.scale, eager[1])]

    def norm() -> _Pairs:
        h = drawn.rows(rows, shape.width)
        return pairs(fused.norm(h), network.norm(h))

    def added_norm() -> _Pairs:
        h, sums, scales, scale = drawn.rows(rows, shape.width), *drawn.sums(rows, shape.width)
        expected = h + whole(sums).mul_(scales).mul_(scale)
        ours = fused.added_norm(h, sums, scales, scale)
        return [*pairs(ours, network.norm(expected)), (h, expected)]

    def integers() -> _Pairs:
        x = drawn.rows(rows, shape.width)
        return pairs(fused.integers(x), network.integers(x))

    def turned(heads: int, columns: int, is_query: bool) -> _Pairs:
        sums, scales, scale = drawn.sums(rows, columns)
        bias = drawn.numbers(columns) if shape.biases else None
        x = whole(sums).mul_(scales).mul_(scale)
        x = x if bias is None else x.add_(bias)
        x = x[:, : heads * width].view(count, short, heads, width)
        q, most = quantise(network.turned(x, *(table[:, None] for table in tables)), network.top)
        most = network.stepped(most, is_query)
        ours = fused.turned(sums, scales, scale, bias, tables, heads, is_query)
        return pairs(ours, (q.reshape(rows, -1), most.reshape(rows, -1)))

    def values() -> _Pairs:
        sums, scales, scale = drawn.sums(count * length, 2 * kv)
        bias = drawn.numbers(2 * kv) if shape.biases else None
        x = whole(sums).mul_(scales).mul_(scale)
        x = x if bias is None else x.add_(bias)
        q, most = quantise(x[:, kv:].view(count, length, kv), network.top, 1)
        ours = fused.values(sums, scales, scale, bias, length)
        halves = operand(q.transpose(1, 2).reshape(-1, length), "int8").view(2, count, kv, length)
        return [(ours.q[..., :length], halves), (ours.scale, network.stepped(most)[:, 0])]

    def attention(queries: int) -> _Pairs:
        q, q_scale = drawn.integers(network.form.top, count * queries, shape.heads, width)
        k, k_scale = drawn.integers(network.form.top, count * length, shape.groups, width)
        v, v_scale = drawn.integers(network.form.top, count * kv, 1, length)
        # Of the size that attentions have: the largest S is some tens.
        q_scale.mul_(20.0 / width / network.form.top**2)
        room = (0, -length % 16)
        halves = torch.nn.functional.pad(operand(v.view(-1, length), "int8").view(2, count, kv, length), room)
        ours = fused.attended(
            Halves(operand(q.flatten(1), "int8"), q_scale),
            Halves(operand(k.flatten(1), "int8"), k_scale),
            Halves(halves.contiguous(), v_scale.view(count, kv)),
            length,
        )
        eager = network.attended(
            (q.view(count, queries, shape.heads, width), q_scale.view(count, queries, -1, 1)),
            (k.view(count, length, shape.groups, width), k_scale.view(count, length, -1, 1)),
            (
                v.view(count, shape.groups, width, length).permute(0, 3, 1, 2),
                v_scale.view(count, 1, shape.groups, width),
            ),
        )
        return [(ours, eager)]

    def gated() -> _Pairs:
        sums, scales, scale = drawn.sums(rows, 2 * shape.inner)
        scale.mul_(drawn.spread(rows))
        y = network.gated(*whole(sums).mul_(scales).mul_(scale).chunk(2, 1))
        return pairs(fused.gated(sums, scales, scale), network.integers(y))

    yield "norm", norm
    yield "added_norm", added_norm
    yield "integers", integers
    yield "turned queries", lambda: turned(shape.heads, shape.heads * width, True)
    yield "turned keys", lambda: turned(shape.groups, 2 * kv, False)
    yield "values", values
    yield "attention", lambda: attention(length)
    yield "attention of few queries", lambda: attention(wanted)
    yield "gated", gated


class _Drawn:
    """Random numbers with the extremes that a kernel may meet."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._generator = torch.Generator().manual_seed(0)

    def numbers(self, *size: int) -> Tensor:
        """Normal float32."""
        return torch.randn(size, generator=self._generator).to(self._device)

    def spread(self, rows: int) -> Tensor:
        """Powers of ten between 1e-6 and 1e4, (rows, 1) float32."""
        return (10.0 ** (10 * torch.rand(rows, 1, generator=self._generator) - 6)).to(self._device)

    def rows(self, rows: int, width: int) -> Tensor:
        """float32 rows of all sizes: outliers, one number alone, nothing, ties of the rounding."""
        x = self.numbers(rows, width) * self.spread(rows)
        x[:, 3] *= 300.0
        x[0] = 0.0
        x[1, 1:] = 0.0
        x[2] = -x[2].abs().amax()
        x[3] = (torch.arange(width, device=self._device) % 4097 - 2048) / 2.0
        x[3, 0] = 32639.0
        x[4] = 2.0**-60
        return x

    def integers(self, top: int, rows: int, heads: int, width: int) -> tuple[Tensor, Tensor]:
        """(rows, heads, width) integers within `top` in float32, the largest among them, and scales (rows, heads)."""
        q = torch.randint(-top, top + 1, (rows, heads, width), generator=self._generator).float()
        q[:2] = top
        q[2:4] = -top
        return q.to(self._device), self.numbers(rows, heads).abs_().add_(0.1)

    def sums(self, rows: int, columns: int) -> tuple[Tensor, Tensor, Tensor]:
        """Halves (2 rows, columns) int32 up to the largest, scales of matrix (columns,) and rows (rows, 1)."""
        largest = (1 << (5 + torch.randint(0, 26, (2 * rows, 1), generator=self._generator))) - 1
        halves = torch.rand(2 * rows, columns, dtype=torch.float64, generator=self._generator).mul_(2).sub_(1) * largest
        halves[0], halves[rows] = 2.0**31 - 1, -(2.0**31)
        halves[1] = halves[rows + 1] = 0.0
        scales = torch.rand(columns, generator=self._generator) / 1e3 + 1e-5
        scale = torch.rand(rows, 1, generator=self._generator) / 1e3 + 1e-7
        return halves.round_().to(torch.int32).to(self._device), scales.to(self._device), scale.to(self._device)

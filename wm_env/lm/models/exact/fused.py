"""A layer with int8 products whose other operations are fused: the bits of the eager layer, several times as fast.

`start` gives the fused layers of a network where they can run and compute what the eager operations compute; else the
reason why not. Every kernel is compared, bit for bit, on random and on extreme numbers, with the sizes of the network.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from wm_env.lm.models.exact.functions import LOG2_E, float32
from wm_env.lm.models.exact.products import operand, whole
from wm_env.lm.models.exact.quantise import quantise

if TYPE_CHECKING:
    from wm_env.lm.models.exact.network import ExactNetwork, Layer

_HEAD_WIDTHS = (32, 64, 128, 256)
_MOST_POSITIONS = 1 << 15
"""So that int32 holds the sums of the attention."""
_EAGER_QUERIES = 16


@dataclass(frozen=True)
class Halves:
    """Integers as two int8 halves, high above low, and the factor that makes numbers of them."""

    q: Tensor
    scale: Tensor


class FusedLayers:
    """The steps between the products of a network, each a launch of a kernel of `kernels`.

    Operands and sums hold high halves above low ones, (2 M, K) int8 and (2 M, N) int32.
    """

    def __init__(self, network: "ExactNetwork") -> None:
        from wm_env.lm.models.exact import kernels

        shape, top = network.shape, network.form.top
        self._kernels = kernels
        self._shape = shape
        self._device = network.device
        self._number = {"TOP": float(top), "STEP": float32(1 / top)}
        self._norm = {"INVERSE_WIDTH": 1.0 / shape.width, "EPS": shape.eps}
        self._score = float32(LOG2_E / math.sqrt(shape.head_width))
        self._probability_top = float(network.form.probability_top)

    def norm(self, h: Tensor) -> Halves:
        """norm(h): (M, d) float32."""
        out = self._empty(len(h), self._shape.width)
        self._by_row(self._kernels.norm, (h, out.q, out.scale), self._number | self._norm)
        return out

    def added_norm(self, h: Tensor, sums: Tensor, matrix_scale: Tensor, row_scale: Tensor) -> Halves:
        """h = h + linear, in place, then norm(h)."""
        out = self._empty(len(h), self._shape.width)
        arguments = (h, sums, matrix_scale, row_scale, out.q, out.scale)
        self._by_row(self._kernels.added_norm, arguments, self._number | self._norm)
        return out

    def integers(self, x: Tensor) -> Halves:
        """q(x) and m(x) 1/T: (M, d) float32."""
        out = self._empty(len(x), self._shape.width)
        self._by_row(self._kernels.integers, (x, out.q, out.scale), self._number)
        return out

    def gated(self, sums: Tensor, matrix_scale: Tensor, row_scale: Tensor) -> Halves:
        """The integers of y: sums of gates beside those of ups."""
        rows, width = len(sums) // 2, self._shape.inner
        out = self._empty(rows, width)
        between = torch.empty((rows, width), dtype=torch.float32, device=self._device)
        self._launch(
            self._kernels.gated,
            (rows,),
            *(sums, matrix_scale, row_scale, between, out.q, out.scale, rows),
            **self._number,
            WIDTH=width,
            MINUS_LOG2_E=float32(-LOG2_E),
            BLOCK=min(2048, _power(width)),
            num_warps=8,
        )
        return out

    def turned(
        self,
        sums: Tensor,
        matrix_scale: Tensor,
        row_scale: Tensor,
        bias: Tensor | None,
        tables: tuple[Tensor, Tensor],
        heads: int,
        is_query: bool,
    ) -> Halves:
        """The integers of queries or keys, the first `heads` of sums; tables of (T, w / 2) for T tokens a canvas."""
        rows, width, block = len(sums) // 2, self._shape.head_width, min(8, _power(heads))
        out = self._empty(rows, heads * width, heads)
        self._launch(
            self._kernels.turned,
            (rows, -(-heads // block)),
            *(sums, matrix_scale, row_scale, matrix_scale if bias is None else bias, *tables, out.q, out.scale),
            *(rows, len(tables[0])),
            **self._number,
            COLUMNS=sums.shape[1],
            HEADS=heads,
            HALF=width // 2,
            SCORE=self._score if is_query else 1.0,
            BIASED=bias is not None,
            BLOCK=block,
            num_warps=4,
        )
        return out

    def values(self, sums: Tensor, matrix_scale: Tensor, row_scale: Tensor, bias: Tensor | None, length: int) -> Halves:
        """The integers of the values, the second half of sums: (2, N, groups w, at least T)."""
        rows, width = len(sums) // 2, sums.shape[1] // 2
        sixteens, block = -(-length // 16), min(64, _power(width))
        out = Halves(
            torch.empty((2, rows // length, width, 16 * sixteens), dtype=torch.int8, device=self._device),
            torch.empty((rows // length, width), dtype=torch.float32, device=self._device),
        )
        self._launch(
            self._kernels.values,
            (rows // length, -(-width // block)),
            *(sums, matrix_scale, row_scale, matrix_scale if bias is None else bias, out.q, out.scale),
            *(rows, length, sixteens),
            **self._number,
            COLUMNS=2 * width,
            SKIPPED=width,
            WIDTH=width,
            BIASED=bias is not None,
            BLOCK=block,
            TOKENS=32,
            num_warps=4,
        )
        return out

    def attended(self, query: Halves, key: Halves, value: Halves, length: int) -> Tensor:
        """A: (N P, heads w) float32."""
        shape, rows, query_rows = self._shape, len(key.q) // 2, len(query.q) // 2
        wanted = query_rows // (rows // length)
        out = torch.empty((query_rows, shape.heads * shape.head_width), dtype=torch.float32, device=self._device)
        queries = 16 if wanted <= _EAGER_QUERIES else 64
        self._launch(
            self._kernels.attention,
            (-(-wanted // queries), shape.heads, rows // length),
            *(query.q, query.scale, key.q, key.scale, value.q, value.scale, out),
            *(wanted, length, value.q.shape[-1] // 16, query_rows, rows),
            HEADS=shape.heads,
            GROUPS=shape.groups,
            WIDTH=shape.head_width,
            TOP=self._probability_top,
            QUERIES=queries,
            KEYS=64,
            num_warps=4 if queries == 16 else 8,
            num_stages=2,
        )
        return out

    def _empty(self, rows: int, width: int, scales: int = 1) -> Halves:
        return Halves(
            torch.empty((2 * rows, width), dtype=torch.int8, device=self._device),
            torch.empty((rows, scales), dtype=torch.float32, device=self._device),
        )

    def _by_row(self, kernel: Any, tensors: tuple[Tensor, ...], constants: dict[str, float]) -> None:
        """A program a row of the first tensor, which holds the whole row."""
        rows, width = tensors[0].shape
        block = _power(width)
        warps = max(1, min(16, block // 512))
        self._launch(kernel, (rows,), *tensors, rows, **constants, WIDTH=width, BLOCK=block, num_warps=warps)

    def _launch(self, kernel: Any, grid: tuple[int, ...], *arguments: Tensor | int, **constants: float) -> None:
        kernel[grid](*arguments, **constants, enable_fp_fusion=False)

    def layer(
        self,
        layer: "Layer",
        h: Tensor,
        x: Halves,
        tables: tuple[Tensor, Tensor],
        count: int,
        positions: Tensor | None,
    ) -> tuple[Tensor, Halves]:
        """A layer at `positions`, or at all, from h and norm(h) at all: h and norm(h) after it; overwrites h."""
        shape, length = self._shape, len(tables[0])
        sums, scales = layer.key_value.halves(x.q), layer.key_value.scale
        key = self.turned(sums, scales, x.scale, layer.key_value_bias, tables, shape.groups, is_query=False)
        value = self.values(sums, scales, x.scale, layer.key_value_bias, length)
        if positions is not None:
            at = (torch.arange(count, device=self._device)[:, None] * length + positions).reshape(-1)
            h, x = h[at], Halves(torch.cat((x.q[at], x.q[at + len(h)])), x.scale[at])
            tables = (tables[0][positions], tables[1][positions])
        sums, scales = layer.query.halves(x.q), layer.query.scale
        query = self.turned(sums, scales, x.scale, layer.query_bias, tables, shape.heads, is_query=True)
        a = self.integers(self.attended(query, key, value, length))
        x = self.added_norm(h, layer.out.halves(a.q), layer.out.scale, a.scale)
        y = self.gated(layer.gate_up.halves(x.q), layer.gate_up.scale, x.scale)
        return h, self.added_norm(h, layer.down.halves(y.q), layer.down.scale, y.scale)


def start(network: "ExactNetwork") -> tuple[FusedLayers | None, str]:
    """The fused layers of a network, and how its pass runs: "fused", or why it is eager."""
    if network.kind != "int8":
        return None, f"eager: {network.kind} products are not fused"
    if find_spec("triton") is None:
        return None, "eager: Triton is not installed"
    from triton import knobs

    if network.device.type != "cuda" and not knobs.runtime.interpret:
        return None, f"eager: Triton has no kernels for {network.device.type}"
    if network.shape.head_width not in _HEAD_WIDTHS:
        return None, f"eager: heads {network.shape.head_width} wide are not fused"
    fused = FusedLayers(network)
    wrong = [f"{name} {problem}" for name, problem in check(fused, network) if problem]
    return (None, f"eager: {'; '.join(wrong)}") if wrong else (fused, "fused")


def is_short(length: int) -> bool:
    """Whether the sums of an attention over so many positions stay within the integers of the kernels."""
    return length <= _MOST_POSITIONS


def check(fused: FusedLayers, network: "ExactNetwork") -> Iterator[tuple[str, str]]:
    """Compare every kernel with the eager operations: its name, and what is wrong with it, "" if nothing."""
    for name, compare in _comparisons(fused, network):
        try:
            wrong = sum(int((ours != eager).sum()) for ours, eager in compare())
            yield name, f"differs from the eager operations in {wrong} numbers" if wrong else ""
        except Exception as error:  # whatever a compiler or a driver says: the eager pass needs neither
            yield name, f"does not run ({type(error).__name__}: {str(error).strip().splitlines()[:1]})"


_Pairs = list[tuple[Tensor, Tensor]]


def _comparisons(fused: FusedLayers, network: "ExactNetwork") -> Iterator[tuple[str, Callable[[], _Pairs]]]:
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


def _power(size: int) -> int:
    """The least power of two of at least `size`, the size of a block of Triton."""
    return 1 << (size - 1).bit_length()

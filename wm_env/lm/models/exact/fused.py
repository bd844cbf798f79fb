"""A layer with int8 products whose other operations are fused: the bits of the eager layer, several times as fast.

`start` gives the fused layers of a network where they can run and compute what the eager operations compute; else the
reason why not. `fused_check` compares every kernel, with the sizes of the network.
"""

import math
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from wm_env.lm.models.exact.functions import LOG2_E, float32
from wm_env.lm.models.exact.products import Halves

if TYPE_CHECKING:
    from wm_env.lm.models.exact.network import ExactNetwork, Layer

_HEAD_WIDTHS = (32, 64, 128, 256)
_MOST_POSITIONS = 1 << 15
"""So that int32 holds the sums of the attention."""
_EAGER_QUERIES = 16


ONE_BY_ONE = {"enable_fp_fusion": False}
"""What the compiler is told: a product and a sum are rounded one after the other."""


def launched(kernel: Any, grid: tuple[int, ...], *arguments: Tensor | int, **constants: float) -> None:
    """Launch a kernel whose operations are rounded one by one."""
    kernel[grid](*arguments, **constants, **ONE_BY_ONE)


Launch = Callable[..., None]
"""`launched`, or what takes its place: kernel, grid, arguments of the kernel, constants and options of the compiler."""


class FusedLayers:
    """The steps between the products of a network, each a launch of a kernel of `kernels`.

    Operands and sums hold high halves above low ones, (2 M, K) int8 and (2 M, N) int32.
    """

    def __init__(self, network: "ExactNetwork", launch: Launch = launched) -> None:
        from wm_env.lm.models.exact import kernels

        shape, top = network.shape, network.form.top
        self._kernels = kernels
        self._launch = launch
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

    from wm_env.lm.models.exact.fused_check import problems

    if network.device.type != "cuda" and not knobs.runtime.interpret:
        return None, f"eager: Triton has no kernels for {network.device.type}"
    if network.shape.head_width not in _HEAD_WIDTHS:
        return None, f"eager: heads {network.shape.head_width} wide are not fused"
    fused = FusedLayers(network)
    wrong = [f"{name} {problem}" for name, problem in problems(fused, network) if problem]
    return (None, f"eager: {'; '.join(wrong)}") if wrong else (fused, "fused")


def is_short(length: int) -> bool:
    """Whether the sums of an attention over so many positions stay within the integers of the kernels."""
    return length <= _MOST_POSITIONS


def _power(size: int) -> int:
    """The least power of two of at least `size`, the size of a block of Triton."""
    return 1 << (size - 1).bit_length()

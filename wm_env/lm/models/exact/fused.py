"""A layer with int8 products, fused: the bits of the eager layer, several times as fast.

`fused_start` gives the fused layers of a network where they can run and compute what the eager operations compute, by
comparing every kernel with the sizes of the steps; else the reason why not.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from wm_env.lm.models.exact.functions import LOG2_E, float32
from wm_env.lm.models.exact.products import Halves, Product
from wm_env.lm.models.exact.steps import EagerSteps, Layer

_MOST_POSITIONS = 1 << 15
"""So that int32 holds the sums of the attention."""
_QUERIES = 64


ONE_BY_ONE = {"enable_fp_fusion": False}
"""What the compiler is told: a product and a sum are rounded one after the other."""


def launched(kernel: Any, grid: tuple[int, ...], first: Tensor, *arguments: Tensor | int, **constants: float) -> None:
    """Launch a kernel, whose operations are rounded one by one, where its first argument lives."""
    with torch.cuda.device_of(first):  # type: ignore[no-untyped-call]
        kernel[grid](first, *arguments, **constants, **ONE_BY_ONE)


Launch = Callable[..., None]
"""`launched`, or what takes its place: kernel, grid, arguments of the kernel, constants and options of the compiler."""


class FusedLayers:
    """The steps of a network's layers, each a launch of a kernel of `kernels`."""

    def __init__(self, steps: EagerSteps, launch: Launch = launched) -> None:
        from wm_env.lm.models.exact import kernels

        shape, top = steps.shape, steps.form.top
        self._kernels = kernels
        self._launch = launch
        self._shape = shape
        self._device = steps.device
        self._number = {"TOP": float(top), "STEP": float32(1 / top)}
        self._norm = {"INVERSE_WIDTH": 1.0 / shape.width, "EPS": shape.eps}
        self._score = float32(LOG2_E / math.sqrt(shape.head_width))
        self._probability_top = float(steps.form.probability_top)

    def norm(self, h: Tensor) -> Halves:
        """norm(h): (M, d) float32."""
        out = self._empty(len(h), self._shape.width)
        self._by_row(self._kernels.norm, (h, out.q, out.scale), self._number | self._norm)
        return out

    def linear(self, x: Halves, matrix: Product, bias: Tensor | None = None) -> Tensor:
        """linear(W; x, s): (M, N) float32."""
        rows, (columns, depth) = len(x.q) // 2, matrix.size
        out = torch.empty((rows, columns), dtype=torch.float32, device=self._device)
        tiles = _tiles(rows)
        self._launch(
            self._kernels.linear,
            (-(-rows // tiles["ROWS"]) * -(-columns // tiles["COLUMNS"]),),
            *(x.q, x.scale, matrix.weight, matrix.scale, matrix.scale if bias is None else bias, out),
            *(rows, columns, depth),
            **tiles,
            BIASED=bias is not None,
            EVEN=depth % tiles["DEPTH"] == 0,
            TOGETHER=8,
        )
        return out

    def added_norm(self, h: Tensor, y: Tensor) -> Halves:
        """h = h + y, in place, then norm(h)."""
        out = self._empty(len(h), self._shape.width)
        self._by_row(self._kernels.added_norm, (h, y, out.q, out.scale), self._number | self._norm)
        return out

    def integers(self, x: Tensor) -> Halves:
        """q(x) and m(x) 1/T: (M, d) float32."""
        out = self._empty(len(x), self._shape.width)
        self._by_row(self._kernels.integers, (x, out.q, out.scale), self._number)
        return out

    def gated(self, y: Tensor) -> Halves:
        """The integers of g / (1 + 2^z) u: gates beside ups, (M, 2 inner) float32, which are overwritten."""
        rows, width = len(y), self._shape.inner
        out = self._empty(rows, width)
        self._launch(
            self._kernels.gated,
            (rows,),
            *(y, out.q, out.scale, rows),
            **self._number,
            WIDTH=width,
            MINUS_LOG2_E=float32(-LOG2_E),
            BLOCK=min(2048, _power(width)),
            num_warps=8,
        )
        return out

    def turned(self, y: Tensor, tables: tuple[Tensor, Tensor], heads: int, is_query: bool) -> Halves:
        """The integers of queries or keys, the first `heads` of y; tables of (T, w / 2) for T tokens a canvas."""
        rows, width, block = len(y), self._shape.head_width, min(8, _power(heads))
        out = self._empty(rows, heads * width, heads)
        self._launch(
            self._kernels.turned,
            (rows, -(-heads // block)),
            *(y, *tables, out.q, out.scale, rows, len(tables[0])),
            **self._number,
            COLUMNS=y.shape[1],
            HEADS=heads,
            HALF=width // 2,
            SCORE=self._score if is_query else 1.0,
            BLOCK=block,
            num_warps=4,
        )
        return out

    def values(self, y: Tensor, length: int) -> Halves:
        """The integers of the values, the second half of y: (2, N, groups w, at least T)."""
        canvases, width = len(y) // length, y.shape[1] // 2
        sixteens, block = -(-length // 16), min(32, _power(width))
        out = Halves(
            torch.empty((2, canvases, width, 16 * sixteens), dtype=torch.int8, device=self._device),
            torch.empty((canvases, width), dtype=torch.float32, device=self._device),
        )
        self._launch(
            self._kernels.values,
            (canvases, -(-width // block)),
            *(y, out.q, out.scale, len(y), length, sixteens),
            **self._number,
            COLUMNS=2 * width,
            SKIPPED=width,
            WIDTH=width,
            BLOCK=block,
            TOKENS=64,
            num_warps=4,
        )
        return out

    def attended(self, query: Halves, key: Halves, value: Halves, length: int) -> Tensor:
        """A: (N P, heads w) float32."""
        shape, rows, query_rows = self._shape, len(key.q) // 2, len(query.q) // 2
        wanted = query_rows // (rows // length)
        out = torch.empty((query_rows, shape.heads * shape.head_width), dtype=torch.float32, device=self._device)
        self._launch(
            self._kernels.attention,
            (-(-wanted // _QUERIES), shape.heads, rows // length),
            *(query.q, query.scale, key.q, key.scale, value.q, value.scale, out),
            *(wanted, length, value.q.shape[-1] // 16, query_rows, rows),
            HEADS=shape.heads,
            GROUPS=shape.groups,
            WIDTH=shape.head_width,
            TOP=self._probability_top,
            QUERIES=_QUERIES,
            **_keys(length),
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
        layer: Layer,
        h: Tensor,
        x: Halves,
        tables: tuple[Tensor, Tensor],
        count: int,
        positions: Tensor | None,
    ) -> tuple[Tensor, Halves]:
        """A layer at `positions`, or at all, from h and norm(h) at all: h and norm(h) after it; overwrites h."""
        shape, length = self._shape, len(tables[0])
        y = self.linear(x, layer.key_value, layer.key_value_bias)
        key = self.turned(y, tables, shape.groups, is_query=False)
        value = self.values(y, length)
        if positions is not None:
            at = (torch.arange(count, device=self._device)[:, None] * length + positions).reshape(-1)
            h, x = h[at], Halves(torch.cat((x.q[at], x.q[at + len(h)])), x.scale[at])
            tables = (tables[0][positions], tables[1][positions])
        y = self.linear(x, layer.query, layer.query_bias)
        query = self.turned(y, tables, shape.heads, is_query=True)
        a = self.integers(self.attended(query, key, value, length))
        x = self.added_norm(h, self.linear(a, layer.out))
        x = self.gated(self.linear(x, layer.gate_up))
        return h, self.added_norm(h, self.linear(x, layer.down))


def is_short(length: int) -> bool:
    """Whether the sums of an attention over so many positions stay within the integers of the kernels."""
    return length <= _MOST_POSITIONS


def _power(size: int) -> int:
    """The least power of two of at least `size`, the size of a block of Triton."""
    return 1 << (size - 1).bit_length()


def _tiles(rows: int) -> dict[str, int]:
    """The blocks of a product: small ones where there are few rows, so that every processor has some."""
    if rows <= 64:
        return {"ROWS": 64, "COLUMNS": 32, "DEPTH": 128, "num_warps": 4, "num_stages": 5}
    if rows <= 512:
        return {"ROWS": 64, "COLUMNS": 128, "DEPTH": 128, "num_warps": 4, "num_stages": 4}
    return {"ROWS": 128, "COLUMNS": 128, "DEPTH": 128, "num_warps": 8, "num_stages": 3}


def _keys(length: int) -> dict[str, int]:
    """The keys of a block of the attention."""
    if length <= 64:
        return {"WHOLE": True, "KEYS": 64, "num_warps": 4, "num_stages": 1}
    return {"WHOLE": False, "KEYS": 64, "num_warps": 8, "num_stages": 2}

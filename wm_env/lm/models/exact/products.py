"""Exact products of integer matrices, on whatever a device multiplies fast.

    product(x) = float32(x W^T), the exact sum, rounded once.

x holds integers in float32, W integers of the form. As long as every partial sum in every order is an integer that the
accumulator holds, order, blocking, threads, vector width, FMA and tensor cores make no difference. The bounds:

| kind | operands | accumulator | K at most |
| --- | --- | --- | --- |
| int8 | x = 256 high + low, both int8; w8 only | int32, below 2^31 | 131,071 |
| float32 | the same halves in float32, summed by 1,024 columns; w8 only | 1024 127 128 < 2^24 | 131,071 |
| float64 | x whole, w8 | K 2^22 < 2^53 | 2^31 - 1 |
| float64 | x whole, w24, summed by 2,047 columns | 2047 2^42 < 2^53 | 2^20 |

Sums of parts are added as int64 (w24) or float64 (w8), exactly. So the kinds give the same bits, and which one is used
is a question of speed alone.

What could spoil it, and what keeps it out:

* `torch._int_mm` saturates pairs at 16 bits on CPUs without VNNI, silently: `exact_kinds` multiplies the extreme
  integers at start and leaves out what is wrong;
* TF32 or bfloat16 products inside a float32 product: `check_float32` refuses them by name;
* 256 high + low by one fused operation or two: 256 high is exact, so both round once.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from wm_env.lm.models.exact.quantise import W8, Form, Matrix

Kind = Literal["int8", "float64", "float32"]
KINDS: tuple[Kind, ...] = ("int8", "float64", "float32")
"""From the fastest to the slowest where a device has instructions for int8; see `fastest_kind` for others."""

_FLOAT32_COLUMNS = 1024
_FLOAT64_COLUMNS = 2047
_CUBLAS_ROWS = 17
"""The least rows that cuBLAS multiplies in int8."""
_MOST_BYTES = 1 << 31
"""Memory of a network's weights in floats where int8 would do."""
_TIMED_ROWS, _TIMED_COLUMNS = 64, 512
"""Sizes of the products that are timed, at most."""
_DTYPES = {"int8": torch.int8, "float64": torch.float64, "float32": torch.float32}


class NotExactError(ValueError):
    """The device or a setting of the process would give other numbers; the argument says which."""


@dataclass(frozen=True)
class Halves:
    """Integers as two int8 halves, high above low, and the factor that makes numbers of them."""

    q: Tensor
    scale: Tensor


class Product:
    """float32(x W^T) with a scale a row; see the module.

    Attributes:
        scale: (N,) float32.
        size: (N, K).
    """

    def __init__(self, matrix: Matrix, form: Form, kind: Kind, device: str | torch.device) -> None:
        if form != W8 and kind != "float64":
            raise ValueError(f"{form.name} is multiplied in float64, not {kind}")
        self.size = tuple(matrix.q.shape)
        self.scale = matrix.scale.to(device)
        self._kind = kind
        self._whole = kind == "float64"
        self._columns = _FLOAT64_COLUMNS if form != W8 else _FLOAT32_COLUMNS if kind == "float32" else self.size[1]
        self._weight = matrix.q.to(device=device, dtype=_DTYPES[kind]).t()

    @property
    def nbytes(self) -> int:
        """Memory of the matrix."""
        return self._weight.nbytes + self.scale.nbytes

    @property
    def weight(self) -> Tensor:
        """(N, K) integers, in the format that the kind multiplies."""
        return self._weight.t()

    def rows(self, ids: Tensor) -> Tensor:
        """(M,) ids -> (M, K) float32: q scale, the embeddings if this is the matrix of the head."""
        return self._weight.t()[ids].to(torch.float32).mul_(self.scale[ids, None])

    def __call__(self, operand: Tensor) -> Tensor:
        """`operand(x, kind)` of (M, K) -> (M, N) float32."""
        if self._whole:
            return self._sum(operand, torch.int64).to(torch.float32)
        if self.size[1] <= _FLOAT32_COLUMNS:
            y = self._multiplied(operand, slice(None)).to(torch.float32)  # below 2^24 each
            rows = len(y) // 2
            return torch.add(y[rows:], y[:rows], alpha=256)
        return whole(
            self._multiplied(operand, slice(None)) if self._kind == "int8" else self._sum(operand, torch.float64)
        )

    def _sum(self, operand: Tensor, dtype: torch.dtype) -> Tensor:
        """The sum over the parts of the columns; a single part is as it is."""
        total = self._multiplied(operand, slice(0, self._columns))
        if self.size[1] > self._columns or not total.is_floating_point():
            total = total.to(dtype)
        for start in range(self._columns, self.size[1], self._columns):
            total.add_(self._multiplied(operand, slice(start, start + self._columns)).to(dtype))
        return total.to(torch.float64)

    def _multiplied(self, operand: Tensor, columns: slice) -> Tensor:
        if self._kind != "int8":
            return operand[:, columns] @ self._weight[columns]
        if operand.device.type == "cuda" and len(operand) < _CUBLAS_ROWS:
            more = operand.new_zeros(_CUBLAS_ROWS - len(operand), operand.shape[1])
            return torch._int_mm(torch.cat((operand, more)), self._weight)[: len(operand)]
        return torch._int_mm(operand, self._weight)


def whole(halves: Tensor) -> Tensor:
    """(2 M, N) sums of high halves above those of low halves -> (M, N): float32(256 high + low)."""
    rows = len(halves) // 2
    # The kernel computes in float64 and stores float32, whatever the low halves are stored in.
    y = torch.empty((rows, halves.shape[1]), dtype=torch.float32, device=halves.device)
    return torch.add(halves[rows:], halves[:rows].to(torch.float64), alpha=256, out=y)


def operand(x: Tensor, kind: Kind) -> Tensor:
    """(M, K) integers in float32 as a product of this kind reads them: x itself, or high above low, (2M, K).

    x = 256 high + low with -128 <= low <= 127: high = floor((x + 128) / 256).
    """
    if kind == "float64":
        return x.to(torch.float64)
    both = torch.empty((2 * len(x), x.shape[1]), dtype=_DTYPES[kind], device=x.device)
    high, low = both.chunk(2)
    if kind == "int8":
        whole = x.to(torch.int16)
        low.copy_(whole)  # the last byte of a two's complement, read with its sign, is low
        high.copy_(whole.add_(128).bitwise_right_shift_(8))
    else:
        torch.add(x, 128.0, out=high).mul_(1 / 256).floor_()
        torch.sub(x, high, alpha=256, out=low)
    return both


def exact_kinds(form: Form, device: str | torch.device, columns: Sequence[int]) -> tuple[Kind, ...]:
    """The kinds that are exact here, in the order of `KINDS`, by products of the extreme integers with K of `columns`.

    Raises:
        NotExactError: there is none.
    """
    possible = KINDS if form == W8 else ("float64",)
    kinds = tuple(kind for kind in possible if all(_is_exact(form, kind, device, k) for k in sorted(set(columns))))
    if not kinds:
        raise NotExactError(f"{device} multiplies no integers exactly: use another device, or --arithmetic float")
    return kinds


def fastest_kind(kinds: Sequence[Kind], device: torch.device, columns: int, weights: int) -> Kind:
    """The one of `kinds` to multiply with; the numbers do not depend on it.

    On a CPU that has no instructions for int8, `torch._int_mm` can be exact and take twenty times as long as products
    of floats. So there every kind multiplies a matrix, and one is passed over for a later one that takes less than half
    of its time, if the weights then fit into `_MOST_BYTES`.

    Args:
        kinds: those that are exact here, at least one.
        device: where the network lives.
        columns: K of the matrix.
        weights: number of weights of the network.
    """
    small = [kind for kind in kinds[1:] if weights * _DTYPES[kind].itemsize <= _MOST_BYTES]
    if device.type != "cpu" or not small:
        return kinds[0]
    columns = min(columns, _TIMED_COLUMNS)
    best, seconds = kinds[0], _seconds(kinds[0], columns)
    for kind in small:
        if 2 * (taken := _seconds(kind, columns)) < seconds:
            best, seconds = kind, taken
    return best


def _seconds(kind: Kind, columns: int) -> float:
    """The shortest time of three products of a w8 matrix on the CPU, behind one that warms up."""
    matrix = Matrix(torch.ones((columns, columns), dtype=torch.int8), torch.ones(columns, dtype=torch.float32))
    product = Product(matrix, W8, kind, "cpu")
    x = operand(torch.ones((_TIMED_ROWS, columns), dtype=torch.float32), kind)
    times = []
    for _ in range(4):
        start = time.perf_counter()
        product(x)
        times.append(time.perf_counter() - start)
    return min(times[1:])


def _is_exact(form: Form, kind: Kind, device: str | torch.device, columns: int) -> bool:
    """Whether the sums of largest size come out right, with few rows and with many."""
    top = form.weight_top
    weight = torch.full((64, columns), top, dtype=torch.int8 if form == W8 else torch.int32)
    weight[1::2] = -top
    for rows in (1, 40, 256):
        x = torch.full((rows, columns), float(form.top), dtype=torch.float32)
        x[1::2] = -form.top
        truth = torch.full((rows, 64), float(top * form.top * columns), dtype=torch.float64)
        truth[1::2] *= -1
        truth[:, 1::2] *= -1
        try:
            product = Product(Matrix(weight, torch.ones(64, dtype=torch.float32)), form, kind, device)
            got = product(operand(x.to(device), kind))
        except (RuntimeError, TypeError, NotImplementedError):  # the device has no such product
            return False
        if not torch.equal(got.cpu(), truth.to(torch.float32)):
            return False
    return True


def product_precision(device: torch.device) -> str | None:
    """What float32 products are reduced to on a device, such as "tf32"; None if they are not.

    Asked backend by backend, because torch refuses to sum up settings that were made through its newer interface.
    """
    backend = torch.backends.cuda if device.type == "cuda" else torch.backends.mkldnn
    matmul = getattr(backend, "matmul", None)
    precision = getattr(matmul, "fp32_precision", None)
    if precision is None:  # before torch 2.9
        if torch.get_float32_matmul_precision() != "highest":
            precision = torch.get_float32_matmul_precision()
        elif device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32:
            precision = "tf32"
    return None if precision in (None, "ieee", "none") else str(precision)


def check_float32(device: torch.device) -> None:
    """Check that a float32 product of this process is one.

    Raises:
        NotExactError: TF32 or bfloat16 products are switched on.
    """
    if precision := product_precision(device):
        raise NotExactError(
            f"float32 products are reduced to {precision} here, which changes the numbers: "
            'call torch.set_float32_matmul_precision("highest")'
        )

"""Powers and logarithms of two, and rotary tables, by operations that every machine rounds alike.

IEEE 754 fixes the result of + - * / and sqrt, of comparisons, of conversions and of rounding to integers (half to
even): one number, on every processor. It fixes no exp, log, sin or cos, and libraries differ in the last bits. So here
a function is a sequence of such operations, one a kernel, in the order that its docstring states.

What could spoil it, and what keeps it out:

* `torch.sqrt` on a CPU, which MKL rounds wrongly in every hundredth float64 number: `sqrt` is another one;
* a fused multiply-add rounds once instead of twice: product and sum are kernels of their own;
* a constant that is no number of the format: every constant of a float32 formula is a float32 number;
* flush-to-zero of subnormal numbers: no function here meets one.
"""

from decimal import Decimal, localcontext
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

LOG2_E = 1.4426950408889634
"""log2(e) as a float64 number."""

MAGIC_FLOAT32 = 1.5 * 2.0**23
"""x + M - M is the integer next to x, half to even, for float32 numbers below 2^22."""
_MAGIC_64 = 1.5 * 2.0**52

EXP2_FLOAT32 = (0.009582852944731712, 0.055906426161527634, 0.24024099111557007, 0.6931241750717163)
"""A minimax polynomial of 2^f on |f| <= 1/2, relative error below 3e-6; float32 numbers, highest degree first."""
# ln(2)^k / k! for k = 13 down to 1, as float64 numbers: relative error of the sum below 2^-52 on |f| <= 1/2.
_EXP2_64 = (
    *(1.3691488853904128e-12, 2.5678435993488206e-11, 4.445538271870811e-10, 7.054911620801121e-09),
    *(1.0178086009239699e-07, 1.3215486790144307e-06, 1.5252733804059841e-05, 0.0001540353039338161),
    *(0.0013333558146428443, 0.009618129107628477, 0.05550410866482158, 0.2402265069591007, 0.6931471805599453),
)
_SQRT_2 = 1.4142135623730951
_TWO_LOG2_E = 2.8853900817779268


def float32(value: float) -> float:
    """The float32 number next to `value`."""
    return float(np.float32(value))


def sqrt(x: Tensor) -> Tensor:
    """The square root of a float64 tensor, correctly rounded as IEEE 754 asks: NumPy's on a CPU, CUDA's own there."""
    return torch.from_numpy(np.sqrt(x.numpy())) if x.device.type == "cpu" else x.sqrt()


def exp2_float32_(x: Tensor) -> Tensor:
    """2^x of a float32 tensor with |x| <= 100, with a relative error below 3e-6; overwrites x.

    The steps, in float32, with M = 1.5 2^23 and constants c_1..c_4:

    1. Round x to the nearest integer n, half to even: t = x + M holds n in its last bits.
    2. Take the fraction f = x - (t - M), in [-1/2, 1/2].
    3. Evaluate p = 1 + c_1 f + c_2 f^2 + c_3 f^3 + c_4 f^4 by Horner's rule. Every sum and every product is rounded.
    4. Add n to the exponent of p.
    """
    return _exp2_(x, MAGIC_FLOAT32, EXP2_FLOAT32, torch.int32, 23)


def _exp2_(x: Tensor, magic: float, coefficients: tuple[float, ...], bits: torch.dtype, mantissa: int) -> Tensor:
    """The four steps in the format of x, whose numbers have so many bits of mantissa; `bits`: integers of its size."""
    t = x + magic
    x.sub_(t - magic)
    p = x * coefficients[0]
    for coefficient in coefficients[1:]:
        p.add_(coefficient).mul_(x)
    p.add_(1.0)
    p.view(bits).add_(t.view(bits).bitwise_left_shift_(mantissa))
    return p


def exp2(x: Tensor) -> Tensor:
    """2^x of a float64 tensor with |x| <= 1000, within 2.3e-16 of itself; -inf gives 0.

    As `exp2_float32_`, with M = 1.5 2^52 and thirteen coefficients ln(2)^k / k!.
    """
    nothing = x == -torch.inf
    p = _exp2_(x.masked_fill(nothing, 0.0), _MAGIC_64, _EXP2_64, torch.int64, 52)
    return p.masked_fill_(nothing, 0.0)


def log2(x: Tensor) -> Tensor:
    """log2 of a float64 tensor of positive normal numbers, absolute error below 4e-15 where |log2 x| < 64.

    x = 2^e m with m in [1, 2), and m = m / 2, e = e + 1 where m > sqrt(2), a comparison with the float64 number; s =
    (m - 1) / (m + 1), z = s s. The sum 1 + z/3 + z^2/5 + .. + z^11/23 is p = z / 23 (a product with the float64 number
    1/23), then p = (p + 1/k) z for k = 21, 19, .. 3. The result is e + ((p + 1) s) c, where c is the float64 number
    next to 2 log2(e).
    """
    bits = x.view(torch.int64)
    mantissa = ((bits & ((1 << 52) - 1)) | (1023 << 52)).view(torch.float64)
    upper = mantissa > _SQRT_2
    mantissa = torch.where(upper, mantissa * 0.5, mantissa)
    exponent = ((bits >> 52) - 1023 + upper.to(torch.int64)).to(torch.float64)
    s = torch.div(mantissa - 1.0, mantissa + 1.0)
    z = s * s
    p = z * (1.0 / 23.0)
    for k in range(21, 1, -2):
        p = (p + 1.0 / k) * z
    return exponent + (p + 1.0) * s * _TWO_LOG2_E


@lru_cache(maxsize=4)
def rotary_tables(length: int, width: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos and sin of position theta^(-2i / width): (length, width / 2) float32 each, from integers.

    With one = 2^128, the step of column i is a = floor(one theta^(-2i / width)), a decimal of 60 digits (theta as its
    shortest decimal; ln and exp correctly rounded, as Python's `decimal` has them). Its cosine and sine are the Taylor
    series whose terms are t_k = floor(floor(t_{k-1} a / one) / k), t_0 = one, up to the first that is 0. Positions
    follow by (x, y) -> (floor((x c - y s) / one), floor((x s + y c) / one)) from (one, 0). An entry is
    floor(x / 2^68), rounded to float64 and then to float32, times 2^-60.
    """
    one = 1 << 128
    with localcontext() as context:
        context.prec = 60
        log = Decimal(repr(theta)).ln()
        steps = [int((log * (-2 * i) / width).exp() * one) for i in range(width // 2)]
    turns = [_turn(step, one) for step in steps]
    cosine, sine = np.empty((length, width // 2)), np.empty((length, width // 2))
    for column, (c, s) in enumerate(turns):
        x, y = one, 0
        for position in range(length):
            cosine[position, column], sine[position, column] = x >> 68, y >> 68
            x, y = (x * c - y * s) >> 128, (x * s + y * c) >> 128
    tables = (torch.from_numpy((table * 2.0**-60).astype(np.float32)) for table in (cosine, sine))
    return next(tables), next(tables)


def _turn(angle: int, one: int) -> tuple[int, int]:
    """cos and sin of an angle in [0, 1], all in units of 1 / one."""
    sums, term, k = [one, 0], one, 0
    while term:
        k += 1
        term = (term * angle >> 128) // k
        sums[k % 2] += term if k % 4 < 2 else -term
    return sums[0], sums[1]

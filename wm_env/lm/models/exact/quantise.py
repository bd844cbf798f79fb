"""Integers and scales: how weights and activations become whole numbers, stored in floats.

A number format (`Form`) says how large the integers may be:

| form | weights | activations | attention weights |
| --- | --- | --- | --- |
| w8 | 8 bits, a scale a row | 16 bits, two halves that are int8 each | 15 bits |
| w24 | 24 bits, a scale a row | 20 bits | 22 bits |

w8 is a model of its own, half the size of a 16-bit one. w24 is as good as the float32 network: 16-bit checkpoints lose
nothing that a law shows.

No scale is below 2^-40, so that nothing here meets a subnormal number: flush-to-zero changes nothing.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

SMALLEST = 2.0**-40
"""Least scale of a row of weights, and least maximum of a row of activations."""


@dataclass(frozen=True)
class Form:
    """A number format.

    Attributes:
        name: w8 or w24.
        weight_top: largest |integer| of a weight.
        top: largest |integer| of an activation.
        probability_top: integer of the likeliest place of an attention.
    """

    name: str
    weight_top: int
    top: int
    probability_top: int


W8 = Form("w8", weight_top=127, top=127 * 256 + 127, probability_top=127 * 256)
W24 = Form("w24", weight_top=2**23 - 1, top=2**19 - 1, probability_top=2**22)
FORMS = {form.name: form for form in (W8, W24)}


@dataclass(frozen=True)
class Matrix:
    """A matrix as integers: row n is q[n] scale[n].

    Attributes:
        q: (N, K), int8 for w8 and int32 for w24.
        scale: (N,) float32.
    """

    q: Tensor
    scale: Tensor


def quantise_matrix(weight: Tensor, form: Form, gain: Tensor | None = None) -> Matrix:
    """Quantise a matrix (N, K) of any float format: integers, and one scale for each row.

    In float64, one operation after the other: w = weight * gain, gain (K,) that of the norm before the matrix;
    scale = float32(max |w| / weight_top), at least 2^-40; q = w / scale, rounded half to even, within +- weight_top.

    Raises:
        ValueError: a weight is no finite number.
    """
    wide = weight.to(torch.float64)
    if gain is not None:
        wide = wide * gain.to(torch.float64)
    top = torch.full((len(wide), 1), float(form.weight_top), dtype=torch.float64, device=wide.device)
    most = wide.abs().amax(1, keepdim=True)
    if not bool(most.isfinite().all()):
        raise ValueError("a weight is no finite number; the checkpoint is damaged")
    scale = torch.div(most, top).to(torch.float32).clamp_min_(SMALLEST)
    q = torch.div(wide, scale.to(torch.float64)).round_().clamp_(-form.weight_top, form.weight_top)
    return Matrix(q.to(torch.int8 if form == W8 else torch.int32), scale[:, 0])


def quantise(x: Tensor, top: Tensor, dim: int = -1) -> tuple[Tensor, Tensor]:
    """x of float32 -> integers |q| <= top along `dim` in float32, and the maximum m: x is q m / top up to rounding.

    m = max |x|, at least 2^-40; q = x (top / m), rounded half to even. `top` is a tensor: CUDA's kernels divide a
    number by a tensor, and a tensor by a number, as a product with a reciprocal.
    """
    most = x.abs().amax(dim, keepdim=True).clamp_min_(SMALLEST)
    return (x * torch.div(top, most)).round_(), most

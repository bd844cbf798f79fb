"""The steps of a pass, eagerly: one IEEE operation a kernel, as `network` specifies them."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from wm_env.lm.models.exact.functions import LOG2_E, exp2_float32_, float32, sqrt
from wm_env.lm.models.exact.products import Kind, Product, operand
from wm_env.lm.models.exact.quantise import Form, quantise
from wm_env.lm.models.exact.weights import ExactShape


@dataclass(frozen=True)
class Layer:
    """The matrices and biases of a layer."""

    query: Product
    key_value: Product
    out: Product
    gate_up: Product
    down: Product
    query_bias: Tensor | None
    key_value_bias: Tensor | None


class EagerSteps:
    """The steps of a network of some shape and number format.

    Attributes:
        shape, form, kind, device: as in `wm_env.lm.models.exact.network.ExactNetwork`.
        top: T, float32.
    """

    def __init__(self, shape: ExactShape, form: Form, kind: Kind, device: torch.device) -> None:
        self.shape, self.form, self.kind, self.device = shape, form, kind, device
        self.top = torch.tensor(float(form.top), dtype=torch.float32, device=device)
        self._step = float32(1 / form.top)
        self._score = float32(LOG2_E / math.sqrt(shape.head_width))
        self._ones = torch.ones((), dtype=torch.float64, device=device)

    def linear(self, product: Product, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
        """linear(W; x, s) of `network`: x W^T times the scales of W and x, plus the bias; float32, shape (M, N).

        Args:
            product: W, whole numbers (N, K) with a scale (N,).
            x: whole numbers in float32, shape (M, K).
            scale: s of every row of x, shape (M, 1).
            bias: shape (N,).
        """
        y = product(operand(x, self.kind)).mul_(product.scale).mul_(scale)
        return y if bias is None else y.add_(bias)

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        """y = (g / (1 + 2^z)) u."""
        power = exp2_float32_((gate * float32(-LOG2_E)).clamp_(-64.0, 64.0)).add_(1.0)
        return torch.div(gate, power).mul_(up)

    def integers(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The integers of the rows of x, and m(x) 1/T."""
        q, most = quantise(x, self.top)
        return q, most.mul_(self._step)

    def norm(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """The integers of the rows of h, and the scale of the rows of h divided by their root mean square."""
        q, step = self.integers(h)
        return q, step.to(torch.float64).mul_(self.inverse_rms(q, step)).to(torch.float32)

    def inverse_rms(self, q: Tensor, step: Tensor) -> Tensor:
        """(M, 1) float64."""
        wide, t = q.to(torch.float64), step.to(torch.float64)
        mean = (t * t).mul_(wide.mul_(wide).sum(-1, keepdim=True)).mul_(1.0 / self.shape.width)
        return torch.div(self._ones, sqrt(mean.add_(self.shape.eps)))

    def turned(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Heads turned by the tables: (N, T, heads, w), (T, 1, w / 2) twice -> (N, T, heads, w)."""
        first, second = x.chunk(2, -1)
        y = torch.empty_like(x)
        turned = y.chunk(2, -1)
        torch.mul(first, cosine, out=turned[0]).sub_(second * sine)
        torch.mul(second, cosine, out=turned[1]).add_(first * sine)
        return y

    def stepped(self, most: Tensor, is_query: bool = False) -> Tensor:
        """m 1/T, and for queries (m 1/T) c; overwrites m."""
        most.mul_(self._step)
        return most.mul_(self._score) if is_query else most

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """(N, P, heads, w), (N, T, groups, w) twice -> (N * P, heads * w)."""
        (q, q_most), (k, k_most) = quantise(query, self.top), quantise(key, self.top)
        v, v_most = quantise(value, self.top, 1)
        return self.attended(
            (q, self.stepped(q_most, is_query=True)), (k, self.stepped(k_most)), (v, self.stepped(v_most))
        )

    def attended(
        self, query: tuple[Tensor, Tensor], key: tuple[Tensor, Tensor], value: tuple[Tensor, Tensor]
    ) -> Tensor:
        """`attend` of integers and what they are multiplied by."""
        if (shared := self.shape.heads // self.shape.groups) > 1:
            key, value = (
                (q.repeat_interleave(shared, 2), scale.repeat_interleave(shared, 2)) for q, scale in (key, value)
            )
        q, k, v = (x.transpose(1, 2).to(torch.float64) for x, _ in (query, key, value))
        s = torch.matmul(q, k.transpose(2, 3)).to(torch.float32)
        s.mul_(query[1].transpose(1, 2))
        s.mul_(key[1].permute(0, 2, 3, 1))
        s.sub_(s.amax(-1, keepdim=True)).clamp_(min=-60.0)
        p = exp2_float32_(s).mul_(float(self.form.probability_top)).round_().to(torch.float64)
        y = torch.div(torch.matmul(p, v), p.sum(-1, keepdim=True)).to(torch.float32)
        return y.transpose(1, 2).mul(value[1]).flatten(2).flatten(0, 1)

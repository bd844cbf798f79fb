"""The pass of a Llama-type network in exact arithmetic, version `exact-1`.

Its logits are float64 numbers that depend on the weights and the canvas alone. `functions`, `quantise`, `products` and
`law` are the parts; this docstring says how they follow one another, so that another program can give the same bits.
All numbers are float32 unless said otherwise, every operation is rounded on its own, and / is a division. P(W; x) is
the exact product of `products`, R_W the scales of the rows of W, T the form's largest activation, 1/T the float32
number next to it, q(x), m(x) the integers and the maximum of `quantise`.

    linear(W; x, s) = (P(W; x) R_W) s [+ bias]
    rms(q, m)       = 1 / sqrt((t t) sum(q q) d' + eps), float64, with t = float64(m 1/T), d' = float64(1 / d)
    norm(h)         = q(h) and s = float32(t rms(q(h), m(h)))

1. h = q[id] scale[id] of the embedding's integers and scales.
2. Every layer, whose matrices q, k, v, gate and up hold the gains of the norms before them:
   x, s = norm(h); Q, K, V = linear of x, s; Q and K are turned by the tables (a cos - b sin, b cos + a sin, where a and
   b are the halves of a head); then the attention below gives A; x = q(A), h = h + linear(out; x, m(A) 1/T).
   x, s = norm(h); g, u = linear of x, s; y = (g / (1 + 2^z)) u with z = g (-log2 e) held within +- 64;
   h = h + linear(down; q(y), m(y) 1/T).
3. The attention of a head: integers of Q and K along the head's width, of V along the positions; S = float32 of the
   exact sum of products of integers; S = S ((m(Q) 1/T) c) with c the float32 number next to log2(e) / sqrt(width);
   S = S (m(K) 1/T); less the largest S of the row, at least -60; the integer p = round(2^S top), half to even, top as
   in the form; A = float32(sum(p v) / sum(p)), a float64 division of exact sums; A = A (m(V) 1/T).
4. The head: y = h gain; the logits are float64(P(head; q(y))) R_head (float64(m(y) 1/T) rms(q(h), m(h))), where the
   scale in the last brackets is made first, in float64.

2^S and 2^z are `exp2_float32_`. The last layer is computed only where a logit is wanted. Rows of a batch do not touch
one another, so a batch may be cut anywhere: on a CPU parts of about 256 tokens keep what is between the products in its
cache.

What could spoil it, and what keeps it out: see `functions`, `products` and `guards`; and here

* sums of float numbers: the sums of the norms, of the attentions and of the final softmax are sums of integers below
  2^53 (d <= 2^15 tokens wide; positions up to 2^12 for w24, 2^23 for w8, which the constructor and the pass check);
* library functions: there is no softmax, silu, rsqrt, norm, mean or attention of a library;
* a product with a reciprocal in place of a division: only tensors are divided, by tensors.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wm_env.lm.models.exact import fused
from wm_env.lm.models.exact.functions import LOG2_E, exp2_float32_, float32, rotary_tables, sqrt
from wm_env.lm.models.exact.guards import check_process, uncompiled
from wm_env.lm.models.exact.products import Kind, NotExactError, Product, exact_kinds, operand
from wm_env.lm.models.exact.quantise import W8, W24, Form, quantise
from wm_env.lm.models.exact.weights import ExactShape, Source

VERSION = "exact-1"
"""Of this arithmetic: whoever changes a bit of a law changes the name."""

_CACHED_TOKENS = 256
_WIDEST = 1 << 15
_POSITIONS = {W8: 1 << 23, W24: 1 << 12}
_MOST_INT8_COLUMNS = 131_071


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


class ExactNetwork:
    """A Llama-type network whose logits are the same bits on every machine; see the module.

    Attributes:
        shape: its sizes.
        form: its number format.
        kind: how this machine multiplies; the numbers do not depend on it.
        device: where it lives.
        top: T, float32.
        steps: "fused" where the kernels of `fused` run between the products, else why not; no number depends on it.
    """

    def __init__(
        self, source: Source, device: str | torch.device = "cpu", kind: Kind | None = None, fuse: bool = True
    ) -> None:
        """Take the matrices from `source`, one at a time; `kind` is the fastest exact one unless given.

        `fuse`: run the kernels of `fused` between the products, where they can and give the same numbers.

        Raises:
            NotExactError: the device or a setting of the process would give other numbers, or the network is larger
                than the bounds of the arithmetic.
            ValueError: a tensor is missing or damaged.
        """
        self.shape = shape = source.shape
        self.form = form = source.form
        self.device = torch.device(device)
        _check_bounds(shape, form)
        possible = exact_kinds(form, self.device, (shape.width, shape.inner))
        if kind is not None and kind not in possible:
            raise NotExactError(f"{kind} products are not exact on {self.device}; {', '.join(possible)} are")
        self.kind: Kind = possible[0] if kind is None else kind

        def product(*names: tuple[str, str | None]) -> Product:
            return Product(source.matrix(*names), form, self.kind, self.device)

        def bias(*names: str) -> Tensor | None:
            return torch.cat([source.vector(name) for name in names]).to(self.device) if shape.biases else None

        self._layers = []
        for number in range(shape.layers):
            layer = f"model.layers.{number}"
            first, second = f"{layer}.input_layernorm.weight", f"{layer}.post_attention_layernorm.weight"
            q, k, v, o = (f"{layer}.self_attn.{name}_proj" for name in "qkvo")
            gate, up, down = (f"{layer}.mlp.{name}_proj.weight" for name in ("gate", "up", "down"))
            self._layers.append(
                Layer(
                    query=product((f"{q}.weight", first)),
                    key_value=product((f"{k}.weight", first), (f"{v}.weight", first)),
                    out=product((f"{o}.weight", None)),
                    gate_up=product((gate, second), (up, second)),
                    down=product((down, None)),
                    query_bias=bias(f"{q}.bias"),
                    key_value_bias=bias(f"{k}.bias", f"{v}.bias"),
                )
            )
        self._embedding = product(("model.embed_tokens.weight", None))
        self._head = self._embedding if shape.tied else product(("lm_head.weight", None))
        self._gain = source.vector("model.norm.weight").to(self.device)
        self.top = torch.tensor(float(form.top), device=self.device)
        self._step = float32(1 / form.top)
        self._score = float32(LOG2_E / math.sqrt(shape.head_width))
        self._ones = torch.ones((), dtype=torch.float64, device=self.device)
        self._fused, self.steps = fused.start(self) if fuse else (None, "eager")

    @property
    def nbytes(self) -> int:
        """Memory of the matrices."""
        matrices = [self._embedding, self._head] if self._head is not self._embedding else [self._head]
        for layer in self._layers:
            matrices += [layer.query, layer.key_value, layer.out, layer.gate_up, layer.down]
        return sum(matrix.nbytes for matrix in matrices)

    def logits(self, canvas: Tensor, positions: Sequence[int]) -> Tensor:
        """(N, T) int64 token ids -> (N, P, V) float64 logits of the tokens at P `positions`, the same in every row.

        Raises:
            NotExactError: a setting of the process would give other numbers, see `guards`.
        """
        check_process(self.device, self.kind)
        length = canvas.shape[1]
        if length > _POSITIONS[self.form]:
            raise NotExactError(f"{length} positions: sums of {self.form.name} are exact up to {_POSITIONS[self.form]}")
        return uncompiled(lambda: self._logits(canvas.to(self.device), list(positions)))

    @torch.no_grad()
    def _logits(self, canvas: Tensor, positions: list[int]) -> Tensor:
        rows = len(canvas) if self.device.type != "cpu" else max(1, _CACHED_TOKENS // canvas.shape[1])
        with torch.autocast(self.device.type, enabled=False):
            starts = range(0, len(canvas), rows)
            parts = [self._at_head(self._hidden(canvas[start : start + rows], positions)) for start in starts]
        return torch.cat(parts).view(len(canvas), len(positions), -1)

    def _hidden(self, canvas: Tensor, positions: list[int]) -> Tensor:
        """(N, T) -> (N * P, d), what the last layer adds up at the wanted positions."""
        count, length = canvas.shape
        h = self._embedding.rows(canvas.reshape(-1))
        # A power of two, so that few lengths make tables.
        tables = rotary_tables(1 << (length - 1).bit_length(), self.shape.head_width, self.shape.theta)
        cosine, sine = (table[:length, None].to(self.device) for table in tables)
        wanted = [*([None] * (self.shape.layers - 1)), torch.tensor(positions, device=self.device)]
        if self._fused is not None and fused.is_short(length):
            x = self._fused.norm(h)
            for layer, at in zip(self._layers, wanted, strict=True):
                h, x = self._fused.layer(layer, h, x, (cosine[:, 0], sine[:, 0]), count, at)
            return h
        for layer, at in zip(self._layers, wanted, strict=True):
            h = self._layer(layer, h, cosine, sine, count, at)
        return h

    def _layer(
        self, layer: Layer, h: Tensor, cosine: Tensor, sine: Tensor, count: int, positions: Tensor | None
    ) -> Tensor:
        """A layer's output at `positions`, or at all, from its input at all: (N * T, d) -> (N * P, d)."""
        length, width, groups = len(cosine), self.shape.head_width, self.shape.groups
        x, scale = self.norm(h)
        key_value = self._linear(layer.key_value, x, scale, layer.key_value_bias)
        key, value = key_value.view(count, length, 2 * groups, width).chunk(2, 2)
        key = self.turned(key, cosine, sine)
        if positions is not None:
            at = (torch.arange(count, device=self.device)[:, None] * length + positions).reshape(-1)
            x, scale, h, cosine, sine = x[at], scale[at], h[at], cosine[positions], sine[positions]
        query = self._linear(layer.query, x, scale, layer.query_bias).view(count, len(cosine), -1, width)
        attended = self._attend(self.turned(query, cosine, sine), key, value)
        h = h.add_(self._linear(layer.out, *self.integers(attended)))
        y = self.gated(*self._linear(layer.gate_up, *self.norm(h)).chunk(2, 1))
        return h.add_(self._linear(layer.down, *self.integers(y)))

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        """y = (g / (1 + 2^z)) u."""
        power = exp2_float32_((gate * float32(-LOG2_E)).clamp_(-64.0, 64.0)).add_(1.0)
        return torch.div(gate, power).mul_(up)

    def _linear(self, product: Product, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
        y = product(operand(x, self.kind)).mul_(product.scale).mul_(scale)
        return y if bias is None else y.add_(bias)

    def integers(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The integers of the rows of x, and m(x) 1/T."""
        q, most = quantise(x, self.top)
        return q, most.mul_(self._step)

    def norm(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """The integers of the rows of h, and the scale of the rows of h divided by their root mean square."""
        q, step = self.integers(h)
        return q, step.to(torch.float64).mul_(self._inverse_rms(q, step)).to(torch.float32)

    def _inverse_rms(self, q: Tensor, step: Tensor) -> Tensor:
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

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """(N, P, heads, w), (N, T, groups, w) twice -> (N * P, heads * w)."""
        (q, q_most), (k, k_most) = quantise(query, self.top), quantise(key, self.top)
        v, v_most = quantise(value, self.top, 1)
        return self.attended(
            (q, self.stepped(q_most, is_query=True)), (k, self.stepped(k_most)), (v, self.stepped(v_most))
        )

    def attended(
        self, query: tuple[Tensor, Tensor], key: tuple[Tensor, Tensor], value: tuple[Tensor, Tensor]
    ) -> Tensor:
        """`_attend` of integers and what they are multiplied by."""
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

    def _at_head(self, h: Tensor) -> Tensor:
        """(M, d) -> (M, V) float64."""
        inverse = self._inverse_rms(*self.integers(h))
        x, step = self.integers(h * self._gain)
        y = self._head(operand(x, self.kind)).to(torch.float64).mul_(self._head.scale.to(torch.float64))
        return y.mul_(step.to(torch.float64).mul_(inverse))


def _check_bounds(shape: ExactShape, form: Form) -> None:
    """Refuse sizes for which a sum could leave the integers that its accumulator holds."""
    widest = max(shape.width, shape.inner)
    limit = _MOST_INT8_COLUMNS if form == W8 else 1 << 20
    if shape.width > _WIDEST or widest > limit:
        raise NotExactError(f"a network {shape.width} and {shape.inner} wide is beyond the bounds of {form.name}")

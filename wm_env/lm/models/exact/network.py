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

from collections.abc import Sequence

import torch
from torch import Tensor

from wm_env.lm.models.exact.functions import rotary_tables
from wm_env.lm.models.exact.fused import is_short
from wm_env.lm.models.exact.fused_start import start
from wm_env.lm.models.exact.guards import check_process, uncompiled
from wm_env.lm.models.exact.products import Kind, NotExactError, Product, exact_kinds, fastest_kind, operand
from wm_env.lm.models.exact.quantise import W8, W24, Form
from wm_env.lm.models.exact.steps import EagerSteps, Layer
from wm_env.lm.models.exact.weights import ExactShape, Source

VERSION = "exact-1"
"""Of this arithmetic: whoever changes a bit of a law changes the name."""

_CACHED_TOKENS = 256
_WIDEST = 1 << 15
_POSITIONS = {W8: 1 << 23, W24: 1 << 12}
_MOST_INT8_COLUMNS = 131_071


class ExactNetwork:
    """A Llama-type network whose logits are the same bits on every machine; see the module.

    Attributes:
        shape: its sizes.
        form: its number format.
        kind: how this machine multiplies; the numbers do not depend on it.
        device: where it lives.
        fusion: "fused" where the kernels of `fused` run between the products, else why not; no number depends on it.
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
        self.kind: Kind = fastest_kind(possible, self.device, shape.width, shape.weights) if kind is None else kind

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
        self._steps = EagerSteps(shape, form, self.kind, self.device)
        self._fused, self.fusion = start(self._steps) if fuse else (None, "eager")

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
        if self._fused is not None and is_short(length):
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
        x, scale = self._steps.norm(h)
        key_value = self._steps.linear(layer.key_value, x, scale, layer.key_value_bias)
        key, value = key_value.view(count, length, 2 * groups, width).chunk(2, 2)
        key = self._steps.turned(key, cosine, sine)
        if positions is not None:
            at = (torch.arange(count, device=self.device)[:, None] * length + positions).reshape(-1)
            x, scale, h, cosine, sine = x[at], scale[at], h[at], cosine[positions], sine[positions]
        query = self._steps.linear(layer.query, x, scale, layer.query_bias).view(count, len(cosine), -1, width)
        attended = self._steps.attend(self._steps.turned(query, cosine, sine), key, value)
        h = h.add_(self._steps.linear(layer.out, *self._steps.integers(attended)))
        y = self._steps.gated(*self._steps.linear(layer.gate_up, *self._steps.norm(h)).chunk(2, 1))
        return h.add_(self._steps.linear(layer.down, *self._steps.integers(y)))

    def _at_head(self, h: Tensor) -> Tensor:
        """(M, d) -> (M, V) float64."""
        inverse = self._steps.inverse_rms(*self._steps.integers(h))
        x, step = self._steps.integers(h * self._gain)
        y = self._head(operand(x, self.kind)).to(torch.float64).mul_(self._head.scale.to(torch.float64))
        return y.mul_(step.to(torch.float64).mul_(inverse))


def _check_bounds(shape: ExactShape, form: Form) -> None:
    """Refuse sizes for which a sum could leave the integers that its accumulator holds."""
    widest = max(shape.width, shape.inner)
    limit = _MOST_INT8_COLUMNS if form == W8 else 1 << 20
    if shape.width > _WIDEST or widest > limit:
        raise NotExactError(f"a network {shape.width} and {shape.inner} wide is beyond the bounds of {form.name}")

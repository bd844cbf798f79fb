"""The arithmetic `exact-1` written again in NumPy, from its documentation: int64 products, float32 step by step."""

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

F32, F64 = np.float32, np.float64
Array = NDArray[np.generic]

_EXP2_32 = (0.009582852944731712, 0.055906426161527634, 0.24024099111557007, 0.6931241750717163)


def exp2_single(x: Array) -> Array:
    """2^x of float32."""
    n = np.rint(x)
    f = x - n
    p = f * F32(_EXP2_32[0])
    for c in _EXP2_32[1:]:
        p = (p + F32(c)) * f
    p = p + F32(1)
    return np.ldexp(p, n.astype(np.int32)).astype(F32)


def exp2_double(x: Array) -> Array:
    """2^x of float64."""
    coefficients = [_nearest_power_of_ln2(k) for k in range(13, 0, -1)]
    n = np.rint(x)
    f = x - n
    p = f * coefficients[0]
    for c in coefficients[1:]:
        p = (p + c) * f
    return np.ldexp(p + 1.0, n.astype(np.int64))


def _nearest_power_of_ln2(k: int) -> float:
    # ln 2 = sum 1 / (j 2^j), to 200 bits.
    ln2 = sum(Fraction(1, j << j) for j in range(1, 200))
    return float(ln2**k / math.factorial(k))


def log2_double(x: Array) -> Array:
    """log2 of float64."""
    m, e = np.frexp(x)
    m, e = m * 2, e - 1
    upper = m > 1.4142135623730951
    m, e = np.where(upper, m / 2, m), e + upper
    s = (m - 1) / (m + 1)
    z = s * s
    p = z * (1 / 23)
    for k in range(21, 1, -2):
        p = (p + 1 / k) * z
    return e + (p + 1) * s * 2.8853900817779268


def matrix(weight: Array, top: int, gain: Array | None = None) -> tuple[Array, Array]:
    """Integers and scales of the rows."""
    wide = weight.astype(F64)
    if gain is not None:
        wide = wide * gain.astype(F64)
    scale = np.maximum((np.abs(wide).max(1) / top).astype(F32), F32(2.0**-40))
    return np.clip(np.rint(wide / scale.astype(F64)[:, None]), -top, top).astype(np.int64), scale


def integers(x: Array, top: int, axis: int = -1) -> tuple[Array, Array]:
    """Integers and the maximum."""
    most = np.maximum(np.abs(x).max(axis, keepdims=True), F32(2.0**-40))
    return np.rint(x * (F32(top) / most)).astype(np.int64), most


class Reference:
    """A network in the names of transformers, one canvas at a time."""

    def __init__(self, tensors: dict[str, Array], heads: int, groups: int, theta: float, eps: float, form: str) -> None:
        self.t, self.heads, self.groups, self.theta, self.eps = tensors, heads, groups, theta, eps
        self.weight_top, self.top, self.p_top = (127, 32639, 32512) if form == "w8" else (2**23 - 1, 2**19 - 1, 2**22)
        self.step = F32(1 / self.top)
        self.layers = 1 + max(int(name.split(".")[2]) for name in tensors if ".layers." in name)
        self.d = tensors["model.norm.weight"].shape[0]

    def linear(self, x: Array, scale: Array, name: str, norm: str | None = None) -> Array:
        """(T, K) integers -> (T, N) float32."""
        q, row = matrix(self.t[name + ".weight"], self.weight_top, None if norm is None else self.t[norm])
        y = (x @ q.T).astype(F64).astype(F32) * row * scale
        bias = self.t.get(name + ".bias")
        return y if bias is None else y + bias.astype(F32)

    def inverse_rms(self, h: Array) -> Array:
        """(T, 1) float64."""
        q, most = integers(h, self.top)
        t = (most * self.step).astype(F64)
        mean = t * t * (q * q).sum(-1, keepdims=True).astype(F64) * (1 / self.d)
        return 1.0 / np.sqrt(mean + self.eps)

    def norm(self, h: Array) -> tuple[Array, Array]:
        """Integers and scales of the normed rows."""
        q, most = integers(h, self.top)
        return q, ((most * self.step).astype(F64) * self.inverse_rms(h)).astype(F32)

    def rotated(self, x: Array) -> Array:
        """(T, heads, w) turned by angles of float64, whose error does not reach float32 here."""
        half = x.shape[-1] // 2
        position = np.arange(len(x))[:, None]
        angle = position * self.theta ** (-2 * np.arange(half) / x.shape[-1])
        cosine, sine = (f(angle).astype(F32)[:, None] for f in (np.cos, np.sin))
        a, b = x[..., :half], x[..., half:]
        return np.concatenate((a * cosine - b * sine, b * cosine + a * sine), -1)

    def attention(self, q: Array, k: Array, v: Array) -> Array:
        """(T, w) of one head, each -> (T, w)."""
        (q, qm), (k, km), (v, vm) = integers(q, self.top), integers(k, self.top), integers(v, self.top, 0)
        c = F32(1.4426950408889634 / math.sqrt(q.shape[1]))
        s = (q @ k.T).astype(F32) * (qm * self.step * c) * (km * self.step).T
        s = np.maximum(s - s.max(1, keepdims=True), F32(-60))
        p = np.rint(exp2_single(s) * F32(self.p_top)).astype(np.int64)
        y = ((p @ v).astype(F64) / p.sum(1, keepdims=True).astype(F64)).astype(F32)
        return y * (vm * self.step)

    def logits(self, canvas: list[int]) -> Array:
        """(T, V) float64."""
        q, scale = matrix(self.t["model.embed_tokens.weight"], self.weight_top)
        h = q[canvas].astype(F32) * scale[canvas][:, None]
        for number in range(self.layers):
            layer = f"model.layers.{number}."
            norm = layer + "input_layernorm.weight"
            x, s = self.norm(h)
            q, k, v = (
                self.linear(x, s, f"{layer}self_attn.{n}_proj", norm).reshape(len(h), -1, self.d // self.heads)
                for n in "qkv"
            )
            q, k, shared = self.rotated(q), self.rotated(k), self.heads // self.groups
            a = [self.attention(q[:, i], k[:, i // shared], v[:, i // shared]) for i in range(self.heads)]
            x, most = integers(np.concatenate(a, 1), self.top)
            h = h + self.linear(x, most * self.step, f"{layer}self_attn.o_proj")
            norm = layer + "post_attention_layernorm.weight"
            x, s = self.norm(h)
            g, u = (self.linear(x, s, f"{layer}mlp.{n}_proj", norm) for n in ("gate", "up"))
            z = np.clip(g * F32(-1.4426950408889634), F32(-64), F32(64))
            x, most = integers(g / (exp2_single(z) + F32(1)) * u, self.top)
            h = h + self.linear(x, most * self.step, f"{layer}mlp.down_proj")
        x, most = integers(h * self.t["model.norm.weight"].astype(F32), self.top)
        name = "lm_head.weight" if "lm_head.weight" in self.t else "model.embed_tokens.weight"
        q, row = matrix(self.t[name], self.weight_top)
        y = (x @ q.T).astype(F64).astype(F32).astype(F64) * row.astype(F64)
        return y * ((most * self.step).astype(F64) * self.inverse_rms(h))


def ticks(logits: Array, temperature: float) -> Array:
    """(V,) -> int64 log2 softmax in units of 2^-40."""
    x = logits * 1.4426950408889634 / temperature
    x = x - x.max()
    total = int(np.rint(exp2_double(np.maximum(x, -500.0)) * 2.0**44).astype(np.int64).sum())
    return np.rint((x - (log2_double(np.array([float(total)])) - 44)) * 2.0**40).astype(np.int64)

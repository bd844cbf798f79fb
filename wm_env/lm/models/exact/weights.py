"""Where the integers come from: a checkpoint in floats that is quantised on the way, or one that stores integers.

Both are read one matrix at a time, so that a checkpoint of 16 GB becomes 8 GB of int8 without ever being in memory.

A stored integer checkpoint has the layout of the one it was made from, `config.json` with two more entries
(`"arithmetic": "exact-1"`, `"weight_format": "w8"`), and in place of every matrix `X.weight` the tensors

    X.weight    (N, K) int8      the integers q
    X.scale     (N,) float32     row n of the matrix is q[n] scale[n]

The gains of the norms before attention and MLP are in the matrices behind them and are not stored; the gain of the last
norm is, in float32, and so are biases.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from wm_env.lm.models.exact.quantise import FORMS, SMALLEST, W8, W24, Form, Matrix, quantise_matrix

Read = Callable[[str, tuple[int, ...]], Tensor]
"""The stored tensor of a name in transformers' Llama or Qwen2, such as model.layers.0.self_attn.q_proj.weight, which
must have this shape."""


@dataclass(frozen=True)
class ExactShape:
    """The sizes of a Llama-type network.

    Attributes:
        layers: number of layers.
        width: d, of the residual stream.
        heads: of the queries.
        groups: heads of keys and values; `heads` is a multiple.
        inner: width of the MLP.
        vocabulary: V, rows of embedding and head.
        theta: base of the rotary frequencies.
        eps: added to the mean square in the norms.
        tied: the head is the embedding.
        biases: queries, keys and values have biases.
    """

    layers: int
    width: int
    heads: int
    groups: int
    inner: int
    vocabulary: int
    theta: float
    eps: float
    tied: bool
    biases: bool = False

    @property
    def head_width(self) -> int:
        """Width of a head."""
        return self.width // self.heads

    @cached_property
    def _sizes(self) -> dict[str, tuple[int, ...]]:
        return {name: size for name, size, _ in self.tensors()}

    @property
    def weights(self) -> int:
        """Number of weights."""
        return sum(math.prod(size) for size in self._sizes.values())

    def of(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor."""
        return self._sizes[name]

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...], str | None]]:
        """Every tensor of the network in floats: its name, its shape, and the norm whose gain it takes in, if any."""
        d, kv = self.width, self.groups * self.head_width
        for number in range(self.layers):
            layer = f"model.layers.{number}"
            first, second = f"{layer}.input_layernorm.weight", f"{layer}.post_attention_layernorm.weight"
            yield from ((first, (d,), None), (second, (d,), None))
            for name, rows in (("q", d), ("k", kv), ("v", kv)):
                yield f"{layer}.self_attn.{name}_proj.weight", (rows, d), first
                if self.biases:
                    yield f"{layer}.self_attn.{name}_proj.bias", (rows,), None
            yield f"{layer}.self_attn.o_proj.weight", (d, d), None
            for name in ("gate", "up"):
                yield f"{layer}.mlp.{name}_proj.weight", (self.inner, d), second
            yield f"{layer}.mlp.down_proj.weight", (d, self.inner), None
        yield "model.embed_tokens.weight", (self.vocabulary, d), None
        if not self.tied:
            yield "lm_head.weight", (self.vocabulary, d), None
        yield "model.norm.weight", (d,), None


@dataclass(frozen=True)
class Source(ABC):
    """The integers of a network, made from what `read` gives.

    Attributes:
        shape: the sizes of the network.
        form: its number format.
        read: reads the checkpoint.
    """

    shape: ExactShape
    form: Form
    read: Read

    @abstractmethod
    def one(self, name: str, norm: str | None) -> Matrix:
        """The matrix of this name, with the gain of a norm taken in.

        Raises:
            ValueError: a tensor is none of the format.
        """

    def matrix(self, *parts: tuple[str, str | None]) -> Matrix:
        """Matrices one below the other: their names, and the norms whose gains they take in; errors as of `one`."""
        matrices = [self.one(name, norm) for name, norm in parts]
        if len(matrices) == 1:
            return matrices[0]
        return Matrix(torch.cat([matrix.q for matrix in matrices]), torch.cat([matrix.scale for matrix in matrices]))

    def vector(self, name: str) -> Tensor:
        """A gain or a bias, float32."""
        return self.read(name, self.shape.of(name)).to(torch.float32, copy=True)


class FloatSource(Source):
    """A checkpoint in floats, quantised matrix by matrix."""

    def one(self, name: str, norm: str | None) -> Matrix:
        """As in `Source`."""
        gain = None if norm is None else self.read(norm, self.shape.of(norm))
        return quantise_matrix(self.read(name, self.shape.of(name)), self.form, gain)


class IntegerSource(Source):
    """A checkpoint that stores integers, with all gains taken in."""

    def one(self, name: str, norm: str | None) -> Matrix:
        """As in `Source`."""
        shape = self.shape.of(name)
        q, scale = self.read(name, shape), self.read(scale_name(name), shape[:1])
        wanted = torch.int8 if self.form == W8 else torch.int32
        if q.dtype != wanted or scale.dtype != torch.float32:
            raise ValueError(f"{name} is {q.dtype} with scales of {scale.dtype}, not {wanted} with a float32 a row")
        if int(q.min()) < -self.form.weight_top or int(q.max()) > self.form.weight_top:
            raise ValueError(f"{name} holds integers beyond {self.form.weight_top}, the largest of {self.form.name}")
        if not bool((scale >= SMALLEST).all() and scale.isfinite().all()):
            raise ValueError(f"{name} has a scale that is no number of at least 2^-40")
        return Matrix(q.clone(), scale.clone())


def folded(shape: ExactShape) -> set[str]:
    """The norms whose gains are in the matrices behind them."""
    return {norm for _, _, norm in shape.tensors() if norm is not None}


def integer_tensors(source: Source) -> Iterator[tuple[str, Tensor]]:
    """The tensors of the stored integer checkpoint, in the names of `Read`, one matrix at a time."""
    gone = folded(source.shape)
    for name, shape, norm in source.shape.tensors():
        if name in gone:
            continue
        if len(shape) == 1:
            yield name, source.vector(name)
        else:
            matrix = source.matrix((name, norm))
            yield name, matrix.q
            yield scale_name(name), matrix.scale


def float_tensors(source: Source) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a float network whose weights are those of the integers, in float32."""
    gone = folded(source.shape)
    for name, shape, norm in source.shape.tensors():
        if name in gone:
            yield name, torch.ones(shape, dtype=torch.float32)
        elif len(shape) == 1:
            yield name, source.vector(name)
        else:
            matrix = source.matrix((name, norm))
            yield name, matrix.q.to(torch.float32).mul_(matrix.scale[:, None])


def scale_name(name: str) -> str:
    """X.weight -> X.scale."""
    return name.removesuffix(".weight") + ".scale"


def form_for(shape: ExactShape) -> Form:
    """The format for a checkpoint in floats: w24 where float64 sums of a whole row are exact, else w8."""
    return W24 if max(shape.width, shape.inner) < 2048 else W8


def form_named(name: object) -> Form:
    """The format of this name.

    Raises:
        ValueError: there is none.
    """
    if not isinstance(name, str) or name not in FORMS:
        raise ValueError(f"weight_format {name!r} is not implemented; {', '.join(FORMS)} are")
    return FORMS[name]

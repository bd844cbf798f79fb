"""Small networks of Llama's type with random weights."""

import torch
from torch import Tensor

from wm_env.lm.models.exact.weights import ExactShape, Read

LLADA = ExactShape(3, 32, 4, 2, 48, 260, theta=500000.0, eps=1e-5, tied=False)
TIED = ExactShape(2, 64, 4, 4, 160, 300, theta=10000.0, eps=1e-5, tied=True)
DREAM = ExactShape(2, 48, 6, 2, 96, 280, theta=1000000.0, eps=1e-6, tied=False, biases=True)
WIDE = ExactShape(1, 64, 2, 1, 2300, 100, theta=10000.0, eps=1e-5, tied=True)
"""Its MLP is wider than the parts in which float32 and float64 sums are exact."""
FUSED_GROUPS = ExactShape(2, 96, 3, 1, 40, 104, theta=1000000.0, eps=1e-6, tied=False, biases=True)
FUSED_HEADS = ExactShape(2, 64, 2, 2, 96, 104, theta=500000.0, eps=1e-5, tied=True)
"""Heads as wide as fused kernels want them, widths that are no power of two."""


def random_network(shape: ExactShape, seed: int = 0) -> dict[str, Tensor]:
    """float16 tensors by transformers' names, with outliers as real activations have them."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, size, _ in shape.tensors():
        drawn = torch.randn(size, generator=generator)
        tensors[name] = (
            drawn * size[-1] ** -0.5 if len(size) == 2 else 1 + drawn / 4 if "norm" in name else drawn
        ).half()
    tensors["model.embed_tokens.weight"][:, 3] *= 20
    return tensors


def reading(tensors: dict[str, Tensor]) -> Read:
    """The tensors as a checkpoint has them."""

    def read(name: str, shape: tuple[int, ...]) -> Tensor:
        assert tensors[name].shape == shape
        return tensors[name]

    return read

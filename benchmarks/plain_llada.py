"""LLaDA's forward pass straight from its description, in plain torch operations: what faster passes are compared with.

Nothing is shared with the package but the shape of the network: the tensors have LLaDA's names, one canvas goes
through at a time, all positions and all logits are computed, and a rotation is a product of complex numbers.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from wm_env.lm.models.llada_config import LLaDAConfig


def plain_logits(weight: Callable[[str], Tensor], config: LLaDAConfig, canvas: Tensor) -> Tensor:
    """(T,) token ids -> (T, V) logits, in the dtype of the tensors that `weight` returns for LLaDA's names."""

    def tensor(name: str) -> Tensor:
        return weight(f"model.transformer.{name}.weight")

    def norm(x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + config.rms_norm_eps).sqrt() * tensor(name)

    def heads(x: Tensor, count: int) -> Tensor:
        return x.view(len(x), count, -1).transpose(0, 1)

    x = tensor("wte")[canvas]
    width = config.d_model // config.n_heads
    exponents = torch.arange(0, width, 2, dtype=torch.float64, device=canvas.device) / width
    places = torch.arange(len(canvas), dtype=torch.float64, device=canvas.device)
    turns = torch.polar(
        torch.ones((), dtype=torch.float64, device=canvas.device), places[:, None] / config.rope_theta**exponents
    )
    for number in range(config.n_layers):
        block = f"blocks.{number}."
        h = norm(x, block + "attn_norm")
        q, k, v = (h @ tensor(block + name).T for name in ("q_proj", "k_proj", "v_proj"))
        q, k = _turned(heads(q, config.n_heads), turns), _turned(heads(k, config.n_kv_heads), turns)
        k, v = (y.repeat_interleave(config.n_heads // config.n_kv_heads, 0) for y in (k, heads(v, config.n_kv_heads)))
        attention = (q @ k.transpose(1, 2) / width**0.5).softmax(-1) @ v
        x = x + attention.transpose(0, 1).flatten(1) @ tensor(block + "attn_out").T
        h = norm(x, block + "ff_norm")
        gate = h @ tensor(block + "ff_proj").T
        x = x + (gate * gate.sigmoid() * (h @ tensor(block + "up_proj").T)) @ tensor(block + "ff_out").T
    return norm(x, "ln_f") @ tensor("wte" if config.weight_tying else "ff_out").T


def _turned(x: Tensor, turns: Tensor) -> Tensor:
    real, imaginary = x.double().chunk(2, -1)
    turned = torch.complex(real, imaginary) * turns
    return torch.cat((turned.real, turned.imag), -1).to(x.dtype)

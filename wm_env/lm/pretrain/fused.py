"""The network's pass in training: the parameters of transformers' Llama, computed with as few kernels as possible.

The function is that of `wm_env.lm.models.network` with rounded weights (`wm_env.lm.pretrain.rounding`). What differs is
how it is computed: one product for queries, keys and values, one for gate and up, and on a GPU products in bf16 with
everything between them fused by torch.compile, the residual stream in bf16.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import rotate_half

from wm_env.lm.models.llada_config import LLaDAConfig
from wm_env.lm.pretrain.objective import MaskedBatch, masked_loss, next_token_loss
from wm_env.lm.pretrain.rounding import rounded


class FusedPass:
    """The losses of a network in training, as functions of its parameters."""

    def __init__(self, network: LlamaForCausalLM, config: LLaDAConfig, device: torch.device) -> None:
        self._network = network
        self._heads = config.n_heads
        self._eps = config.rms_norm_eps
        self._type = torch.bfloat16 if device.type == "cuda" else torch.float32
        positions = torch.arange(config.max_sequence_length, device=device)
        self._rotation = network.model.rotary_emb(network.lm_head.weight, positions[None])
        self._matrices, self._layer, self._last_norm = _matrices, _layer, _normed_by
        self._masked_loss, self._next_token_loss = masked_loss, next_token_loss
        if device.type == "cuda":
            self._matrices = torch.compile(_matrices)
            self._layer = torch.compile(_layer)
            self._last_norm = torch.compile(_normed_by)
            self._masked_loss = torch.compile(masked_loss)
            self._next_token_loss = torch.compile(next_token_loss)

    def masked_loss(self, batch: MaskedBatch) -> Tensor:
        """`objective.masked_loss` with attention both ways."""
        states, head = self._states(batch.canvas, causal=False)
        return self._masked_loss(states, head, batch)

    def next_token_loss(self, windows: Tensor) -> Tensor:
        """`objective.next_token_loss` with attention to the left."""
        states, head = self._states(windows, causal=True)
        return self._next_token_loss(states, head, windows)

    def _states(self, canvas: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
        """What the head is given, (N, T, d), and the head, (V, d)."""
        model = self._network.model
        embedding = rounded(model.embed_tokens.weight)
        cosine, sine = (table[0, : canvas.shape[1]] for table in self._rotation)
        hidden = functional.embedding(canvas, embedding).to(self._type)
        for layer in model.layers:
            matrices = self._matrices(_parameters(layer), self._type)
            hidden = self._layer(hidden, *matrices, cosine, sine, self._heads, self._eps, causal)
        return self._last_norm(hidden, model.norm.weight, self._eps), embedding.to(self._type)


def _parameters(layer: Any) -> tuple[Tensor, ...]:
    attention, mlp = layer.self_attn, layer.mlp
    modules = (
        *(layer.input_layernorm, attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj),
        *(layer.post_attention_layernorm, mlp.gate_proj, mlp.up_proj, mlp.down_proj),
    )
    return tuple(module.weight for module in modules)


def _matrices(parameters: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The rounded matrices of a layer: queries, keys and values; attention's output; gate and up; the MLP's output."""
    first, query, key, value, out, second, gate, up, down = parameters
    together = torch.cat((query, key, value)) * first, out, torch.cat((gate, up)) * second, down
    query_key_value, out, gate_up, down = (rounded(matrix).to(dtype) for matrix in together)
    return query_key_value, out, gate_up, down


def _layer(
    hidden: Tensor,
    query_key_value: Tensor,
    out: Tensor,
    gate_up: Tensor,
    down: Tensor,
    cosine: Tensor,
    sine: Tensor,
    heads: int,
    eps: float,
    causal: bool,
) -> Tensor:
    """A decoder layer on (N, T, d); cosine and sine are (T, head width)."""
    rows, length, width = hidden.shape
    projected = functional.linear(_normed(hidden, eps), query_key_value).chunk(3, dim=-1)
    query, key, value = (part.view(rows, length, heads, width // heads) for part in projected)
    query, key = (
        (part.float() * cosine[:, None] + rotate_half(part.float()) * sine[:, None]).to(part.dtype)
        for part in (query, key)
    )
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    attended = functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
    hidden = hidden + functional.linear(attended.transpose(1, 2).reshape(rows, length, width), out)
    gate, up = functional.linear(_normed(hidden, eps), gate_up).chunk(2, dim=-1)
    return hidden + functional.linear(functional.silu(gate) * up, down)


def _normed(hidden: Tensor, eps: float) -> Tensor:
    """RMSNorm without its gain, computed in fp32."""
    wide = hidden.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(hidden.dtype)


def _normed_by(hidden: Tensor, gain: Tensor, eps: float) -> Tensor:
    """RMSNorm, computed in fp32."""
    wide = hidden.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * gain).to(hidden.dtype)

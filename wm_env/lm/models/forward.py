"""What the LM head needs of a canvas, and nothing else, on the layers of transformers' Llama and Qwen2.

Attention looks both ways, so up to the last layer every position depends on every other and all of them are needed;
there is no exact cache. In the last layer only one position is read: its keys and values still come from all of them,
but the query, the output projection, the MLP and the norm are those of one row. This is the same function as the whole
pass, up to the rounding of matrix products of other shapes.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import rotate_half

from wm_env.lm.models.network import attend_both_ways

Rotation = tuple[Tensor, Tensor]
"""cos and sin, each (1, T, head width)."""


def hidden_at(network: PreTrainedModel, canvas: Tensor, position: int) -> Tensor:
    """What the LM head is given at `position` of every canvas: (N, T) int64 -> (N, d), after the final norm."""
    model = network.model
    hidden = model.embed_tokens(canvas)
    rotation = model.rotary_emb(hidden, torch.arange(canvas.shape[1], device=canvas.device)[None])
    for layer in model.layers[:-1]:
        hidden = layer(hidden, position_embeddings=rotation)
    row: Tensor = model.norm(last_layer_at(model.layers[-1], hidden, rotation, position))
    return row[:, 0]


def last_layer_at(layer: Any, hidden: Tensor, rotation: Rotation, position: int) -> Tensor:
    """A decoder layer's output at one position, (N, 1, d), from its input at all of them, (N, T, d)."""
    attention, here, (cosine, sine) = layer.self_attn, slice(position, position + 1), rotation
    normed = layer.input_layernorm(hidden)
    query = _rotated(_heads(attention.q_proj(normed[:, here]), attention), cosine[:, here], sine[:, here])
    key = _rotated(_heads(attention.k_proj(normed), attention), cosine, sine)
    value = _heads(attention.v_proj(normed), attention)
    attended, _ = attend_both_ways(attention, query, key, value, None, scaling=attention.scaling)
    row = hidden[:, here] + attention.o_proj(attended.flatten(2))
    output: Tensor = row + layer.mlp(layer.post_attention_layernorm(row))
    return output


def _heads(projected: Tensor, attention: Any) -> Tensor:
    """(N, T, heads * width) -> (N, heads, T, width)."""
    return projected.view(*projected.shape[:2], -1, attention.head_dim).transpose(1, 2)


def _rotated(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    rotated: Tensor = heads * cosine[:, None] + rotate_half(heads) * sine[:, None]
    return rotated


def compile_layers(network: PreTrainedModel) -> None:
    """Let torch.compile fuse what stands between the matrix products of a layer: norms, rotation, SiLU, sums.

    One program serves all layers and all shapes, and nothing that changes a sum's order is chosen by a stopwatch: two
    processes would choose differently. The last layer is read at one position and stays as it is.

    Raises:
        ValueError: this torch cannot promise that.
    """
    if not can_compile():
        raise ValueError(f"torch {torch.__version__} times kernels to choose them: torch 2.10 compiles reproducibly")
    for layer in network.model.layers[:-1]:
        layer.compile(dynamic=True, options={"deterministic": True})


def can_compile() -> bool:
    """Whether torch.compile can be told to make the same program in every process."""
    # The compiler takes a second to import, which only those who compile should pay for.
    from torch._inductor import list_options

    return "deterministic" in list_options()

"""LLaDA's network on transformers' own Llama classes: bidirectional, with a rotation in fp32.

LLaDA (arXiv 2502.09992) is a Llama block stack with other tensor names and no causal mask, so its checkpoints need no
code of their own. Two things are not Llama's defaults and make a port silently wrong: attention looks both ways, and
queries and keys are rotated in fp32 even when the weights are bf16.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from wm_env.lm.models.llada_config import LLaDAConfig

ATTENTION = "llada_sdpa"


class FullPrecisionRotary(nn.Module):
    """Rotary tables in fp32, whatever the dtype of the network.

    It keeps the frequencies as numbers and not as a buffer, so casting the network cannot round them, and returns the
    tables un-cast, so that the rotation itself happens in fp32 as in LLaDA's `rope_full_precision`.
    """

    def __init__(self, head_width: int, theta: float) -> None:
        super().__init__()
        self.head_width = head_width
        self.theta = theta

    def forward(self, hidden: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin, each (rows, positions, head_width) float32: angle = position * theta^(-2i / head_width)."""
        exponents = torch.arange(0, self.head_width, 2, dtype=torch.float32, device=hidden.device)
        frequencies = 1.0 / (self.theta ** (exponents / self.head_width))
        with torch.autocast(hidden.device.type, enabled=False):
            angles = position_ids[..., None].float() * frequencies
            angles = torch.cat((angles, angles), dim=-1)
            return angles.cos(), angles.sin()


def attend_both_ways(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """transformers' fused attention without a causal mask: (N, heads, T, width) -> (N, T, heads, width), and None."""
    # Llama's attention module carries is_causal=True, which the stock function would follow where no mask is given.
    options["is_causal"] = False
    output: tuple[Tensor, None] = sdpa_attention_forward(
        module, query.to(value.dtype), key.to(value.dtype), value, attention_mask, **options
    )
    return output


AttentionInterface.register(ATTENTION, attend_both_ways)
# Without a mask function of the same name transformers drops padding masks silently.
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


def llama_config(config: LLaDAConfig) -> LlamaConfig:
    """The same network in transformers' terms."""
    return LlamaConfig(
        vocab_size=config.embedding_size,
        hidden_size=config.d_model,
        num_hidden_layers=config.n_layers,
        num_attention_heads=config.n_heads,
        num_key_value_heads=config.n_kv_heads,
        intermediate_size=config.mlp_hidden_size,
        hidden_act="silu",
        rms_norm_eps=config.rms_norm_eps,
        max_position_embeddings=config.max_sequence_length,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        attention_bias=False,
        mlp_bias=False,
        tie_word_embeddings=config.weight_tying,
        is_causal=False,
        use_cache=False,
        bos_token_id=None,
        pad_token_id=None,
        eos_token_id=config.eos_token_id,
        attn_implementation=ATTENTION,
    )


def build_network(config: LLaDAConfig, device: str = "cpu") -> LlamaForCausalLM:
    """A LLaDA network with fresh weights (none on device "meta"): `LlamaForCausalLM`, bidirectional, fp32 rotation."""
    with torch.device(device):
        network = LlamaForCausalLM(llama_config(config))
    network.model.rotary_emb = FullPrecisionRotary(config.d_model // config.n_heads, config.rope_theta)
    return network

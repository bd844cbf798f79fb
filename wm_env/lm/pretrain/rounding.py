"""Weights as 8-bit integers in the training loop: what the network computes with is what the published file holds.

Row n of a matrix is q[n] scale[n], integers |q| <= 127 and an fp32 scale a row. The gains of the norms before attention
and MLP are multiplied into the matrices behind them, so that the integers hold them too. In training the rounding is
passed over by the gradient (straight-through estimator): the optimizer moves fp32 weights, the network sees the
integers nearest to them.
"""

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from wm_env.lm.models.exact.quantise import SMALLEST, W8
from wm_env.lm.models.llada import exact_shape
from wm_env.lm.models.llada_config import LLaDAConfig


def rounded(weight: Tensor) -> Tensor:
    """The values q scale nearest to a matrix, (N, K) fp32; the gradient is that of the matrix itself.

    The rule of `wm_env.lm.models.exact.quantise.quantise_matrix`, in fp32. Where w / scale lies on a half up to
    rounding, the integer may be the neighbour of that function's.
    """
    scale = (weight.detach().abs().amax(1, keepdim=True) / W8.weight_top).clamp_min(SMALLEST)
    nearest = (weight.detach() / scale).round().clamp(-W8.weight_top, W8.weight_top) * scale
    return nearest + (weight - weight.detach())


@torch.no_grad()
def rounded_state(network: LlamaForCausalLM, config: LLaDAConfig) -> dict[str, Tensor]:
    """The parameters of the published network in 8-bit form, by their names in `network`.

    The gain of a norm is multiplied into the matrices behind it, and the norm's own weights become 1; then matrices are
    rounded. Only the last norm keeps its gain.
    """
    state = dict(network.named_parameters())
    rounded_one: dict[str, Tensor] = {}
    for name, _, norm in exact_shape(config).tensors():
        weight = state[name].detach()
        if weight.ndim == 2:
            rounded_one[name] = rounded(weight if norm is None else weight * state[norm])
        else:
            rounded_one.setdefault(name, weight.clone())
        if norm is not None:
            rounded_one[norm] = torch.ones_like(state[norm])
    return rounded_one

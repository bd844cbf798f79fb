"""The laws of several masked tokens at once: what a masked-diffusion model says before any of them is committed."""

import math

import torch
from torch import Tensor

from wm_env.lm.llada import MaskedLM, llada_logits


@torch.no_grad()
def marginals(lm: MaskedLM, context: tuple[int, ...], count: int, temperature: float) -> Tensor:
    """p_tau(x_t | context, `count` masks) for every one of the masks, the ids of `lm.banned` left out.

    For LLaDA this is one forward pass. Other models have heads of their own, and are asked for one mask a pass.

    Args:
        lm: the model.
        context: token ids before the masks; with the masks at most `lm.max_length`.
        count: number of masks, n.
        temperature: tau > 0.

    Returns:
        (n, V) float64 on the CPU; each row sums to 1.

    Raises:
        ValueError: as `MaskedLM.log2_probs`.
    """
    canvas = torch.tensor([context + (lm.mask_id,) * count])
    positions = range(len(context), canvas.shape[1])
    # The first mask goes the checked way; where the head is LLaDA's, the others come out of a single pass.
    if lm.logits_at is not llada_logits or count == 1:
        rows = [lm.log2_probs(canvas, position, temperature)[0] for position in positions]
        return torch.exp2(torch.stack(rows)).cpu()
    if canvas.shape[1] > lm.max_length:
        raise ValueError(f"canvas of {canvas.shape[1]} tokens; {lm.name} reads at most {lm.max_length}")
    if not (0 < temperature < math.inf):
        raise ValueError(f"temperature must be a positive number, got {temperature}")
    hidden = lm.network.model(canvas.to(lm.banned.device), use_cache=False).last_hidden_state
    logits = lm.network.lm_head(hidden[0, -count:]).double() / temperature
    if logits.isnan().any():
        raise ValueError(f"{lm.name} returned NaN logits; load it in float32 or check the checkpoint")
    return torch.softmax(logits.masked_fill(lm.banned, -math.inf), dim=-1).cpu()

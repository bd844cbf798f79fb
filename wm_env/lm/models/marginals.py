"""The laws of several tokens at once: what a masked-diffusion model says before any of them is committed."""

from collections.abc import Sequence

import torch
from torch import Tensor

from wm_env.common.foreign.torch_settings import usual_device
from wm_env.common.threads import torch_threads
from wm_env.lm.models.exact.law import probabilities
from wm_env.lm.models.exact.network import ExactNetwork
from wm_env.lm.models.llada import exact_logits, llada_logits
from wm_env.lm.models.masked_lm import MaskedLM


@usual_device()
def marginals(lm: MaskedLM, context: tuple[int, ...], count: int, temperature: float) -> Tensor:
    """p_tau(x_t | context, `count` masks) for every one of the masks, the ids of `lm.banned` left out.

    Args:
        lm: the model.
        context: token ids before the masks; with the masks at most `lm.max_length`.
        count: number of masks, n.
        temperature: tau > 0.

    Returns:
        (n, V) float64 on the CPU, multiples of 2^-52; each row sums to 1.

    Raises:
        ValueError: as `MaskedLM.log2_probs`.
    """
    canvas = torch.tensor([context + (lm.mask_id,) * count])
    return laws_at(lm, canvas, range(len(context), canvas.shape[1]), temperature)


@usual_device()
@torch.no_grad()
def laws_at(lm: MaskedLM, canvas: Tensor, positions: Sequence[int], temperature: float) -> Tensor:
    """p_tau(. | canvas) at some positions.

    For LLaDA this is one forward pass. Other models have heads of their own, and are asked for one position a pass.

    `canvas` is (1, T) int64, masks included, T at most `lm.max_length`; `positions` are n of 0..T-1. The rest, result
    and errors too, is as in `marginals`.
    """
    lm.check_canvas(canvas)
    if isinstance(lm.network, ExactNetwork) and lm.logits_at is exact_logits:
        return probabilities(lm.log2_law(lm.network.logits(canvas, positions)[0], temperature)).cpu()
    if isinstance(lm.network, ExactNetwork) or lm.logits_at is not llada_logits or len(positions) == 1:
        rows = [lm.log2_probs(canvas, position, temperature)[0] for position in positions]
        return probabilities(torch.stack(rows)).cpu()
    with torch_threads(1):
        hidden = lm.network.model(canvas.to(lm.banned.device), use_cache=False).last_hidden_state
        return probabilities(lm.log2_law(lm.network.lm_head(hidden[0, list(positions)]), temperature)).cpu()

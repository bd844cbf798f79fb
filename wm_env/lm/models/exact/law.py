"""From logits to integers: log2 of the softmax in units of 2^-40 bit, and probabilities as whole numbers.

The sum of a softmax is a sum of integers, so the order of its V terms does not matter.
"""

import torch
from torch import Tensor

from wm_env.lm.models.exact.functions import LOG2_E, exp2, log2

TICK_BITS = 40
"""A tick is 2^-40 bit."""
BANNED = -(1 << 62)
"""Ticks of what no text may contain."""
_MASS_BITS = 44
_LEAST = -500.0
_MOST_TICKS = float(1 << 61)


def log2_ticks(logits: Tensor, temperature: float, banned: Tensor | None = None) -> Tensor:
    """log2 softmax(logits / tau) over the ids that are not banned: (N, V) float64, V < 2^19 -> (N, V) int64 ticks.

    In float64: x = (logits L) / tau with L = log2(e), banned ids left out, less the largest x of the row; w = 2^max(x,
    -500) by `functions.exp2`; W is the sum of the integers round(w 2^44), half to even; the result is
    round((x - (log2 W - 44)) 2^40), by `functions.log2`, at least -2^61.

    Raises:
        ValueError: logits / tau is NaN or infinite; -inf counts as impossible.
    """
    x = logits.to(torch.float64) * LOG2_E
    x = torch.div(x, torch.full((1, 1), temperature, dtype=torch.float64, device=x.device))
    if banned is not None:
        x.masked_fill_(banned, -torch.inf)
    most = x.amax(-1, keepdim=True)
    if not bool(most.isfinite().all()):
        raise ValueError("a logit divided by the temperature is no finite number")
    x.sub_(most)
    # What is banned weighs 2^-500 like what is impossible: 0 units.
    total = exp2(x.clamp(min=_LEAST)).mul_(2.0**_MASS_BITS).round_().to(torch.int64).sum(-1, keepdim=True)
    x.sub_(log2(total.to(torch.float64)) - float(_MASS_BITS))
    ticks = x.mul_(2.0**TICK_BITS).clamp_(min=-_MOST_TICKS).round_().to(torch.int64)
    return ticks if banned is None else ticks.masked_fill_(banned, BANNED)


def bits_of(ticks: Tensor) -> Tensor:
    """Log-probabilities in bits, float64, from whole ticks; -inf for banned tokens. No rounding above -8192 bits."""
    return ticks.to(torch.float64).mul_(2.0**-TICK_BITS).masked_fill_(ticks == BANNED, -torch.inf)


def masses(log2_prob: Tensor, bits: int) -> Tensor:
    """round(2^(log2_prob + bits)) as int64, half to even: float64 bits of at most 62 - `bits` -> whole numbers."""
    return exp2(log2_prob.clamp(min=_LEAST)).mul_(2.0**bits).round_().to(torch.int64)


def probabilities(log2_prob: Tensor) -> Tensor:
    """2^log2_prob in multiples of 2^-52: float64, whose sums up to 2 are exact in any order."""
    return masses(log2_prob, 52).to(torch.float64).mul_(2.0**-52)


def log2_sum(log2_prob: Tensor) -> Tensor:
    """log2 of the sum of 2^log2_prob over the last axis, K < 2^20 terms, by a sum of integers; a single term stays."""
    most = log2_prob.amax(-1, keepdim=True)
    bits = _spare_bits(log2_prob.shape[-1])
    total = masses(log2_prob - most, bits).sum(-1, keepdim=True)
    return (most + (log2(total.to(torch.float64)) - float(bits)))[..., 0]


def renormalised(log2_prob: Tensor) -> Tensor:
    """2^log2_prob over its sum along the last axis, K < 2^20 terms: float64 quotients of integers."""
    weights = masses(log2_prob - log2_prob.amax(-1, keepdim=True), _spare_bits(log2_prob.shape[-1]))
    return torch.div(weights.to(torch.float64), weights.sum(-1, keepdim=True).to(torch.float64))


def _spare_bits(terms: int) -> int:
    """How fine integers may be whose largest is 2^bits, so that the sum of so many stays below 2^62."""
    return 62 - terms.bit_length()

"""Limits of short frames for tokens that are free or stuck: what n tokens carry at TV 0, edits included.

The law of a label, a bit: with probability a the state leaves it free, uniform; otherwise it is stuck at one of both
values, each as likely. On the way it flips with probability f. This is the Corollary's cover with two labels, where
a = 2 ceil(V/2) floor(V/2) / (V (V - 1)), and with a share p of tokens replaced by others f = a p: an other token has
the other label with the probability that two different tokens have. It is a memory with stuck cells (Kuznetsov,
Tsybakov; Heegard, El Gamal).

Two limits of l bits at block error e, with any amount of key, hold at every n:

* the decoder may know the states: then k free tokens are a binary symmetric channel, and by the sphere-packing bound
  (metaconverse) success is at most that of 2^-l 2^k of the likeliest patterns of flips, E over k;
* Fano's inequality with the Gelfand-Pinsker capacity C of the law: l <= (n C + h(e)) / (1 - e).
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln
from scipy.stats import binom

from wm_env.common.arrays import Floats
from wm_env.theory.channel_capacity import ChannelCapacity, channel_capacity

_LN2 = np.log(2)


@dataclass(frozen=True)
class FreeTokens:
    """The law of one label and the channel behind it.

    Attributes:
        free: a, probability that the state leaves the label free, in (0, 1].
        flip: f, probability that the label flips on the way, in [0, 1/2).
    """

    free: float
    flip: float

    def __post_init__(self) -> None:
        if not 0 < self.free <= 1 or not 0 <= self.flip < 0.5:
            raise ValueError(f"free={self.free}, flip={self.flip}: in (0, 1] and in [0, 1/2)")

    @property
    def state_probs(self) -> Floats:
        """P(s): free, stuck at 0, stuck at 1."""
        return np.array([self.free, (1 - self.free) / 2, (1 - self.free) / 2])

    @property
    def cover(self) -> Floats:
        """P(x|s), shape (3, 2)."""
        return np.array([[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]])

    @property
    def channel(self) -> Floats:
        """P(y|x), shape (2, 2)."""
        return np.array([[1 - self.flip, self.flip], [self.flip, 1 - self.flip]])


def corollary_labels(vocabulary: int, replaced: float) -> FreeTokens:
    """The code of two labels for the Corollary's cover of V tokens, when a share of the tokens arrives as others."""
    free = 2 * (vocabulary // 2) * ((vocabulary + 1) // 2) / (vocabulary * (vocabulary - 1))
    return FreeTokens(free, free * replaced)


def label_capacity(law: FreeTokens) -> ChannelCapacity:
    """The Gelfand-Pinsker capacity with P(x|s) held fixed, bits per token, with its certificate."""
    return channel_capacity(law.state_probs, law.cover, law.channel, gap=1e-6)


def known_state_success(law: FreeTokens, tokens: int, message_bits: int) -> float:
    """The success probability that no code of l bits exceeds at TV 0, even if the decoder knows the states."""
    counts = np.arange(tokens + 1)
    chances = binom.pmf(counts, tokens, law.free)
    return float(sum(chance * _symmetric_success(k, law.flip, message_bits) for k, chance in enumerate(chances)))


def message_limit(law: FreeTokens, tokens: int, block_error: float) -> float:
    """The most message bits of n tokens at this block error that both limits allow; whole bits, as a float."""
    found = label_capacity(law)
    entropy = -sum(p * np.log2(p) for p in (block_error, 1 - block_error) if p > 0)
    fano = (tokens * (found.rate + found.gap) + entropy) / (1 - block_error)
    low, high = 0, min(tokens, int(fano)) + 1
    while high - low > 1:
        middle = (low + high) // 2
        enough = known_state_success(law, tokens, middle) >= 1 - block_error
        low, high = (middle, high) if enough else (low, middle)
    return float(low)


def _symmetric_success(uses: int, flip: float, message_bits: int) -> float:
    """The largest probability of a set of flip patterns with at most 2^(k - l) of the 2^k, fractions included."""
    if message_bits == 0:
        return 1.0
    flips = np.arange(uses + 1)
    log_patterns = gammaln(uses + 1) - gammaln(flips + 1) - gammaln(uses - flips + 1)
    log_upto = np.logaddexp.accumulate(log_patterns)
    room = (uses - message_bits) * _LN2
    chances = binom.pmf(flips, uses, flip)
    whole = int(np.searchsorted(log_upto, room + 1e-12, side="right"))
    if whole > uses:
        return 1.0
    success = float(chances[:whole].sum())
    left = np.exp(room - log_patterns[whole]) - (np.exp(log_upto[whole - 1] - log_patterns[whole]) if whole else 0.0)
    return success + float(chances[whole]) * max(float(left), 0.0)

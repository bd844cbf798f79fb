"""The covert capacity behind a channel, as a convex programme over maps from states to tokens, with a certificate.

The decoder sees Y, a noisy X. Theorem 1 with Y in the place of what the decoder sees maximises I(U;Y) - I(U;S) with
P(x|s) held fixed. A label may be taken to be a map f of states to tokens, x = f(s): the randomness of W(x|u,s) can be
drawn with the label, and this never loses rate, since the map is independent of the state given the label. So U = F
with law P(f|s), and

    J = H(F|S) - H(F|Y) = H(Y) - H(S) + H(S|F,Y) - H(Y|F,S)

is concave in P(f|s), under linear constraints sum_(f: f(s) = x) P(f|s) = p(x|s). With r(f|y) free, J is the maximum
over r of E[log r(F|Y) - log P(F|S)] and both maximisations have closed forms, so they are alternated, as for the
capacity of a channel (Blahut, Arimoto):

    r(f|y) = posterior,    l(f,s) = sum_y K(y|f(s)) log2 r(f|y),
    P(f|s) = p(x|s) 2^(l(f,s)) / sum_(f': f'(s) = x) 2^(l(f',s)).

J is concave, so its tangent at the current point bounds the capacity from above: every (s, x) may move all its mass to
the map of the largest gradient. The gap between tangent and value is the certificate.
"""

from dataclasses import dataclass

import numpy as np

from wm_env.common.arrays import Floats, Ints

MOST_MAPS = 1 << 14
"""Most maps of states to tokens; there are as many as the product of the states' numbers of candidates."""

_TINY = 1e-300
_LEAST = 1e-40
"""Least weight of a map."""
_CHECKED = 25
"""Iterations between two certificates."""


@dataclass(frozen=True)
class ChannelCapacity:
    """The capacity behind a channel.

    Attributes:
        rate: I(F;Y) - I(F;S) of the law found, bits per token; a rate that is achievable.
        gap: no label law has more than `rate + gap`.
        key_rate: I(F;X|S), bits per token.
        maps: token number f(s) of every map, shape (maps, N).
        law: P(f|s), shape (N, maps), rows sum to 1.
    """

    rate: float
    gap: float
    key_rate: float
    maps: Ints
    law: Floats


def count_maps(cover: Floats) -> int:
    """Number of maps of states to their candidates."""
    return int(np.prod((cover > 0).sum(1).astype(float).clip(max=MOST_MAPS + 1)))


def channel_capacity(
    state_probs: Floats, cover: Floats, channel: Floats, gap: float = 1e-7, iterations: int = 100_000
) -> ChannelCapacity:
    """The largest I(U;Y) - I(U;S) over all labels U that leave P(x|s) as it is.

    Args:
        state_probs: P(s), shape (N,).
        cover: P(x|s), shape (N, tokens).
        channel: P(y|x), shape (tokens, Y), or P(y|x,s), shape (N, tokens, Y).
        gap: bits between the value and the certificate at which to stop.
        iterations: most alternations; with too few of them `ChannelCapacity.gap` stays above `gap`.

    Raises:
        ValueError: more maps than `MOST_MAPS`.
    """
    if count_maps(cover) > MOST_MAPS:
        raise ValueError(
            f"{len(cover)} states of up to {(cover > 0).sum(1).max()} candidates have more than {MOST_MAPS} maps: "
            "search with a number of labels instead (best_rate)"
        )
    maps = np.stack(np.meshgrid(*(np.flatnonzero(row) for row in cover), indexing="ij"), -1).reshape(-1, len(cover))
    states = np.arange(len(cover))
    seen = np.broadcast_to(channel, (*cover.shape, channel.shape[-1]))[states, maps]
    # Members of every (s, x) as groups of numbers, so that sums over them are one call.
    groups = states * cover.shape[1] + maps
    size = cover.size
    mass = cover.ravel()

    def project(weights: Floats) -> Floats:
        """P(f|s) proportional to the weights inside every (s, x); shape (maps, N)."""
        total = np.bincount(groups.ravel(), weights.ravel(), size)
        share = np.divide(mass, total, out=np.zeros(size), where=total > 0)
        return np.asarray(weights * share[groups])

    law = project(np.ones(maps.shape))
    rate = excess = 0.0
    for iteration in range(iterations):
        joint = np.einsum("s,fs,fsy->fy", state_probs, law, seen)
        log_posterior = np.log2(np.maximum(joint, _TINY)) - np.log2(np.maximum(joint.sum(0), _TINY))
        evidence = np.einsum("fsy,fy->fs", seen, log_posterior)
        if iteration % _CHECKED == 0 or iteration == iterations - 1:
            gradient = evidence - np.log2(np.maximum(law, _TINY))
            rate = float((law * gradient).sum(0) @ state_probs)
            best = np.full(size, -np.inf)
            np.maximum.at(best, groups.ravel(), gradient.ravel())
            bound = float((cover * np.where(cover > 0, best.reshape(cover.shape), 0)).sum(1) @ state_probs)
            excess = bound - rate
            if excess <= gap:
                break
        # Subtracting the largest exponent of every (s, x) keeps the powers of two in range. No map dies out: the
        # tangent at a law without one of them would not bound what that map can add.
        top = np.full(size, -np.inf)
        np.maximum.at(top, groups.ravel(), evidence.ravel())
        law = project(np.maximum(np.exp2(evidence - top[groups]), _LEAST))
    return ChannelCapacity(rate, max(excess, 0.0), _key_rate(state_probs, law, cover), maps, law.T)


def _key_rate(state_probs: Floats, law: Floats, cover: Floats) -> float:
    """I(F;X|S) = H(X|S), since X is a function of F and S."""
    entropies = -(cover * np.log2(np.maximum(cover, _TINY))).sum(1)
    return float(state_probs @ entropies)

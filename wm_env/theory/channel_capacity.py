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

The alternation never lowers J, and is slow near the maximum. So most steps are extrapolated with momentum on log P(f|s)
(Nesterov), and where that lowers J the plain step is taken and the momentum starts anew.

J is concave, so its tangent at any point bounds the capacity from above: every (s, x) may move all its mass to
the map of the largest gradient. The gap between the lowest tangent and the value is the certificate. For maps whose
mass vanishes the gradient depends on how fast it does in every state; extrapolation exaggerates that, plain steps
repair it.
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
_CYCLE, _EXTRAPOLATED = 50, 35
"""Iterations of a cycle, and how many of them, the first ones, are extrapolated."""


@dataclass(frozen=True)
class ChannelCapacity:
    """The capacity behind a channel.

    Attributes:
        rate: I(F;Y) - I(F;S) of the law found, bits per token; a rate that is achievable.
        gap: no label law has more than `rate + gap`; the lowest tangent's.
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
    programme = _Programme(state_probs, cover, channel)
    last = np.zeros(programme.maps.shape)
    law = programme.project(last)
    evidence, rate = programme.evaluate(law)
    bound, streak = np.inf, 0
    for iteration in range(iterations):
        if iteration % _CHECKED == 0 or iteration == iterations - 1:
            bound = min(bound, programme.tangent(law, evidence))
            if bound - rate <= gap:
                break
        plain = programme.project(evidence)
        step = np.log2(plain)
        moved = streak > 0 and iteration % _CYCLE < _EXTRAPOLATED
        trial = programme.project(step + streak / (streak + 3) * (step - last)) if moved else plain
        evidence_there, reached = programme.evaluate(trial)
        if moved and reached < rate:
            streak = 0
            continue
        law, evidence, rate, last, streak = trial, evidence_there, reached, step, streak + 1
    return ChannelCapacity(rate, max(bound - rate, 0.0), _key_rate(state_probs, law, cover), programme.maps, law.T)


class _Programme:
    """All maps of states to tokens, what each sends, and J of a law P(f|s) of shape (maps, N)."""

    def __init__(self, state_probs: Floats, cover: Floats, channel: Floats) -> None:
        self.state_probs, self.cover = state_probs, cover
        candidates = [np.flatnonzero(row) for row in cover]
        self.maps: Ints = np.stack(np.meshgrid(*candidates, indexing="ij"), -1).reshape(-1, len(cover))
        states = np.arange(len(cover))
        self._seen = np.broadcast_to(channel, (*cover.shape, channel.shape[-1]))[states, self.maps]
        # Members of every (s, x) as groups of numbers, so that sums over them are one call.
        self._groups = states * cover.shape[1] + self.maps

    def project(self, log_weights: Floats) -> Floats:
        """P(f|s) proportional to powers of two inside every (s, x).

        No map dies out: the tangent at a law without one of them would not bound what that map can add.
        """
        weights = np.maximum(np.exp2(log_weights - self._largest(log_weights)[self._groups]), _LEAST)
        total = np.bincount(self._groups.ravel(), weights.ravel(), self.cover.size)
        share = np.divide(self.cover.ravel(), total, out=np.zeros(self.cover.size), where=total > 0)
        return np.asarray(weights * share[self._groups])

    def evaluate(self, law: Floats) -> tuple[Floats, float]:
        """l(f,s), shape (maps, N), and J in bits."""
        joint = np.einsum("s,fs,fsy->fy", self.state_probs, law, self._seen)
        log_posterior = np.log2(np.maximum(joint, _TINY)) - np.log2(np.maximum(joint.sum(0), _TINY))
        evidence = np.einsum("fsy,fy->fs", self._seen, log_posterior)
        return evidence, float((law * (evidence - np.log2(law))).sum(0) @ self.state_probs)

    def tangent(self, law: Floats, evidence: Floats) -> float:
        """The largest value of J's tangent at the law, bits."""
        best = self._largest(evidence - np.log2(law)).reshape(self.cover.shape)
        return float((self.cover * np.where(self.cover > 0, best, 0)).sum(1) @ self.state_probs)

    def _largest(self, values: Floats) -> Floats:
        """The largest value of every (s, x), shape (N tokens,)."""
        best = np.full(self.cover.size, -np.inf)
        np.maximum.at(best, self._groups.ravel(), values.ravel())
        return best


def _key_rate(state_probs: Floats, law: Floats, cover: Floats) -> float:
    """I(F;X|S) = H(X|S), since X is a function of F and S."""
    entropies = -(cover * np.log2(np.maximum(cover, _TINY))).sum(1)
    return float(state_probs @ entropies)

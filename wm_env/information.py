"""Information of a block law, in bits, exact and differentiable, on torch tensors of any dtype.

The only place where these formulas are written: the environment, the agents and the evaluation all call them.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from wm_env.law import BlockLaw, advance, induced_cover, joint_probs, sum_by_symbol

LN2 = math.log(2)


@dataclass(frozen=True)
class Measures:
    """What a block law is worth and what it costs; scalar tensors, bits per block except `cost`.

    Attributes:
        rate: r = I(U;X) - I(U;S) = H(U|S) - H(U|X); the reward. Theorem 1 of the paper. At most H(X|S) of P~.
        cost: c = V(P~_XS, P_XS), a total variation in [0, 1].
        i_ux: I(U;X), X over the union of all states' candidates.
        i_us: I(U;S).
        i_ux_given_s: I(U;X|S), the key rate of Theorem 1.
        cover_entropy: H(X|S) under the model's own law.
    """

    rate: Tensor
    cost: Tensor
    i_ux: Tensor
    i_us: Tensor
    i_ux_given_s: Tensor
    cover_entropy: Tensor


def entropy(probs: Tensor, dim: int | tuple[int, ...] = -1) -> Tensor:
    """-sum p log2 p along `dim`, in bits, with 0 log 0 = 0 and a finite gradient at 0."""
    return cross_entropy(probs, probs, dim)


def cross_entropy(weights: Tensor, probs: Tensor, dim: int | tuple[int, ...] = -1) -> Tensor:
    """-sum w log2 p along `dim`, in bits; w must be 0 where p is."""
    # In place and without torch.xlogy, because memory traffic is most of the time that an environment step takes.
    return probs.clamp_min(torch.finfo(probs.dtype).tiny).log_().mul_(weights).sum(dim) / -LN2


def total_variation(first: Tensor, second: Tensor, dim: int | tuple[int, ...] = -1) -> Tensor:
    """V(P, Q) = 1/2 sum |P - Q| along `dim`, in [0, 1] for two laws."""
    return (first - second).abs().sum(dim) / 2


def measure(law: BlockLaw) -> Measures:
    """All measures of a block from one pass over its joint law; scalars, or one number per law of a batch."""
    z = law.state_probs
    joint = joint_probs(law)
    by_symbol = sum_by_symbol(joint, law.symbol)
    h_u_and_x = entropy(by_symbol, (-1, -2))
    h_x = entropy(by_symbol.sum(-1))
    h_u = entropy(by_symbol.sum(-2))
    h_u_given_s = (z * entropy(law.p_label)).sum(-1)
    h_x_given_u_and_s = cross_entropy(joint, law.p_candidate, (-1, -2, -3))
    induced = induced_cover(law)
    return Measures(
        rate=h_u_given_s - (h_u_and_x - h_x),
        cost=_cost_by_state(law, induced).sum(-1),
        i_ux=h_u + h_x - h_u_and_x,
        i_us=h_u - h_u_given_s,
        i_ux_given_s=(z * entropy(induced)).sum(-1) - h_x_given_u_and_s,
        cover_entropy=(z * entropy(law.cover)).sum(-1),
    )


def measure_by_state(law: BlockLaw) -> tuple[Tensor, Tensor]:
    """The parts of rate and cost that each state contributes, two tensors (..., N); they sum to those of `measure`.

        r(s) = Z(s) H(U|S=s) + sum_{u,x} P(s,u,x) log2 P(u|x),    c(s) = Z(s) V(P~(.|s), P(.|s)).

    r(s) may be negative: a state whose symbols mean other labels elsewhere misleads the decoder. It depends on other
    states only through the symbols that it shares with them.
    """
    joint = joint_probs(law)
    by_symbol = sum_by_symbol(joint, law.symbol)
    posterior = by_symbol / by_symbol.sum(-1, keepdim=True).clamp_min(torch.finfo(by_symbol.dtype).tiny)
    symbol = law.symbol.clamp_min(0).flatten(-2)[..., None].expand(*law.symbol.shape[:-2], -1, law.labels)
    p_label_given_x = posterior.gather(-2, symbol).reshape(*law.symbol.shape, law.labels).transpose(-1, -2)
    h_u_given_x = cross_entropy(joint, p_label_given_x, (-1, -2))
    return law.state_probs * entropy(law.p_label) - h_u_given_x, _cost_by_state(law, induced_cover(law))


def _cost_by_state(law: BlockLaw, induced: Tensor) -> Tensor:
    return law.state_probs * total_variation(induced, law.cover)


def rate(law: BlockLaw) -> Tensor:
    """I(U;X) - I(U;S) of one block, in bits. Theorem 1 of the paper."""
    return measure(law).rate


def cost(law: BlockLaw) -> Tensor:
    """V(P~_XS, P_XS) = sum_s Z(s) V(P~(.|s), P(.|s)), in [0, 1]. Table I of the paper."""
    return measure(law).cost


def text_total_variation(laws: tuple[BlockLaw, ...], children: tuple[Tensor, ...]) -> Tensor:
    """Total variation between whole texts, sum over all paths of the tree, in [0, 1].

    Never more than the sum of the block costs. `children` holds child(s, x), shape (N, Q), of every block but the
    last.
    """
    marked = plain = laws[0].state_probs
    for law, child, following in zip(laws, children, laws[1:], strict=False):
        states = len(following.cover)
        marked = advance(marked, induced_cover(law), child, states)
        plain = advance(plain, law.cover, child, states)
    last = laws[-1]
    return total_variation(marked[:, None] * induced_cover(last), plain[:, None] * last.cover, (0, 1))

"""Information of a block law, in bits, exact and differentiable, on torch tensors of any dtype.

The only place where these formulas are written: the environment, the agents and the evaluation all call them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wm_env.law import (
    BlockLaw,
    SharedSymbols,
    add_rows,
    advance,
    induced_cover,
    joint_probs,
    probs_given_state,
    shared_symbols,
    sum_by_symbol,
)

LN2 = math.log(2)

StateCost = Callable[[Tensor, Tensor], Tensor]
"""(P~(x|s), P(x|s)) of shape (N, Q, ...) -> the cost of every state, shape (N, ...)."""


@dataclass(frozen=True)
class Measures:
    """What a block law is worth and what it costs; scalar tensors, bits per block except `cost`.

    Attributes:
        rate: r = I(U;X) - I(U;S) = H(U|S) - H(U|X); the reward. Theorem 1 of the paper. At most H(X|S) of P~.
        cost: c, the cost that was asked for; V(P~_XS, P_XS), a total variation in [0, 1], by default.
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


@dataclass(frozen=True)
class Totals:
    """Rate and cost of a text.

    Attributes:
        rate: sum_b gamma^b r_b in bits, b = 1..B.
        cost: sum_b gamma^b c_b.
    """

    rate: float
    cost: float


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


def kl_divergence(first: Tensor, second: Tensor, dim: int | tuple[int, ...] = -1) -> Tensor:
    """D(P || Q) = sum P log2 (P / Q) along `dim`, in bits; P must be 0 where Q is. Never negative.

    Every term is P log2 (P / Q) - (P - Q) / ln 2, which is not negative either and sums to the same for two laws.
    """
    tiny = torch.finfo(first.dtype).tiny
    ratio = first.clamp_min(tiny).log() - second.clamp_min(tiny).log()
    return (first * ratio - first + second).sum(dim) / LN2


def measure(law: BlockLaw, cost: StateCost | None = None) -> Measures:
    """All measures of a block; scalars, or one number per law of a batch.

    `cost` is a `wm_env.criteria.costs.Cost` or the like, the total variation by default.

    H(U,X) is taken as H(S,U,X) - H(S|U,X), of which the second term concerns shared symbols only: so the logarithms of
    the joint law are those of W, and the table P(x,u) is not needed for symbols that belong to one state.
    """
    z = law.state_probs
    shared = law.shared or shared_symbols(law.symbol)
    given_state = probs_given_state(law)
    induced = given_state.sum(1)
    h_u = entropy((z[:, None] * law.p_label).sum(0), 0)
    place = law.symbol.clamp_min(0).flatten(0, 1)
    h_x = entropy(add_rows((z[:, None] * induced).flatten(0, 1)[:, None], place, shared.symbols), (0, 1))
    h_u_given_s = (z * entropy(law.p_label, 1)).sum(0)
    h_x_given_u_and_s = (z * cross_entropy(given_state, law.p_candidate, (1, 2))).sum(0)
    h_u_and_x = entropy(z, 0) + h_u_given_s + h_x_given_u_and_s - _state_entropy(law, given_state, shared)
    return Measures(
        rate=h_u_given_s - (h_u_and_x - h_x),
        cost=_cost_by_state(law, induced, cost).sum(0),
        i_ux=h_u + h_x - h_u_and_x,
        i_us=h_u - h_u_given_s,
        i_ux_given_s=(z * entropy(induced, 1)).sum(0) - h_x_given_u_and_s,
        cover_entropy=(z * entropy(law.cover, 1)).sum(0),
    )


def discounted_totals(measures: Sequence[Measures], gamma: float = 1.0) -> Totals:
    """What blocks b = 1..B are worth and cost together, block b weighted by gamma^b."""
    weights = [gamma**number for number in range(1, len(measures) + 1)]
    return Totals(
        rate=sum(weight * float(measured.rate) for weight, measured in zip(weights, measures, strict=True)),
        cost=sum(weight * float(measured.cost) for weight, measured in zip(weights, measures, strict=True)),
    )


def law_totals(blocks: Sequence[BlockLaw], gamma: float = 1.0, cost: StateCost | None = None) -> Totals:
    """sum_b gamma^b of the rates, in bits, and of the costs of the laws of blocks b = 1..B; `cost` as in `measure`."""
    return discounted_totals([measure(block, cost) for block in blocks], gamma)


def _state_entropy(law: BlockLaw, given_state: Tensor, shared: SharedSymbols) -> Tensor:
    """H(S|U,X): what label and symbol leave open about the state; only symbols that several states share do."""
    candidates = law.symbol.shape[1]
    state = shared.rows // candidates
    joint = law.state_probs[state][:, None] * given_state[state, :, shared.rows % candidates]
    return entropy(joint, (0, 1)) - entropy(add_rows(joint, shared.numbers, shared.count), (0, 1))


def measure_by_state(law: BlockLaw, cost: StateCost | None = None) -> tuple[Tensor, Tensor]:
    """The parts of rate and cost that each state contributes, two tensors (N, ...); they sum to those of `measure`.

        r(s) = Z(s) H(U|S=s) + sum_{u,x} P(s,u,x) log2 P(u|x),    c(s) = Z(s) D(P~(.|s), P(.|s)).

    r(s) may be negative: a state whose symbols mean other labels elsewhere misleads the decoder. It depends on other
    states only through the symbols that it shares with them. D is `cost`, the total variation by default.
    """
    joint = joint_probs(law)
    by_symbol = sum_by_symbol(joint, law.symbol)
    posterior = by_symbol / by_symbol.sum(1, keepdim=True).clamp_min(torch.finfo(by_symbol.dtype).tiny)
    place = law.symbol.clamp_min(0).flatten(0, 1)[:, None].expand(-1, *posterior.shape[1:])
    p_label_given_x = posterior.gather(0, place).view(*law.symbol.shape[:2], *posterior.shape[1:]).transpose(1, 2)
    h_u_given_x = cross_entropy(joint, p_label_given_x, (1, 2))
    return law.state_probs * entropy(law.p_label, 1) - h_u_given_x, _cost_by_state(law, induced_cover(law), cost)


def _cost_by_state(law: BlockLaw, induced: Tensor, cost: StateCost | None) -> Tensor:
    return law.state_probs * (total_variation(induced, law.cover, 1) if cost is None else cost(induced, law.cover))


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

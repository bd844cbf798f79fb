"""The gradient of Algorithm 1 in closed form: the same mathematics as `agents.primal_dual`, several times faster.

Write p = Z(s) P(u|s) W(x|u,s) for the joint law of a block, w = gamma^b and V' for the value to go, the derivative of
the later blocks' objective with respect to Z'. The derivative of the whole objective with respect to p is

    g(s,u,x) = w log2 [P(u|x) / P(u|s)] - w beta/2 sign(P~(x|s) - P(x|s)) + V'(child(s,x)),

and a softmax turns it into Z P(u|s) W(x|u,s) (g - E[g|u,s]) for the logits of W and Z P(u|s) (E[g|u,s] - E[g|s]) for
those of P(u|s). Where no other state has the token block x, P(u|x) / P(u|s) = W(x|u,s) / P~(x|s), so the logits give
the logarithm for free; only token blocks that states share need the table P(x,u). V = E[g|s] + w beta/2 sum_x
P(x|s) sign(..) is the value of the state, handed to the block before.

Under the coded objective the message word A = V_M* is uniform and U is drawn from P(u|A,s). Then P(u|s) above is
2^-l P(u|A(u),s), a softmax within each word, and log2 [P(A|x) / 2^-l] stands for the first term of g.

All tables are (states, slots of candidates, labels), so that every operation runs along the labels, and they are worked
on in place, in chunks of states that stay in the cache of a core.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from agents.policies import OUTSIDE, SoftmaxPolicy
from agents.primal_dual import Outcome, tensors_on
from agents.slots import candidate_slots
from wm_env.coded import label_bits
from wm_env.information import LN2, total_variation
from wm_env.law import advance
from wm_env.problem import BlockTensors, Objective, Problem

CHUNK_BYTES = 1 << 20
"""Size of the tables of one chunk of states: two of them fit the second-level cache of a core."""


@dataclass(frozen=True)
class _Shared:
    """The candidates whose token block other states of the same block have too."""

    state: Tensor
    candidate: Tensor
    symbol: Tensor
    symbols: int


@dataclass(frozen=True)
class _Tables:
    """A block with the two large tables that are reused in every iteration.

    `score` is first log W(x|u,s) + log norm(s,u), then g / (w / ln 2) up to a constant per (s,u), then the gradient;
    `mass` is W(x|u,s) norm(s,u). `words` is the number of message words, 1 without a message; a word has M / words
    labels, side by side.
    """

    block: BlockTensors
    weight: float
    shared: _Shared
    symbols: int
    words: int
    padded: bool
    score: Tensor
    mass: Tensor
    chunks: tuple[slice, ...]


@dataclass(frozen=True)
class _Gradient:
    """The gradients of the policy's parameters, in the order of `SoftmaxPolicy.parameters`; added to in place."""

    embedding: Tensor
    label_head: Tensor
    candidate_head: Tensor


@dataclass(frozen=True)
class _Forward:
    """What the forward sweep leaves for the backward sweep: small tables of one block.

    `p_label` is P(u|s), `norm` the sum over x of `mass`, `word_probs` P(x,A|s) of shape (N, Q, words) if there is a
    message.
    """

    state_probs: Tensor
    log_label: Tensor
    p_label: Tensor
    norm: Tensor
    induced: Tensor
    word_probs: Tensor | None


class ClosedFormLagrangian:
    """The Lagrangian of a problem and its gradient in closed form: a `Gradient`.

    Args:
        problem: tree, budget and discount.
        objective: the paper's, or the coded one with the first free positions of V as its message set.
        labels: M.
        dtype: precision of the tables; float32 agrees with float64 to about 1e-6 relative.
        device: "cpu" or "cuda"; on a GPU a block is one chunk.

    Raises:
        ValueError: another message set.
    """

    def __init__(
        self,
        problem: Problem,
        objective: Objective,
        labels: int,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ) -> None:
        words = _message_words(objective, labels)
        self.prior = torch.as_tensor(problem.tree.prior, dtype=dtype, device=device)
        self.blocks = tuple(
            _tables(block, problem.gamma ** (number + 1), labels, words)
            for number, block in enumerate(_by_slot(problem, dtype, device))
        )

    @torch.no_grad()
    def __call__(self, policy: SoftmaxPolicy, multiplier: Tensor) -> Outcome:
        """Forward through the blocks, backward through the values to go."""
        gradient = _Gradient(*(torch.zeros_like(parameter) for parameter in policy.parameters()))
        sweeps: list[_Forward] = []
        state_probs = self.prior
        for tables, rows in zip(self.blocks, policy.rows, strict=True):
            sweeps.append(_forward(tables, policy, rows, state_probs))
            if len(sweeps) < len(self.blocks):
                following = self.blocks[len(sweeps)].block
                state_probs = advance(state_probs, sweeps[-1].induced, tables.block.child, len(following.cover))
        rate = cost = self.prior.new_zeros(())
        value: Tensor | None = None
        for tables, rows, sweep in zip(self.blocks[::-1], policy.rows[::-1], sweeps[::-1], strict=True):
            value, block_rate, block_cost = _backward(tables, policy, rows, sweep, multiplier, value, gradient)
            rate = rate + tables.weight * block_rate
            cost = cost + tables.weight * block_cost
        policy.embedding.grad = gradient.embedding
        policy.label_head.grad = gradient.label_head
        policy.candidate_head.grad = gradient.candidate_head
        return Outcome(rate, cost)


def _forward(tables: _Tables, policy: SoftmaxPolicy, rows: slice, state_probs: Tensor) -> _Forward:
    """P(u|s), and by chunks W(x|u,s) and P~(x|s)."""
    embedding = policy.embedding[rows]
    by_word = (embedding @ policy.label_head).unflatten(1, (tables.words, -1))
    log_label = torch.log_softmax(by_word, dim=2).flatten(1) - math.log(tables.words)
    p_label = log_label.exp()
    head = policy.candidate_head.flatten(1)
    norm = torch.empty_like(p_label)
    induced = torch.empty_like(tables.block.cover)
    word_probs = induced.new_empty(*induced.shape, tables.words) if tables.words > 1 else None
    for chunk in tables.chunks:
        score, mass = tables.score[chunk], tables.mass[chunk]
        torch.mm(embedding[chunk], head, out=score.flatten(1))
        if tables.padded:
            score.masked_fill_(~tables.block.support[chunk, :, None], OUTSIDE)
        score -= score.amax(1, keepdim=True)
        torch.exp(score, out=mass)
        torch.sum(mass, 1, out=norm[chunk])
        share = p_label[chunk] / norm[chunk]
        if word_probs is None:
            induced[chunk] = torch.bmm(mass, share[:, :, None])[:, :, 0]
        else:
            word_probs[chunk] = (mass * share[:, None]).unflatten(2, (tables.words, -1)).sum(3)
            induced[chunk] = word_probs[chunk].sum(2)
    return _Forward(state_probs, log_label, p_label, norm, induced, word_probs)


def _backward(
    tables: _Tables,
    policy: SoftmaxPolicy,
    rows: slice,
    sweep: _Forward,
    multiplier: Tensor,
    later: Tensor | None,
    gradient: _Gradient,
) -> tuple[Tensor, Tensor, Tensor]:
    """Add the gradient of one block to the policy's; returns the states' values, rate (bits) and cost."""
    block, scale = tables.block, tables.weight / LN2
    z = sweep.state_probs
    log_norm = sweep.norm.log()
    log_induced = sweep.induced.clamp_min(torch.finfo(z.dtype).tiny).log()
    sign = torch.sign(sweep.induced - block.cover)
    bonus = -multiplier * tables.weight / 2 / scale * sign
    if later is not None:
        bonus = bonus + torch.where(block.child >= 0, later[block.child.clamp_min(0)], 0) / scale
    if sweep.word_probs is None:
        _look_up_shared(tables, sweep, log_norm, log_induced)
    else:
        _look_up_words(tables, sweep, sweep.word_probs, log_norm, log_induced)

    embedding = policy.embedding[rows]
    head = policy.candidate_head.flatten(1)
    embedding_grad, candidate_grad = gradient.embedding[rows], gradient.candidate_head.flatten(1)
    expected = torch.empty_like(sweep.p_label)
    factor = scale * z[:, None] * sweep.p_label / sweep.norm
    for chunk in tables.chunks:
        score, mass = tables.score[chunk], tables.mass[chunk]
        score += (bonus - log_induced)[chunk, :, None]
        mean = (mass * score).sum(1) / sweep.norm[chunk]
        score -= mean[:, None]
        score *= mass
        score *= factor[chunk, None]
        expected[chunk] = mean
        candidate_grad.addmm_(embedding[chunk].T, score.flatten(1))
        torch.mm(score.flatten(1), head.T, out=embedding_grad[chunk])
    expected -= log_norm
    state_value = (sweep.p_label * expected).sum(1)
    by_word = (sweep.p_label * expected).unflatten(1, (tables.words, -1)).sum(2) * tables.words
    word_value = by_word.repeat_interleave(expected.shape[1] // tables.words, dim=1)
    logit_grad = scale * z[:, None] * sweep.p_label * (expected - word_value)
    gradient.label_head.addmm_(embedding.T, logit_grad)
    embedding_grad.addmm_(logit_grad, policy.label_head.T)

    rate = z @ (state_value - (sweep.induced * bonus).sum(1)) / LN2
    cost = z @ total_variation(sweep.induced, block.cover)
    value = scale * state_value + multiplier * tables.weight / 2 * (block.cover * sign).sum(1)
    return value, rate, cost


def _look_up_shared(tables: _Tables, sweep: _Forward, log_norm: Tensor, log_induced: Tensor) -> None:
    """Put log [P(u|x) / P(u|s)] into `score` where states share x, up to the terms that `_backward` adds to all."""
    shared = tables.shared
    if not shared.symbols:
        return
    state, candidate = shared.state, shared.candidate
    joint = (sweep.state_probs[:, None] * sweep.p_label / sweep.norm)[state] * tables.mass[state, candidate]
    table = joint.new_zeros(shared.symbols, joint.shape[1]).index_add_(0, shared.symbol, joint)
    tiny = torch.finfo(joint.dtype).tiny
    posterior = table.clamp_min(tiny).log_() - table.sum(1, keepdim=True).clamp_min(tiny).log()
    tables.score[state, candidate] = (
        posterior[shared.symbol] - (sweep.log_label - log_norm)[state] + log_induced[state, candidate, None]
    )


def _look_up_words(tables: _Tables, sweep: _Forward, word_probs: Tensor, log_norm: Tensor, log_induced: Tensor) -> None:
    """Put log [P(A|x) / 2^-l] into `score`, up to the terms that `_backward` adds to all."""
    symbol = tables.block.symbol.clamp_min(0).flatten()
    joint = (sweep.state_probs[:, None, None] * word_probs).flatten(0, 1)
    table = joint.new_zeros(tables.symbols, tables.words).index_add_(0, symbol, joint)
    tiny = torch.finfo(joint.dtype).tiny
    posterior = table.clamp_min(tiny).log() - table.sum(1, keepdim=True).clamp_min(tiny).log()
    ratio = (posterior + math.log(tables.words))[symbol].view_as(word_probs) + log_induced[:, :, None]
    torch.add(
        ratio[:, :, :, None],
        log_norm.unflatten(1, (tables.words, -1))[:, None],
        out=tables.score.unflatten(2, (tables.words, -1)),
    )


def _by_slot(problem: Problem, dtype: torch.dtype, device: str) -> list[BlockTensors]:
    """The blocks with their candidates in the order of the policy's slots, so that nothing is gathered later."""
    blocks = []
    for block, tensors in zip(problem.tree.blocks, tensors_on(problem, dtype, device), strict=True):
        order = torch.from_numpy(candidate_slots(block)).argsort(dim=1).to(device)
        blocks.append(
            BlockTensors(
                tensors.cover.gather(1, order),
                tensors.symbol.gather(1, order),
                tensors.child.gather(1, order),
                tensors.support.gather(1, order),
            )
        )
    return blocks


def _message_words(objective: Objective, labels: int) -> int:
    """2^l message words, whose labels are side by side if M* are the first free positions of V."""
    bits, free = len(objective.message_set), objective.block_length - label_bits(labels)
    if objective.message_set != tuple(range(free, free + bits)):
        raise ValueError(
            f"message set {objective.message_set}: the closed form needs the first free positions of V; use autograd"
        )
    return 1 << bits


def _tables(block: BlockTensors, weight: float, labels: int, words: int) -> _Tables:
    states, candidates = block.cover.shape
    score = block.cover.new_empty(states, candidates, labels)
    per_chunk = states
    if block.cover.device.type == "cpu":
        per_chunk = max(1, CHUNK_BYTES // (candidates * labels * score.element_size()))
    chunks = tuple(slice(first, min(first + per_chunk, states)) for first in range(0, states, per_chunk))
    padded = not bool(block.support.all())
    symbols = int(block.symbol.max()) + 1
    return _Tables(block, weight, _find_shared(block), symbols, words, padded, score, torch.empty_like(score), chunks)


def _find_shared(block: BlockTensors) -> _Shared:
    symbol = block.symbol.clamp_min(0)
    owners = torch.bincount(block.symbol[block.support], minlength=int(symbol.max()) + 1)
    state, candidate = ((owners[symbol] > 1) & block.support).nonzero(as_tuple=True)
    names, renumbered = torch.unique(block.symbol[state, candidate], return_inverse=True)
    return _Shared(state, candidate, renumbered, len(names))

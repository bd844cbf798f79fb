"""The gradient of Algorithm 1 in closed form: the mathematics of `agents.primal_dual.algorithm`, several times faster.

Write p = Z(s) P(u|s) W(x|u,s) for the joint law of a block, w = gamma^b and V' for the value to go, the derivative of
the later blocks' objective with respect to Z'. The derivative of the whole objective with respect to p is

    g(s,u,x) = w log2 [P(u|x) / P(u|s)] - w beta d(s,x) + V'(child(s,x)),

and a softmax turns it into Z P(u|s) W(x|u,s) (g - E[g|u,s]) for the logits of W and Z P(u|s) (E[g|u,s] - E[g|s]) for
those of P(u|s). d is the slope of the cost (`wm_env.criteria.costs`), sign(P~(x|s) - P(x|s)) / 2 for the total
variation. Where no other state has the token block x, P(u|x) = P(u|s) W(x|u,s) / P~(x|s), so the logits give the
logarithm for free; only token blocks that states share need the table P(x,u). The value of a state, handed to the block
before, is V = E[g|s] + w beta (sum_x P~(x|s) d(s,x) - D(s)), D(s) the state's divergence.

Under the coded objective the message word A = V_M* is uniform and U is drawn from P(u|A,s). Then P(u|s) above is
2^-l P(u|A(u),s), a softmax within each word, and log2 [P(A|x) / 2^-l] stands for the first term of g.

All tables are (states, slots of candidates, labels), so that every operation runs along the labels. There are two of
them for a block, worked on in place, in chunks of states that stay in the cache of a core. What does not depend on u
comes in as late as it can, and factors of a state alone go into the small operands of the matrix products, so that the
large tables are passed over as few times as possible.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from agents.common.policies import OUTSIDE, SoftmaxPolicy
from agents.common.slots import candidate_slots
from agents.primal_dual.algorithm import Outcome, tensors_on
from wm_env.coded import label_bits
from wm_env.criteria.costs import Cost
from wm_env.criteria.objectives import Objective
from wm_env.information import LN2
from wm_env.law import advance, values_ahead
from wm_env.problem import BlockTensors, Problem

CHUNK_BYTES = 1 << 22
"""Size of a table of one chunk of states: small enough for the caches, enough rows for the matrix products."""


@dataclass(frozen=True)
class _Chunk:
    """Some states, and their candidates whose token block other states have too.

    Attributes:
        states: which rows of the block.
        rows: the shared candidates, as numbers of rows of a (states * slots, labels) table of this chunk.
        symbols: their rows of the table of shared token blocks.
    """

    states: slice
    rows: Tensor
    symbols: Tensor


@dataclass(frozen=True)
class _Shared:
    """The token blocks of a block that several states have, by their owners.

    Attributes:
        candidates: which candidates stand for them, shape (N, Q).
        rows: the same as numbers of rows of a (N * Q, labels) table, sorted by token block.
        states: the state of every row.
        starts: where the rows of every token block begin.
    """

    candidates: Tensor
    rows: Tensor
    states: Tensor
    starts: Tensor


@dataclass(frozen=True)
class _Tables:
    """A block with the large tables that are reused in every iteration.

    Attributes:
        block: its arrays, candidates by slot.
        weight: gamma^b.
        shared: its token blocks that several states have.
        words: number of message words, 1 without a message; a word has M / words labels, side by side.
        padded: some states have fewer candidates than slots.
        chunks: the states in pieces.
        score: log P(u,x|s) after the forward sweep; becomes g, then the gradient of the logits over Z(s).
        mass: P(u,x|s) = P(u|s) W(x|u,s).
        rows_work: scratch, a row of labels for every shared candidate of the chunk with the most.
    """

    block: BlockTensors
    weight: float
    shared: _Shared
    words: int
    padded: bool
    chunks: tuple[_Chunk, ...]
    score: Tensor
    mass: Tensor
    rows_work: Tensor


@dataclass(frozen=True)
class _Forward:
    """What the forward sweep leaves for the backward sweep: small tables of one block.

    Attributes:
        state_probs: Z(s).
        log_label: log P(u|s).
        p_label: P(u|s), at least the smallest normal number.
        induced: P~(x|s).
        log_posterior: without a message log P(u|x) of the shared token blocks, shape (symbols, M); with one
            log P(A|x) of every candidate, shape (N, Q, words).
    """

    state_probs: Tensor
    log_label: Tensor
    p_label: Tensor
    induced: Tensor
    log_posterior: Tensor


class ClosedFormLagrangian:
    """The Lagrangian of a problem and its gradient in closed form: a `Gradient`.

    Args:
        problem: tree, budget and discount.
        objective: the paper's, or the coded one with the first free positions of V as its message set.
        labels: M.
        dtype: precision of the tables; gradients in float32 agree with float64 to about 1e-6 relative.
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
        if problem.channel is not None:
            raise ValueError(f"channel={problem.channel!r}: no closed form of the gradient is known; use autograd")
        words = _message_words(objective, labels)
        self.cost = problem.cost
        self.prior = torch.as_tensor(problem.tree.prior, dtype=dtype, device=device)
        self.blocks = tuple(
            _tables(block, problem.gamma ** (number + 1), labels, words)
            for number, block in enumerate(_by_slot(problem, dtype, device))
        )

    @torch.no_grad()
    def __call__(self, policy: SoftmaxPolicy, multiplier: Tensor) -> Outcome:
        """Forward through the blocks, backward through the values to go."""
        policy.clear_gradient()
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
            bonus = _bonus(tables, sweep, self.cost, multiplier, value)
            state_value = _backward(tables, policy, rows, sweep, bonus)
            excess = self.cost.excess(sweep.induced, tables.block.cover)
            value = tables.weight * (state_value / LN2 + multiplier * excess)
            block_rate = sweep.state_probs @ (state_value - (sweep.induced * bonus).sum(1)) / LN2
            rate = rate + tables.weight * block_rate
            cost = cost + tables.weight * (sweep.state_probs @ self.cost(sweep.induced, tables.block.cover))
        return Outcome(rate, cost)


def _forward(tables: _Tables, policy: SoftmaxPolicy, rows: slice, state_probs: Tensor) -> _Forward:
    """P(u|s), and chunk by chunk W(x|u,s), P~(x|s) and the laws of token blocks that states share."""
    by_word = policy.label_logits(rows).view(len(state_probs), tables.words, -1)
    log_label = torch.log_softmax(by_word, dim=2).flatten(1).sub_(math.log(tables.words))
    induced = torch.empty_like(tables.block.cover)
    word_probs = induced.new_empty(*induced.shape, tables.words) if tables.words > 1 else None
    for chunk in tables.chunks:
        states, score, mass = chunk.states, tables.score[chunk.states], tables.mass[chunk.states]
        logits = mass
        policy.write_candidate_logits(_within(rows, states), logits)
        if tables.padded:
            logits.masked_fill_(~tables.block.support[states, :, None], OUTSIDE)
        torch.log_softmax(logits, 1, out=score)
        score += log_label[states, None]
        torch.exp(score, out=mass)
        torch.sum(mass, 2, out=induced[states])
        if word_probs is not None:
            torch.sum(mass.view(*mass.shape[:2], tables.words, -1), 3, out=word_probs[states])
    if word_probs is not None:
        log_posterior = _word_posterior(tables, state_probs, word_probs)
    else:
        log_posterior = _label_posterior(tables, state_probs)
    return _Forward(state_probs, log_label, _at_least_tiny_(log_label.exp()), induced, log_posterior)


def _backward(tables: _Tables, policy: SoftmaxPolicy, rows: slice, sweep: _Forward, bonus: Tensor) -> Tensor:
    """Add the gradient of one block to the policy's; returns E[g|s] / (w / ln 2), shape (N,)."""
    scale = (tables.weight / LN2 * sweep.state_probs)[:, None]
    known = tables.shared.candidates if tables.words == 1 else torch.ones_like(tables.shared.candidates)
    without_label = bonus - torch.where(known, 0, _log(sweep.induced))
    expected = torch.empty_like(sweep.p_label)
    for chunk in tables.chunks:
        states, score, mass = chunk.states, tables.score[chunk.states], tables.mass[chunk.states]
        _score_posterior(tables, sweep, chunk)
        score += without_label[states, :, None]
        score *= mass
        mean = torch.div(score.sum(1), sweep.p_label[states], out=expected[states])
        score.addcmul_(mass, mean[:, None], value=-1)
        policy.add_candidate_gradient(_within(rows, states), scale[states], score)
    expected -= sweep.log_label
    expected *= sweep.p_label
    by_word = expected.view(len(expected), tables.words, -1)
    word_value = by_word.sum(2)
    by_word.addcmul_(sweep.p_label.view_as(by_word), word_value[:, :, None], value=-tables.words)
    policy.add_label_gradient(rows, expected.mul_(scale))
    return word_value.sum(1)


def _within(rows: slice, states: slice) -> slice:
    """The policy's rows of some states of a block."""
    return slice(rows.start + states.start, rows.start + states.stop)


def _bonus(tables: _Tables, sweep: _Forward, cost: Cost, multiplier: Tensor, later: Tensor | None) -> Tensor:
    """The terms of g / (w / ln 2) that do not depend on u: cost and value to go, shape (N, Q)."""
    block = tables.block
    bonus = -multiplier * LN2 * cost.slope(sweep.induced, block.cover)
    if later is None:
        return bonus
    return bonus + values_ahead(later, block.child) * LN2 / tables.weight


def _score_posterior(tables: _Tables, sweep: _Forward, chunk: _Chunk) -> None:
    """Turn log P(u,x|s) of a chunk into log P(u|x), with a message into log [P(A(u)|x) / 2^-l] + log P(u|s).

    Where one state alone has x, log P~(x|s) remains to be subtracted, since P(u|x) = P(u,x|s) / P~(x|s).
    """
    score, states = tables.score[chunk.states], chunk.states
    if tables.words > 1:
        ratio = sweep.log_posterior[states] + math.log(tables.words)
        log_label = sweep.log_label[states].view(len(score), 1, tables.words, -1)
        torch.add(ratio[:, :, :, None], log_label, out=score.view(*score.shape[:2], tables.words, -1))
        return
    if len(chunk.rows):
        known = tables.rows_work[: len(chunk.rows)]
        torch.index_select(sweep.log_posterior, 0, chunk.symbols, out=known)
        score.flatten(0, 1).index_copy_(0, chunk.rows, known)


def _label_posterior(tables: _Tables, state_probs: Tensor) -> Tensor:
    """log P(u|x) of the token blocks that states share, shape (symbols, M)."""
    shared = tables.shared
    if not len(shared.rows):
        return tables.mass.new_empty(0, tables.mass.shape[2])
    joint = functional.embedding_bag(
        shared.rows, tables.mass.flatten(0, 1), shared.starts, mode="sum", per_sample_weights=state_probs[shared.states]
    )
    return _log_conditional(joint)


def _word_posterior(tables: _Tables, state_probs: Tensor, word_probs: Tensor) -> Tensor:
    """log P(A|x) of every candidate, shape (N, Q, words)."""
    symbol = tables.block.symbol.clamp_min(0).flatten()
    joint = (state_probs[:, None, None] * word_probs).flatten(0, 1)
    table = joint.new_zeros(int(tables.block.symbol.max()) + 1, tables.words).index_add_(0, symbol, joint)
    return _log_conditional(table)[symbol].view_as(word_probs)


def _log_conditional(joint: Tensor) -> Tensor:
    """log of each row divided by its sum, in the place of `joint`; finite where there is no mass."""
    log_total = _log(joint.sum(1, keepdim=True))
    return _at_least_tiny_(joint).log_().sub_(log_total)


def _log(probs: Tensor) -> Tensor:
    return probs.clamp_min(torch.finfo(probs.dtype).tiny).log_()


def _at_least_tiny_(probs: Tensor) -> Tensor:
    return probs.clamp_min_(torch.finfo(probs.dtype).tiny)


def _by_slot(problem: Problem, dtype: torch.dtype, device: str) -> list[BlockTensors]:
    """The blocks with their candidates in the order of the policy's slots, so that nothing is gathered later."""
    blocks = []
    for block, tensors in zip(problem.tree.blocks, tensors_on(problem, dtype, device), strict=True):
        order = torch.from_numpy(candidate_slots(block)).argsort(dim=1).to(device)
        blocks.append(BlockTensors(*(table.gather(1, order) for table in vars(tensors).values())))
    return blocks


def _message_words(objective: Objective, labels: int) -> int:
    """2^l message words, whose labels are side by side if M* are the first free positions of V."""
    if not objective.closed_form:
        raise ValueError(f"objective={objective.name!r}: no closed form of the gradient is known; use autograd")
    bits, free = len(objective.message_set), objective.block_length - label_bits(labels)
    if objective.message_set != tuple(range(free, free + bits)):
        raise ValueError(
            f"message set {objective.message_set}: the closed form needs the first free positions of V; use autograd"
        )
    return 1 << bits


def _tables(block: BlockTensors, weight: float, labels: int, words: int) -> _Tables:
    states, slots = block.cover.shape
    size = states
    if block.cover.device.type == "cpu":
        size = min(states, max(1, CHUNK_BYTES // (slots * labels * block.cover.element_size())))
    owners = torch.bincount(block.symbol[block.support], minlength=1)
    shared = block.support & (owners[block.symbol.clamp_min(0)] > 1)
    _, renumbered, counts = torch.unique(block.symbol[shared], return_inverse=True, return_counts=True)
    number = torch.zeros_like(block.symbol)
    number[shared] = renumbered
    chunks = []
    for first in range(0, states, size):
        piece = slice(first, min(first + size, states))
        rows = shared[piece].flatten().nonzero()[:, 0]
        chunks.append(_Chunk(piece, rows, number[piece].flatten()[rows]))
    rows = shared.flatten().nonzero()[renumbered.argsort(stable=True), 0]
    empty = block.cover.new_empty
    return _Tables(
        block=block,
        weight=weight,
        shared=_Shared(shared, rows, rows // slots, counts.cumsum(0) - counts),
        words=words,
        padded=not bool(block.support.all()),
        chunks=tuple(chunks),
        score=empty(states, slots, labels),
        mass=empty(states, slots, labels),
        rows_work=empty(max(len(chunk.rows) for chunk in chunks), labels),
    )

"""The paper's policy: softmax laws of every (state, block), from logits that states share or have of their own.

`EmbeddedPolicy` is the paper's: softmax heads on a learned embedding of every (state, block). `TabularPolicy` gives
every state its own logits, for objectives under which every state needs an arrangement of its own.
"""

import itertools
import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from agents.common.settings import PolicySettings
from agents.common.slots import candidate_slots
from wm_env.coded import label_bits
from wm_env.tree import StateTree

OUTSIDE = -1e4
"""Logit of a candidate that a state does not have: its softmax is exactly 0, and 0 times its logarithm is no NaN."""


class SoftmaxPolicy(nn.Module, ABC):
    """P(u|s) and W(x|u,s) of every state of a tree, masked to the support of each state.

    A subclass says what the logits are, as a function of its parameters, and carries a gradient of the logits back to
    them. "Rows" are states, numbered block after block.

    The start matters. Where U is independent of X the gradient of the rate is zero, so W has to depend on u from the
    beginning. How it depends on u decides what the code can do later, since the rate does not care which labels lead to
    a candidate and gradient ascent keeps what it finds: with M = 256 labels spread at random over Q = 20 candidates the
    rate is optimal and yet no bit of V can be read off X. So the logits of W start as a random walk along the bits of
    V, label by label: labels that share their leading bits prefer the same candidates, and as many leading bits as
    tell Q candidates apart can be read off X. And states start nearly alike, because labels that differ from state to
    state cost I(U;S|X) for every token block that states share.

    Attributes:
        rows: the rows that belong to each block.
    """

    def __init__(self, tree: StateTree) -> None:
        super().__init__()
        ends = list(itertools.accumulate(len(block.cover) for block in tree.blocks))
        self.rows = [slice(first, end) for first, end in zip([0, *ends], ends, strict=False)]
        outside = torch.cat([torch.from_numpy(block.cover == 0) for block in tree.blocks])
        self.register_buffer("outside", outside, persistent=False)
        self.outside: Tensor
        slots = torch.cat([torch.from_numpy(candidate_slots(block)) for block in tree.blocks])
        self.register_buffer("slots", slots, persistent=False)
        self.slots: Tensor

    @abstractmethod
    def label_logits(self, rows: slice) -> Tensor:
        """Logits of P(u|s), shape (n, M)."""

    @abstractmethod
    def candidate_logits(self, rows: slice) -> Tensor:
        """Logits of W(x|u,s), candidates by slot (see `agents.common.slots`), nothing masked, shape (n, Q, M)."""

    @abstractmethod
    def write_candidate_logits(self, rows: slice, out: Tensor) -> None:
        """`candidate_logits` into a contiguous tensor of its shape."""

    @abstractmethod
    def add_label_gradient(self, rows: slice, grad: Tensor) -> None:
        """Add what a gradient with respect to `label_logits`, shape (n, M), makes of the parameters' gradients."""

    @abstractmethod
    def add_candidate_gradient(self, rows: slice, scale: Tensor, grad: Tensor) -> None:
        """The same for `candidate_logits`; the gradient is scale * grad, shapes (n, 1) and (n, Q, M)."""

    def clear_gradient(self) -> None:
        """Set the gradients of all parameters to 0, in their place if they are there."""
        for parameter in self.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.zero_()

    def forward(self, number: int) -> tuple[Tensor, Tensor]:
        """The laws of block `number` (from 0): P(u|s), shape (N, M), and W(x|u,s), shape (N, M, Q)."""
        rows = self.rows[number]
        p_label = torch.softmax(self.label_logits(rows), dim=1)
        logits = self.candidate_logits(rows).take_along_dim(self.slots[rows, :, None], dim=1)
        logits = logits.masked_fill(self.outside[rows, :, None], OUTSIDE)
        return p_label, torch.softmax(logits, dim=1).transpose(1, 2)


class EmbeddedPolicy(SoftmaxPolicy):
    """Linear heads, shared by all states of all blocks, on an embedding; N D + D M (1 + Q) parameters for N states.

    Attributes:
        embedding: shape (states of all blocks, D), block after block.
        label_head: shape (D, M).
        candidate_head: shape (D, Q, M), by slot.
    """

    def __init__(
        self, tree: StateTree, labels: int, size: int, settings: PolicySettings, generator: torch.Generator
    ) -> None:
        super().__init__(tree)
        own = nn.functional.normalize(_normal(tree.states, size, generator=generator), dim=1)
        common = nn.functional.normalize(_normal(size, generator=generator), dim=0)
        self.embedding = nn.Parameter(_mixed(common, own, settings))
        self.label_head = nn.Parameter(settings.label_spread * _normal(size, labels, generator=generator))
        self.candidate_head = nn.Parameter(_walk_along_bits(size, tree.meta.candidates, labels, settings, generator))

    def label_logits(self, rows: slice) -> Tensor:
        """The head on the embedding."""
        return self.embedding[rows] @ self.label_head

    def candidate_logits(self, rows: slice) -> Tensor:
        """The head on the embedding."""
        return torch.einsum("nd,dqm->nqm", self.embedding[rows], self.candidate_head)

    def write_candidate_logits(self, rows: slice, out: Tensor) -> None:
        """A matrix product into `out`."""
        torch.mm(self.embedding[rows], self.candidate_head.flatten(1), out=out.flatten(1))

    def add_label_gradient(self, rows: slice, grad: Tensor) -> None:
        """To the head and to the embedding."""
        _grad(self.label_head).addmm_(self.embedding[rows].T, grad)
        _grad(self.embedding)[rows].addmm_(grad, self.label_head.T)

    def add_candidate_gradient(self, rows: slice, scale: Tensor, grad: Tensor) -> None:
        """To the head and to the embedding."""
        flat = grad.flatten(1)
        _grad(self.candidate_head).flatten(1).addmm_((scale * self.embedding[rows]).T, flat)
        _grad(self.embedding)[rows].addcmul_(flat @ self.candidate_head.flatten(1).T, scale)


class TabularPolicy(SoftmaxPolicy):
    """The logits themselves: what one state learns moves no other; N M (1 + Q) parameters for N states.

    Attributes:
        label_table: shape (states of all blocks, M), block after block.
        candidate_table: shape (states of all blocks, Q, M), by slot.
    """

    def __init__(self, tree: StateTree, labels: int, settings: PolicySettings, generator: torch.Generator) -> None:
        super().__init__(tree)
        common, own = (
            settings.label_spread * _normal(count, labels, generator=generator) for count in (1, tree.states)
        )
        self.label_table = nn.Parameter(_mixed(common, own, settings))
        common, own = (
            _walk_along_bits(count, tree.meta.candidates, labels, settings, generator) for count in (1, tree.states)
        )
        self.candidate_table = nn.Parameter(_mixed(common, own, settings))

    def label_logits(self, rows: slice) -> Tensor:
        """The rows of the table."""
        return self.label_table[rows]

    def candidate_logits(self, rows: slice) -> Tensor:
        """The rows of the table."""
        return self.candidate_table[rows]

    def write_candidate_logits(self, rows: slice, out: Tensor) -> None:
        """A copy into `out`."""
        out.copy_(self.candidate_table[rows])

    def add_label_gradient(self, rows: slice, grad: Tensor) -> None:
        """To the rows of the table."""
        _grad(self.label_table)[rows].add_(grad)

    def add_candidate_gradient(self, rows: slice, scale: Tensor, grad: Tensor) -> None:
        """To the rows of the table."""
        _grad(self.candidate_table)[rows].addcmul_(grad, scale[:, :, None])


def softmax_policy(tree: StateTree, labels: int, settings: PolicySettings, generator: torch.Generator) -> SoftmaxPolicy:
    """The policy of the settings at its start."""
    if settings.embedding is None:
        return TabularPolicy(tree, labels, settings, generator)
    return EmbeddedPolicy(tree, labels, settings.embedding, settings, generator)


def _normal(*shape: int, generator: torch.Generator) -> Tensor:
    """Independent standard normal numbers in float32, whatever torch's default is."""
    return torch.randn(shape, generator=generator, dtype=torch.float32)


def _mixed(common: Tensor, own: Tensor, settings: PolicySettings) -> Tensor:
    """What all states have in common and what each has of its own, by their shares of the variance."""
    return math.sqrt(settings.common) * common + math.sqrt(1 - settings.common) * own


def _grad(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _walk_along_bits(
    count: int, candidates: int, labels: int, settings: PolicySettings, generator: torch.Generator
) -> Tensor:
    """Normal entries, shape (count, Q, M); labels differ by the steps of the bits of V after their common prefix."""
    leading = math.ceil(math.log2(candidates))
    walk = torch.zeros(count, candidates, 1, dtype=torch.float32)
    for bit in range(label_bits(labels)):
        spread = settings.leading_spread if bit < leading else settings.trailing_spread
        walk = walk.repeat_interleave(2, dim=2)
        walk = walk + spread * _normal(*walk.shape, generator=generator)
    return walk

"""The paper's policy: softmax heads on a learned embedding of every (state, block).

The heads are shared by all states of all blocks; what a state has of its own is its row of the embedding. Both heads
are linear, so a policy for N states has N D + D M (1 + Q) parameters.
"""

import itertools

import torch
from torch import Tensor, nn

from agents.settings import PolicySettings
from wm_env.coded import label_bits
from wm_env.tree import StateTree

OUTSIDE = -1e4
"""Logit of a candidate that a state does not have: its softmax is exactly 0, and 0 times its logarithm is no NaN."""


class SoftmaxPolicy(nn.Module):
    """P(u|s) and W(x|u,s) of every state of a tree, masked to the support of each state.

    The start matters, for three reasons. Where U is independent of X the gradient of the rate is zero, so W has to
    depend on u from the beginning: its logits are normal numbers with a standard deviation of several units. P(u|s)
    has to be sharp: the rate does not care whether a candidate is reached from one label or from ten, gradient ascent
    keeps the labels that a state begins with, and a bit of V can be read off X only where few labels, best one, lead
    to a candidate. And the few labels of a state have to be spread over the words of the message bits, or the encoder
    finds no label for some messages: labels are numbered by V, so the columns of the label head are dealt out such
    that the leading free bits of V are exactly uniform given any state.

    Attributes:
        embedding: shape (states of all blocks, D), block after block.
        label_head: shape (D, M).
        candidate_head: shape (D, Q, M).
        rows: the rows of the embedding that belong to each block.
    """

    def __init__(self, tree: StateTree, labels: int, settings: PolicySettings, generator: torch.Generator) -> None:
        super().__init__()
        size, candidates = settings.embedding, tree.meta.candidates
        rows = torch.randn(tree.states, size, generator=generator)
        self.embedding = nn.Parameter(nn.functional.normalize(rows, dim=1))
        self.label_head = nn.Parameter(settings.label_spread * _label_columns(size, labels, settings, generator))
        self.candidate_head = nn.Parameter(
            settings.candidate_spread * torch.randn(size, candidates, labels, generator=generator)
        )
        ends = list(itertools.accumulate(len(block.cover) for block in tree.blocks))
        self.rows = [slice(first, end) for first, end in zip([0, *ends], ends, strict=False)]
        outside = torch.cat([torch.from_numpy(block.cover == 0) for block in tree.blocks])
        self.register_buffer("outside", outside, persistent=False)
        self.outside: Tensor

    def forward(self, number: int) -> tuple[Tensor, Tensor]:
        """The laws of block `number` (from 0): P(u|s), shape (N, M), and W(x|u,s), shape (N, M, Q)."""
        rows = self.rows[number]
        embedding = self.embedding[rows]
        p_label = torch.softmax(embedding @ self.label_head, dim=1)
        logits = torch.einsum("nd,dqm->nqm", embedding, self.candidate_head)
        logits = logits.masked_fill(self.outside[rows, :, None], OUTSIDE)
        return p_label, torch.softmax(logits, dim=1).transpose(1, 2)


def _label_columns(size: int, labels: int, settings: PolicySettings, generator: torch.Generator) -> Tensor:
    """Standard normal columns, shape (D, M): every value of the leading bits of V gets the same ones, shuffled."""
    words = 2 ** min(settings.uniform_bits, label_bits(labels) - 1)
    columns = torch.randn(size, labels // words, generator=generator)
    return torch.cat([columns[:, torch.randperm(labels // words, generator=generator)] for _ in range(words)], dim=1)

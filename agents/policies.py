"""The paper's policy: softmax heads on a learned embedding of every (state, block).

The heads are shared by all states of all blocks; what a state has of its own is its row of the embedding. Both heads
are linear, so a policy for N states has N D + D M (1 + Q) parameters.
"""

import itertools
import math

import torch
from torch import Tensor, nn

from agents.settings import PolicySettings
from agents.slots import candidate_slots
from wm_env.coded import label_bits
from wm_env.tree import StateTree

OUTSIDE = -1e4
"""Logit of a candidate that a state does not have: its softmax is exactly 0, and 0 times its logarithm is no NaN."""


class SoftmaxPolicy(nn.Module):
    """P(u|s) and W(x|u,s) of every state of a tree, masked to the support of each state.

    The start matters. Where U is independent of X the gradient of the rate is zero, so W has to depend on u from the
    beginning. How it depends on u decides what the code can do later, since the rate does not care which labels lead to
    a candidate and gradient ascent keeps what it finds: with M = 256 labels spread at random over Q = 20 candidates the
    rate is optimal and yet no bit of V can be read off X. So the logits of W start as a random walk along the bits of
    V, label by label: labels that share their leading bits prefer the same candidates, and as many leading bits as
    tell Q candidates apart can be read off X. And states start nearly alike, because labels that differ from state to
    state cost I(U;S|X) for every token block that states share.

    Attributes:
        embedding: shape (states of all blocks, D), block after block.
        label_head: shape (D, M).
        candidate_head: shape (D, Q, M), by slot (see `agents.slots`).
        rows: the rows of the embedding that belong to each block.
    """

    def __init__(self, tree: StateTree, labels: int, settings: PolicySettings, generator: torch.Generator) -> None:
        super().__init__()
        size, candidates = settings.embedding, tree.meta.candidates
        own = nn.functional.normalize(torch.randn(tree.states, size, generator=generator), dim=1)
        common = nn.functional.normalize(torch.randn(size, generator=generator), dim=0)
        self.embedding = nn.Parameter(settings.common**0.5 * common + (1 - settings.common) ** 0.5 * own)
        self.label_head = nn.Parameter(settings.label_spread * torch.randn(size, labels, generator=generator))
        self.candidate_head = nn.Parameter(_walk_along_bits(size, candidates, labels, settings, generator))
        ends = list(itertools.accumulate(len(block.cover) for block in tree.blocks))
        self.rows = [slice(first, end) for first, end in zip([0, *ends], ends, strict=False)]
        outside = torch.cat([torch.from_numpy(block.cover == 0) for block in tree.blocks])
        self.register_buffer("outside", outside, persistent=False)
        self.outside: Tensor
        slots = torch.cat([torch.from_numpy(candidate_slots(block)) for block in tree.blocks])
        self.register_buffer("slots", slots, persistent=False)
        self.slots: Tensor

    def forward(self, number: int) -> tuple[Tensor, Tensor]:
        """The laws of block `number` (from 0): P(u|s), shape (N, M), and W(x|u,s), shape (N, M, Q)."""
        rows = self.rows[number]
        embedding = self.embedding[rows]
        p_label = torch.softmax(embedding @ self.label_head, dim=1)
        by_slot = torch.einsum("nd,dqm->nqm", embedding, self.candidate_head)
        logits = by_slot.take_along_dim(self.slots[rows, :, None], dim=1)
        logits = logits.masked_fill(self.outside[rows, :, None], OUTSIDE)
        return p_label, torch.softmax(logits, dim=1).transpose(1, 2)


def _walk_along_bits(
    size: int, candidates: int, labels: int, settings: PolicySettings, generator: torch.Generator
) -> Tensor:
    """Normal columns, shape (D, Q, M); two labels differ by the steps of the bits of V after their common prefix."""
    leading = math.ceil(math.log2(candidates))
    walk = torch.zeros(size, candidates, 1)
    for bit in range(label_bits(labels)):
        spread = settings.leading_spread if bit < leading else settings.trailing_spread
        walk = walk.repeat_interleave(2, dim=2)
        walk = walk + spread * torch.randn(walk.shape, generator=generator)
    return walk

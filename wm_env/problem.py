"""One watermarking problem: a tree cut to size, as tensors, with its budget and its highest rate."""

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from wm_env.common.checks import check_known
from wm_env.criteria.channel import BlockChannel, channels_of
from wm_env.criteria.costs import TOTAL_VARIATION, Cost
from wm_env.criteria.noise import noisy_rate_bound
from wm_env.criteria.text_budget import solve_text
from wm_env.optimum import Optimum, RateBound, rate_bound, solve
from wm_env.tree import StateTree, load_tree, shipped_tree

Budget = Literal["blocks", "text"]
SPLITS = ("all", "train", "test")
HELD_OUT = 5
"""Every fifth prompt of a tree is a test prompt."""
MESSAGE_BITS = 3
"""Message bits per block of the coded objective, if not given."""
MOST_DITHER_BITS = 8
"""d, most bits of dither; labels of a block of 8 tokens have no use for more."""


@dataclass(frozen=True)
class BlockTensors:
    """Float64 and int64 tensors of one block: cover (N, Q), symbol (N, Q), child (N, Q), support (N, Q) bool."""

    cover: Tensor
    symbol: Tensor
    child: Tensor
    support: Tensor


@dataclass(frozen=True)
class Problem:
    """A tree with the budget under which it is to be solved.

    Attributes:
        tree: the state tree, cut to the prompts and candidates of this problem.
        epsilon: bound on sum_b gamma^b c_b, b = 1..B.
        gamma: discount, in (0, 1].
        labels: M; None: as many as it takes.
        cost: c, what epsilon bounds.
        channel: how texts are edited before the decoder sees them, "erasure" or "substitution"; None: not at all.
        noise: probability that a token is edited.
        budget: what epsilon bounds: the sum over blocks, or the total variation of whole texts.

    Raises:
        ValueError: a budget for whole texts with another cost, a discount or a channel.
    """

    tree: StateTree
    epsilon: float
    gamma: float
    labels: int | None = None
    cost: Cost = TOTAL_VARIATION
    channel: str | None = None
    noise: float = 0.0
    budget: Budget = "blocks"

    def __post_init__(self) -> None:
        check_known("budget", self.budget, get_args(Budget))
        if self.budget == "text" and (self.cost != TOTAL_VARIATION or self.gamma != 1 or self.channel is not None):
            raise ValueError("budget='text': for cost='tv', gamma=1 and texts that are not edited")

    @cached_property
    def blocks(self) -> tuple[BlockTensors, ...]:
        """The tree's arrays as tensors, one entry per block."""
        return tuple(
            BlockTensors(*map(torch.from_numpy, (block.cover, block.symbol, block.child, block.cover > 0)))
            for block in self.tree.blocks
        )

    @cached_property
    def channels(self) -> tuple[BlockChannel | None, ...]:
        """What every block passes on its way to the decoder; None where nothing is edited.

        Raises:
            ValueError: an unknown channel, noise outside [0, 1), or noise without a channel.
        """
        return channels_of(self.tree, self.channel, self.noise)

    @cached_property
    def noisy_rate(self) -> float:
        """What no law within the budget exceeds behind the channel, with any number of labels."""
        channels = [channel for channel in self.channels if channel is not None]
        return noisy_rate_bound(self.tree, channels, self.epsilon, self.gamma).rate

    @cached_property
    def optimum(self) -> Optimum:
        """The highest rate under the budget with any number of labels.

        Raises:
            ValueError: the optimum of the cost is not known.
        """
        if self.budget == "text":
            return solve_text(self.tree, self.epsilon)
        return solve(self.tree, self.epsilon, self.gamma, self.cost)

    @cached_property
    def rate_bound(self) -> RateBound:
        """The highest rate under the budget with this problem's labels, or a bound on it."""
        return self.bound_for(self.labels)

    def bound_for(self, labels: int | None) -> RateBound:
        """The same for another number of labels.

        Behind a channel it is a bound that need not be reached. With another cost than the total variation it is the
        bound of unedited texts, which edits do not raise.
        """
        if self.channel is not None:
            clean = dataclasses.replace(self, channel=None, noise=0.0).bound_for(labels)
            rate = min(clean.rate, self.noisy_rate) if self.cost == TOTAL_VARIATION else clean.rate
            return RateBound(rate, exact=False)
        if self.cost.solvable:
            return rate_bound(self.tree, self.optimum, labels, self.gamma)
        free = solve(self.tree, math.inf, self.gamma, self.cost)
        return dataclasses.replace(rate_bound(self.tree, free, labels, self.gamma), exact=False)


def open_tree(tree: str) -> StateTree:
    """The shipped tree ("news") or the tree file at a path."""
    return shipped_tree() if tree == "news" else load_tree(Path(tree))


def split_prompts(tree: StateTree, split: str) -> list[int]:
    """Rows of the prompts of a split: "train" and "test" (every fifth prompt) are disjoint, "all" is both.

    Raises:
        ValueError: another split, or a tree with too few prompts for it.
    """
    check_known("split", split, SPLITS)
    rows = range(len(tree.prior))
    held_out = set(rows[HELD_OUT - 1 :: HELD_OUT])
    chosen = [row for row in rows if split == "all" or (row in held_out) == (split == "test")]
    if not chosen:
        raise ValueError(
            f"split={split!r}: a tree of {len(tree.prior)} prompts has none; at least {HELD_OUT} are needed"
        )
    return chosen

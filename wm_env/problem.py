"""One watermarking problem: a tree cut to size, as tensors, with its objective and its highest rate."""

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from wm_env.coded import coded_law, label_bits
from wm_env.law import BlockLaw
from wm_env.optimum import Optimum, RateBound, rate_bound, solve
from wm_env.tree import StateTree, load_tree, shipped_tree

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
    """

    tree: StateTree
    epsilon: float
    gamma: float
    labels: int | None = None

    @cached_property
    def blocks(self) -> tuple[BlockTensors, ...]:
        """The tree's arrays as tensors, one entry per block."""
        return tuple(
            BlockTensors(
                torch.from_numpy(block.cover),
                torch.from_numpy(block.symbol),
                torch.from_numpy(block.child),
                torch.from_numpy(block.cover > 0),
            )
            for block in self.tree.blocks
        )

    @cached_property
    def optimum(self) -> Optimum:
        """The highest rate under the budget with any number of labels."""
        return solve(self.tree, self.epsilon, self.gamma)

    @cached_property
    def rate_bound(self) -> RateBound:
        """The highest rate under the budget with this problem's labels, or a bound on it."""
        return rate_bound(self.tree, self.optimum, self.labels, self.gamma)


@dataclass(frozen=True)
class Objective:
    """What a block law is measured by.

    Attributes:
        message_set: positions of V that carry message bits; empty for the Gelfand-Pinsker objective of the paper.
        block_length: L.
    """

    message_set: tuple[int, ...]
    block_length: int

    def __call__(self, law: BlockLaw) -> BlockLaw:
        """The law whose rate is the reward and whose cost is the cost: `law` itself, or its coded law."""
        return coded_law(law, self.block_length, self.message_set) if self.message_set else law


def reward_bound(problem: Problem, objective: Objective) -> RateBound:
    """What the sum of discounted rewards of no policy within the budget exceeds, in bits.

    A coded law is a law with 2^l labels that are independent of the state, so the bound for 2^l labels holds for the
    coded objective; it need not be reached.
    """
    if not objective.message_set:
        return problem.rate_bound
    bound = rate_bound(problem.tree, problem.optimum, 1 << len(objective.message_set), problem.gamma)
    return dataclasses.replace(bound, exact=False)


def make_objective(name: str, block_length: int, labels: int, message_bits: int | None = None) -> Objective:
    """The objective `name`: "gp" (the paper's I(U;X) - I(U;S)) or "coded" (I(V_M*;X) of uniform message bits).

    The coded message set is the first `message_bits` (default `MESSAGE_BITS`) free positions of V: successive decoding
    then meets the message before anything else.

    Raises:
        ValueError: another name, labels that are no power of two, too many or one only, more message bits than label
            bits, or any for the gp objective.
    """
    bits = label_bits(labels)
    if bits == 0:
        raise ValueError("labels=1: a label needs at least two values to carry anything")
    if bits > block_length:
        raise ValueError(f"labels={labels}: blocks of {block_length} tokens have at most {2**block_length} words")
    if name == "gp":
        if message_bits is not None:
            raise ValueError(
                f"message_bits={message_bits}: the gp objective has none; leave them out, or choose objective='coded'"
            )
        return Objective((), block_length)
    if name != "coded":
        raise ValueError(f"objective={name!r}: choose 'gp' or 'coded'")
    count = MESSAGE_BITS if message_bits is None else message_bits
    if not 1 <= count <= bits:
        raise ValueError(f"message_bits={count}: {labels} labels carry 1 to {bits} message bits")
    free = block_length - bits
    return Objective(tuple(range(free, free + count)), block_length)


def open_tree(tree: str) -> StateTree:
    """The shipped tree ("news") or the tree file at a path."""
    return shipped_tree() if tree == "news" else load_tree(Path(tree))


def split_prompts(tree: StateTree, split: str) -> list[int]:
    """Rows of the prompts of a split: "train" and "test" (every fifth prompt) are disjoint, "all" is both.

    Raises:
        ValueError: another split, or a tree with too few prompts for it.
    """
    if split not in SPLITS:
        raise ValueError(f"split={split!r}: choose one of {', '.join(SPLITS)}")
    rows = range(len(tree.prior))
    held_out = set(rows[HELD_OUT - 1 :: HELD_OUT])
    chosen = [row for row in rows if split == "all" or (row in held_out) == (split == "test")]
    if not chosen:
        raise ValueError(
            f"split={split!r}: a tree of {len(tree.prior)} prompts has none; at least {HELD_OUT} are needed"
        )
    return chosen

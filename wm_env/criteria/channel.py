"""What the decoder receives when a text is edited on the way: a block X becomes Y, and the reward is I(U;Y) - I(U;S).

Every token is edited independently with probability p, the noise. Two editors bracket what edits do:

* "erasure": the edited token is replaced by one that no candidate has there, so the decoder sees which tokens were
  edited. This is random replacement in the limit of a large vocabulary. What is left of a block tells the decoder the
  set of candidates that agree with it; nothing else matters, since the edits do not depend on the candidate. So Y is
  that set.
* "substitution": a block with an edited token arrives as another candidate of its state, uniformly drawn: the decoder
  cannot see the edit. An editor who writes what the model might have written.

The observer sees X; the cost stays that of X.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from wm_env.common.arrays import Floats, Ints
from wm_env.common.checks import check_known
from wm_env.law import BlockLaw
from wm_env.tree import StateTree, TreeBlock

CHANNELS = ("erasure", "substitution")


@dataclass(frozen=True)
class BlockChannel:
    """The channel of one block. Rows are padded to the most outputs of a state.

    Attributes:
        kernel: K(y|x,s), shape (N, Q, Y, ...), rows sum to 1 where the cover is positive, otherwise 0.
        output: number of the output in the union over all states, shape (N, Y, ...), int64; -1 where padded.
    """

    kernel: Tensor
    output: Tensor


def tree_channels(tree: StateTree, name: str, noise: float) -> tuple[BlockChannel, ...]:
    """The channel of every block of a tree.

    Args:
        tree: the states with their candidates' tokens.
        name: "erasure" or "substitution".
        noise: p, the probability that a token is edited, in [0, 1).

    Raises:
        ValueError: another name or noise outside its range.
    """
    check_known("channel", name, CHANNELS)
    if not 0 <= noise < 1:
        raise ValueError(f"noise={noise}: a probability of 0 or more and below 1 is needed")
    make = erasure_channel if name == "erasure" else substitution_channel
    return tuple(make(block, noise) for block in tree.blocks)


def channels_of(tree: StateTree, name: str | None, noise: float) -> tuple[BlockChannel | None, ...]:
    """`tree_channels`, or None for every block if no channel is named.

    Raises:
        ValueError: as there, or noise without a channel.
    """
    if name is not None:
        return tree_channels(tree, name, noise)
    if noise:
        raise ValueError(f"noise={noise}: name a channel, {' or '.join(CHANNELS)}")
    return (None,) * len(tree.blocks)


def substitution_channel(block: TreeBlock, noise: float) -> BlockChannel:
    """A block is intact with probability (1 - p)^L, otherwise another candidate of its state, if there is one."""
    present = torch.from_numpy(block.cover > 0)
    others = present.sum(1) - 1
    wrong = (1 - (1 - noise) ** block.tokens.shape[2]) * (others > 0).double()
    share = (wrong / others.clamp_min(1))[:, None, None]
    same = torch.eye(block.cover.shape[1], dtype=torch.float64)
    kernel = (1 - wrong)[:, None, None] * same + share * (1 - same)
    kernel = kernel * (present[:, :, None] & present[:, None, :])
    return BlockChannel(kernel, torch.where(present, torch.from_numpy(block.symbol), -1))


def erasure_channel(block: TreeBlock, noise: float) -> BlockChannel:
    """The set of all symbols that agree with the tokens that were not edited; K(y|x) sums over the patterns of edits.

    A symbol is a text, and its tokens are those of its first appearance in the block.
    """
    present = block.symbol >= 0
    tokens = _symbol_tokens(block)
    number, probs = _agreeing_sets(tokens, noise)
    states, candidates = block.symbol.shape
    outputs = [np.unique(number[row[here]]) for row, here in zip(block.symbol, present, strict=True)]
    widest = max(map(len, outputs))
    kernel = np.zeros((states, candidates, widest))
    output = np.full((states, widest), -1, dtype=np.int64)
    for state, (row, here, mine) in enumerate(zip(block.symbol, present, outputs, strict=True)):
        output[state, : len(mine)] = mine
        place = np.searchsorted(mine, number[row[here]])
        np.add.at(kernel[state], (np.flatnonzero(here)[:, None], place), probs)
    return BlockChannel(torch.from_numpy(kernel), torch.from_numpy(output))


def received_law(law: BlockLaw, channel: BlockChannel) -> BlockLaw:
    """The law with what the decoder receives in the place of the block: P(u|s) and P(y|u,s).

    Its rate is I(U;Y) - I(U;S). Its cost is that of Y, not the cost of the law, which stays that of X.
    """
    kernel, output = channel.kernel.to(law.p_candidate), channel.output.to(law.symbol.device)
    return dataclasses.replace(
        law,
        cover=torch.einsum("nq...,nqy...->ny...", law.cover, kernel),
        symbol=output,
        shared=None,
        p_candidate=torch.einsum("nmq...,nqy...->nmy...", law.p_candidate, kernel),
    )


def stack_channels(channels: Sequence[BlockChannel]) -> BlockChannel:
    """The channels of many copies of a block side by side, padded to the most states and outputs of a copy."""
    states = max(len(channel.output) for channel in channels)
    outputs = max(channel.output.shape[1] for channel in channels)
    pad = torch.nn.functional.pad
    missing = [(outputs - channel.output.shape[1], states - len(channel.output)) for channel in channels]
    kernels = [
        pad(channel.kernel, (0, wide, 0, 0, 0, high)) for channel, (wide, high) in zip(channels, missing, strict=True)
    ]
    names = [
        pad(channel.output, (0, wide, 0, high), value=-1)
        for channel, (wide, high) in zip(channels, missing, strict=True)
    ]
    return BlockChannel(torch.stack(kernels, -1), torch.stack(names, -1))


def _symbol_tokens(block: TreeBlock) -> Ints:
    """The tokens of every symbol, shape (symbols, L)."""
    present = block.symbol >= 0
    symbols, first = np.unique(block.symbol[present], return_index=True)
    tokens: Ints = block.tokens[present][first]
    if len(symbols) != int(symbols[-1]) + 1:
        raise ValueError("symbols are not numbered from 0 without gaps")
    return tokens


def _agreeing_sets(tokens: Ints, noise: float) -> tuple[Ints, Floats]:
    """For every symbol and pattern of edits a number for the set of symbols that agree with the rest of the block.

    Returns:
        sets: shape (symbols, 2^L), equal numbers for equal sets. Rests of blocks and sets are told apart by sums of
            random 64-bit numbers of their parts: of some 10^5 of them two are equal by chance with probability 10^-9.
        probs: of the patterns, shape (2^L,).
    """
    symbols, length = tokens.shape
    rng = np.random.default_rng(0)
    marks = rng.integers(1 << 63, size=symbols, dtype=np.uint64)
    names = np.unique(tokens, return_inverse=True)[1].reshape(tokens.shape)
    of_token = rng.integers(1 << 63, size=(length, int(names.max()) + 1), dtype=np.uint64)[np.arange(length), names]
    sets = np.empty((symbols, 1 << length), dtype=np.uint64)
    probs = np.empty(1 << length)
    for pattern in range(1 << length):
        kept = [place for place in range(length) if not pattern >> place & 1]
        group = np.unique(of_token[:, kept].sum(1, dtype=np.uint64), return_inverse=True)[1]
        total = np.zeros(int(group.max()) + 1, dtype=np.uint64)
        np.add.at(total, group, marks)
        sets[:, pattern] = total[group]
        probs[pattern] = noise ** pattern.bit_count() * (1 - noise) ** (length - pattern.bit_count())
    number: Ints = np.unique(sets, return_inverse=True)[1].reshape(sets.shape)
    return number, probs

"""What an observer without the key can see: exact total variation of messages, of whole texts, of the real model."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from wm_env.information import entropy, total_variation
from wm_env.law import BlockLaw, advance, occupations, state_reach
from wm_env.tree import StateTree

_LARGEST = 4e9
"""Most terms of a sum over texts."""


def message_laws(channel: Tensor, pad_bits: int) -> Tensor:
    """P~^m(x|s), the law of a block with message m averaged over the keys, shape (N, 2^(l - pad_bits), Q).

    Messages that differ only in padded bits have the same law, so there is one row for each value of the other bits.

    Args:
        channel: P(x | w, e, s), shape (N, 2^l, E, Q).
        pad_bits: leading bits of the word under the pad.
    """
    averaged = channel.mean(2)
    return averaged.reshape(len(channel), 1 << pad_bits, -1, channel.shape[3]).mean(1)


def message_variations(law: BlockLaw, laws: Tensor) -> Tensor:
    """TV(m) = V(P~^m Z, P Z) for every row of `message_laws`, shape (2^(l - pad_bits),), each in [0, 1]."""
    return law.state_probs @ total_variation(laws, law.cover[:, None, :])


def text_variation(tree: StateTree, laws: Sequence[Tensor]) -> float | None:
    """V(coded text, model's text) over whole texts, keys drawn anew for every block, averaged over all messages.

    Exact: a sum over all paths of the tree and all messages. None if the sum has more than 4e9 terms. `laws` are the
    `message_laws` of every block.
    """
    messages = math.prod(law.shape[1] for law in laws)
    if messages * laws[-1].shape[0] * laws[-1].shape[2] > _LARGEST:
        return None
    prior = torch.from_numpy(tree.prior)
    (plain,) = _last_masses(tree, [torch.from_numpy(block.cover)[:, None] for block in tree.blocks], prior)
    cover = (plain[:, None] * torch.from_numpy(tree.blocks[-1].cover))[:, None]
    differences = [
        total_variation(mass[:, None, None] * laws[-1], cover, (0, 2)).mean()
        for mass in _last_masses(tree, laws, prior)
    ]
    return float(torch.stack(differences).mean())


def _last_masses(tree: StateTree, laws: Sequence[Tensor], mass: Tensor, number: int = 0) -> Iterator[Tensor]:
    """The law of the last block's state, shape (N,), for all messages of the blocks before it, one after the other.

    `mass` is the law of the state of block `number`. The messages are gone through in depth, so that few laws are held.
    """
    if number + 1 == len(tree.blocks):
        yield mass
        return
    child, states = torch.from_numpy(tree.blocks[number].child), len(tree.blocks[number + 1].cover)
    for message in range(laws[number].shape[1]):
        yield from _last_masses(tree, laws, advance(mass, laws[number][:, message], child, states), number + 1)


def retained_mass(tree: StateTree) -> float:
    """Probability under the untruncated model that a text stays inside the tree, in [0, 1]."""
    reach = occupations(tree, [block.retained[:, None] * block.cover for block in tree.blocks])
    return float(reach[-1] @ tree.blocks[-1].retained)


def untruncated_bound(tree: StateTree, text: float | None) -> float | None:
    """Bound on the TV between coded text and the text of the untruncated model, in [0, 1].

    The tree's texts are 1 - (retained mass) away from the model's, plus what the code adds. Candidates of a sampled
    pool are drawn from the model: averaged over the pools the tree's texts are the model's, and the mean of the code's
    own TV over the pools is the bound. One tree is one pool, so its TV is a sample of that mean.
    """
    if text is None:
        return None
    return text if tree.meta.pool == "sampled" else min(1.0, text + 1 - retained_mass(tree))


def average_entropy(tree: StateTree) -> float:
    """H(X|S) of the model's own law in bits per block, averaged over states and blocks."""
    values = [
        float(torch.from_numpy(reach) @ entropy(torch.from_numpy(block.cover)))
        for block, reach in zip(tree.blocks, state_reach(tree), strict=True)
    ]
    return float(np.mean(values))

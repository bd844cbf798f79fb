"""The highest rate under a budget for the total variation of whole texts, instead of the sum over blocks.

An observer reads the whole text. Its total variation, E over prompts of V(q(x_1..x_B | s_1), p(x_1..x_B | s_1)), is at
most the sum of the blocks' and often far less, so a budget for the text buys more. Where every state has one path that
leads to it, any law of whole texts is a policy by the chain rule, and its rate sum_b H(X_b|S_b) is the entropy of the
text given the prompt. So the optimum is that of one block whose candidates are the texts (`wm_env.optimum`): the texts'
probabilities clipped between two levels.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from wm_env.common.arrays import Floats, Ints
from wm_env.optimum import Optimum, check_budget, solve_blocks
from wm_env.tree import StateTree

MOST_TEXTS = 1 << 23
"""Most texts of a tree, padded ones included: a few arrays of as many numbers are in memory."""


def solve_text(tree: StateTree, epsilon: float) -> Optimum:
    """The highest rate of any law whose whole texts are within `epsilon` of the model's own in total variation.

    `cost` is the total variation of the text, `rate` in bits per text.

    Raises:
        ValueError: a negative budget, a tree with too many texts, or one in which several paths lead to a state.
    """
    check_budget(epsilon, 1.0)
    texts = len(tree.prior) * tree.meta.candidates ** len(tree.blocks)
    if texts > MOST_TEXTS:
        raise ValueError(f"{texts:.3g} texts: a budget for whole texts is planned for at most {MOST_TEXTS:.3g}")
    cover, states = texts_of(tree, [block.cover for block in tree.blocks])
    found = solve_blocks(tree.prior, [cover], [np.full(cover.shape, -1)], epsilon)
    return Optimum(_marginals(tree, found.marginals[0].numpy(), states), found.multiplier, found.rate, found.cost)


def texts_of(tree: StateTree, laws: Sequence[Floats]) -> tuple[Floats, list[Ints]]:
    """The law of whole texts: q(text | prompt), shape (N, Q^B), and the states behind the beginnings of texts.

    Args:
        laws: q(x|s) of the first blocks, one (N, Q) for each; as many blocks are followed.

    Returns:
        The law, and for every block the states, shape (N, Q^(b-1)), -1 where there is none.

    Raises:
        ValueError: several paths lead to one state.
    """
    prompts = len(tree.prior)
    probs, states = np.ones((prompts, 1)), [np.arange(prompts)[:, None]]
    for number, (block, law) in enumerate(zip(tree.blocks, laws, strict=False)):
        here = states[-1]
        probs = (probs[:, :, None] * np.where(here[:, :, None] >= 0, law[here], 0)).reshape(prompts, -1)
        if number + 1 < len(laws):
            child = np.where(here[:, :, None] >= 0, block.child[here], -1)
            reached = child[child >= 0]
            if len(np.unique(reached)) < len(reached):
                raise ValueError("several paths lead to one state: a budget for whole texts has no plan there")
            states.append(child.reshape(prompts, -1))
    return probs, states


def _marginals(tree: StateTree, law: Floats, states: list[Ints]) -> tuple[Tensor, ...]:
    """q(x|s) of every block from the law of texts; the cover in states that no text reaches."""
    marginals = []
    for block, here in zip(tree.blocks, states, strict=True):
        mass = law.reshape(*here.shape, block.cover.shape[1], -1).sum(3)
        total = mass.sum(2, keepdims=True)
        marginal = block.cover.copy()
        used = (here >= 0) & (total[:, :, 0] > 0)
        marginal[here[used]] = (mass / np.where(total > 0, total, 1))[used]
        marginals.append(torch.from_numpy(marginal))
    return tuple(marginals)

"""Small trees that several tests share."""

import dataclasses

import numpy as np

from wm_env.synthetic import synthetic_tree
from wm_env.tree import StateTree, check_tree, number_symbols


def uneven_tree(
    prompts: int = 2, blocks: int = 2, candidates: int = 6, overlap: float = 0.5, seed: int = 0
) -> StateTree:
    """A synthetic tree whose states have 1 to Q candidates: the others are padded, and their subtrees are gone."""
    tree = synthetic_tree(prompts, blocks, candidates, entropy=0.8 * np.log2(candidates), overlap=overlap, seed=seed)
    rng = np.random.default_rng(seed)
    rows = np.arange(prompts)
    kept_blocks = []
    for block in tree.blocks:
        states = len(rows)
        gone = np.arange(candidates) >= rng.integers(1, candidates + 1, size=states)[:, None]
        gone = rng.permuted(gone, axis=1)
        cover = np.where(gone, 0.0, block.cover[rows])
        child = np.where(gone, -1, block.child[rows])
        rows = child[child >= 0]
        child[child >= 0] = np.arange(len(rows))
        text = tuple(
            tuple(b"" if absent else text for text, absent in zip(row, flags, strict=True))
            for row, flags in zip(block.text[:states], gone, strict=True)
        )
        kept_blocks.append(
            dataclasses.replace(
                block,
                cover=cover / cover.sum(1, keepdims=True),
                log2_prob=np.where(gone, -np.inf, np.log2(np.where(gone, 1.0, cover))),
                symbol=number_symbols(text),
                child=child,
                tokens=np.where(gone[:, :, None], -1, block.tokens[:states]),
                retained=np.ones(states),
                exact=np.ones(states, dtype=bool),
                text=text,
            )
        )
    uneven = dataclasses.replace(tree, blocks=tuple(kept_blocks))
    check_tree(uneven)
    return uneven

"""Synthetic trees: any number of states, any entropy, any overlap of candidate sets. No language model needed."""

import numpy as np
from scipy.optimize import brentq
from scipy.special import softmax
from scipy.stats import entropy as scipy_entropy

from wm_env.common.arrays import Floats, Ints
from wm_env.tree import StateTree, TreeBlock, TreeMeta, check_tree, number_symbols


def synthetic_tree(
    prompts: int,
    blocks: int = 2,
    candidates: int = 20,
    block_length: int = 8,
    entropy: float = 4.0,
    overlap: float = 0.0,
    seed: int = 0,
) -> StateTree:
    """A tree of `prompts` equally likely prompts whose states all have H(X|S=s) = `entropy` bits.

    Every cover is softmax(a g) with g standard normal and the scale a solved for the entropy. Of the Q candidates of a
    state, round(overlap * Q) are common to all states of the block, the others are its own.

    Raises:
        ValueError: an entropy that Q candidates cannot have or that leaves some of them without probability, an overlap
            outside [0, 1], sizes below 1, or a block length that is not a power of two.
    """
    if min(prompts, blocks, candidates) < 1:
        raise ValueError("prompts, blocks and candidates must be at least 1")
    if not 0 <= overlap <= 1:
        raise ValueError(f"overlap={overlap}: a fraction between 0 and 1 is needed")
    if not 0 < entropy <= np.log2(candidates):
        raise ValueError(
            f"entropy={entropy}: {candidates} candidates allow 0 < entropy <= {np.log2(candidates):.3f} bits"
        )
    rng = np.random.default_rng(seed)
    sizes = [prompts * candidates**number for number in range(blocks)]
    tree = StateTree(
        blocks=tuple(
            _synthetic_block(states, number == blocks - 1, candidates, block_length, entropy, overlap, rng)
            for number, states in enumerate(sizes)
        ),
        prior=np.full(prompts, 1 / prompts, dtype=np.float64),
        prompts=tuple(f"prompt {number}" for number in range(prompts)),
        meta=TreeMeta(
            model="synthetic",
            model_fingerprint=f"entropy={entropy!r} overlap={overlap!r}",
            tokenizer_fingerprint="none",
            block_length=block_length,
            candidates=candidates,
            temperature=1.0,
            pool="synthetic",
            seed=seed,
        ),
    )
    check_tree(tree)
    return tree


def gaussian_pmf(candidates: int, entropy: float, rng: np.random.Generator) -> Floats:
    """softmax(a g), g standard normal, with a >= 0 such that the entropy is `entropy` bits; sorted downwards."""
    scores = np.sort(rng.standard_normal(candidates))[::-1]
    if candidates == 1 or entropy >= np.log2(candidates) - 1e-12:
        return np.full(candidates, 1 / candidates)

    def excess(scale: float) -> float:
        return float(scipy_entropy(softmax(scale * scores), base=2)) - entropy

    upper = 1.0
    while excess(upper) > 0:
        upper *= 2
    pmf: Floats = softmax(brentq(excess, 0.0, upper, xtol=1e-13) * scores)
    return pmf


def _synthetic_block(
    states: int,
    last: bool,
    candidates: int,
    block_length: int,
    entropy: float,
    overlap: float,
    rng: np.random.Generator,
) -> TreeBlock:
    shared = round(overlap * candidates)
    own = candidates - shared
    ids = np.empty((states, candidates), dtype=np.int64)
    for state in range(states):
        names = np.concatenate([np.arange(shared), shared + state * own + np.arange(own)])
        ids[state] = rng.permutation(names)
    tokens = _digits(ids, block_length)
    cover = np.stack([gaussian_pmf(candidates, entropy, rng) for _ in range(states)])
    if not cover.all():
        raise ValueError(f"entropy={entropy}: some of {candidates} candidates would have probability 0; take more")
    child = np.full(ids.shape, -1) if last else np.arange(ids.size).reshape(ids.shape)
    text = tuple(tuple(f"<{name}>".encode() for name in row) for row in ids)
    return TreeBlock(
        cover=cover,
        log2_prob=np.log2(cover),
        symbol=number_symbols(text),
        child=child,
        tokens=tokens,
        retained=np.ones(states),
        exact=np.ones(states, dtype=bool),
        text=text,
    )


def _digits(ids: Ints, length: int) -> Ints:
    """Write every id as a token block of `length` digits, most significant first, in the smallest base that fits."""
    used = min(length, 6)
    base = int((int(ids.max()) + 1) ** (1 / used)) + 1
    digits = np.zeros((*ids.shape, length), dtype=np.int64)
    digits[..., length - used :] = ids[..., None] // base ** np.arange(used)[::-1] % base
    return digits

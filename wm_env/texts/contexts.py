"""Where a text can go: contexts, their covers, and what follows from a candidate. Sources of `CovertWatermarkText-v0`.

A source never lists its contexts: a text of 64 blocks with 20 candidates each has 20^64 of them. A tree and a chain
look them up in tables; a language model computes them when a text gets there, and keeps the latest.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from wm_env.common.arrays import Floats, Ints
from wm_env.optimum import RateBound, rate_of_labels, solve_blocks
from wm_env.synthetic import gaussian_pmf
from wm_env.tree import StateTree


class Contexts(Protocol):
    """What a text environment needs to know of a language model.

    Attributes:
        candidates: Q, the most candidates of a context.
        block_length: L.
        depth: most blocks of a text, None where there is no end.
        fingerprint: what tells this source from others.
    """

    candidates: int
    block_length: int
    fingerprint: str

    @property
    def depth(self) -> int | None:
        """See the class."""

    def start(self, uniform: float) -> Hashable:
        """The context of the prompt at this point, in [0, 1), of the prior's distribution function."""

    def covers(self, contexts: Sequence[Hashable]) -> Floats:
        """P(x|s) of some contexts at one block, shape (n, Q), float64; zero where a context has no such candidate."""

    def follow(self, context: Hashable, candidate: int) -> Hashable:
        """The context after a candidate."""

    def bound(self, blocks: int, labels: int, epsilon: float, gamma: float) -> RateBound:
        """What the expected sum of discounted rates of no policy within the budget exceeds, in bits."""


class TreeContexts:
    """The states of a tree: a context is its block and its row there."""

    def __init__(self, tree: StateTree):
        self.tree = tree
        self.candidates, self.block_length, self.depth = tree.meta.candidates, tree.block_length, len(tree.blocks)
        self.fingerprint = tree.fingerprint
        self._above = np.cumsum(tree.prior)

    def start(self, uniform: float) -> tuple[int, int]:
        """See `Contexts`."""
        return 0, min(int(np.searchsorted(self._above, uniform, side="right")), len(self._above) - 1)

    def covers(self, contexts: Sequence[Hashable]) -> Floats:
        """See `Contexts`."""
        places = np.array(contexts)
        covers: Floats = self.tree.blocks[places[0, 0]].cover[places[:, 1]]
        return covers

    def follow(self, context: Hashable, candidate: int) -> tuple[int, int]:
        """See `Contexts`."""
        assert isinstance(context, tuple)
        number, row = context
        return number + 1, int(self.tree.blocks[number].child[row, candidate])

    def bound(self, blocks: int, labels: int, epsilon: float, gamma: float) -> RateBound:
        """The optimum of the tree's first blocks. Exact where every candidate of a state has a label."""
        used = self.tree.blocks[:blocks]
        children = [block.child for block in used]
        optimum = solve_blocks(self.tree.prior, [block.cover for block in used], children, epsilon, gamma)
        return rate_of_labels(optimum.rate, blocks, labels, gamma, exact=labels >= self.candidates)


@dataclass(frozen=True)
class Chain:
    """A stationary source: finitely many kinds of contexts, the same at every block.

    Attributes:
        prior: law of the first kind, shape (K,).
        cover: P(x|k), shape (K, Q), rows sum to 1.
        child: the kind after (k, x), shape (K, Q), int64.
        block_length: L.
    """

    prior: Floats
    cover: Floats
    child: Ints
    block_length: int = 8


def random_chain(kinds: int, candidates: int, entropy: tuple[float, float] = (2.0, 4.0), seed: int = 0) -> Chain:
    """A chain whose kinds have entropies spread evenly over a range in bits, with random covers and successors.

    Raises:
        ValueError: an entropy that so many candidates cannot have, or sizes below 1.
    """
    if kinds < 1 or candidates < 1:
        raise ValueError("kinds and candidates must be at least 1")
    if not 0 < entropy[0] <= entropy[1] <= np.log2(candidates):
        raise ValueError(
            f"entropy={entropy}: {candidates} candidates allow 0 < entropy <= {np.log2(candidates):.3f} bits"
        )
    rng = np.random.default_rng(seed)
    cover = np.stack([gaussian_pmf(candidates, float(bits), rng) for bits in np.linspace(*entropy, kinds)])
    return Chain(np.full(kinds, 1 / kinds), cover, rng.integers(kinds, size=(kinds, candidates)))


class ChainContexts:
    """The kinds of a chain; a context is its kind."""

    def __init__(self, chain: Chain, fingerprint: str):
        self.chain, self.fingerprint = chain, fingerprint
        self.candidates, self.block_length, self.depth = chain.cover.shape[1], chain.block_length, None
        self._above = np.cumsum(chain.prior)

    def start(self, uniform: float) -> int:
        """See `Contexts`."""
        return min(int(np.searchsorted(self._above, uniform, side="right")), len(self._above) - 1)

    def covers(self, contexts: Sequence[Hashable]) -> Floats:
        """See `Contexts`."""
        covers: Floats = self.chain.cover[np.array(contexts)]
        return covers

    def follow(self, context: Hashable, candidate: int) -> int:
        """See `Contexts`."""
        assert isinstance(context, int)
        return int(self.chain.child[context, candidate])

    def bound(self, blocks: int, labels: int, epsilon: float, gamma: float) -> RateBound:
        """The optimum over all policies. Exact where every candidate has a label."""
        chain = self.chain
        optimum = solve_blocks(chain.prior, [chain.cover] * blocks, [chain.child] * blocks, epsilon, gamma)
        return rate_of_labels(optimum.rate, blocks, labels, gamma, exact=labels >= self.candidates)

"""The action space: for every state a law over labels and, for every label, a law over candidates."""

from typing import Any

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector.utils import batch_space, iterate
from numpy.typing import NDArray

TOLERANCE = 1e-4
"""How far from 1 the sum of a row may be: float32 softmax rows of 131,072 entries are off by 1e-5."""


class ProductOfSimplices(Box):
    """Arrays of shape (..., N, M, 1 + Q) in [0, 1] that hold N laws over M labels and N * M laws over Q candidates.

    Entry [s, u, 0] is P(u|s), a law over u; [s, u, 1:] is W(.|u,s), a law over candidates. A `Box`, so that every
    library takes it for a continuous action; but `sample` draws uniformly from the simplices and `contains` checks
    them, sums within `TOLERANCE`.
    """

    def __init__(
        self,
        states: int,
        labels: int,
        candidates: int,
        *,
        batch: tuple[int, ...] = (),
        seed: int | np.random.Generator | None = None,
    ):
        self.states, self.labels, self.candidates, self.batch = states, labels, candidates, batch
        super().__init__(0.0, 1.0, (*batch, states, labels, 1 + candidates), np.float32, seed)

    def sample(self, mask: None = None, probability: None = None) -> NDArray[np.float32]:
        """Draw every law uniformly from its simplex; shape (..., N, M, 1 + Q), float32."""
        if mask is not None or probability is not None:
            raise ValueError("ProductOfSimplices.sample takes no mask and no probability")
        draw = self.np_random.standard_exponential(self.shape)
        return join_laws(_normalised(draw[..., 0]), _normalised(draw[..., 1:]))

    def contains(self, x: Any) -> bool:
        """Whether `x` is a float32 array of this shape whose laws are >= 0 and sum to 1 within `TOLERANCE`."""
        if not super().contains(x):
            return False
        p_label, p_candidate = split_laws(np.asarray(x, dtype=np.float64))
        return bool(_is_law(p_label).all() and _is_law(p_candidate).all())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProductOfSimplices) and self.shape == other.shape

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        batch = f", batch={self.batch}" if self.batch else ""
        return f"ProductOfSimplices(states={self.states}, labels={self.labels}, candidates={self.candidates}{batch})"


def join_laws(p_label: NDArray[Any], p_candidate: NDArray[Any]) -> NDArray[np.float32]:
    """P(u|s) of shape (..., N, M) and W(x|u,s) of shape (..., N, M, Q) -> one action (..., N, M, 1 + Q), float32."""
    return np.concatenate([p_label[..., None], p_candidate], axis=-1).astype(np.float32)


def split_laws(action: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """One action (..., N, M, 1 + Q) -> P(u|s) of shape (..., N, M) and W(x|u,s) of shape (..., N, M, Q)."""
    return action[..., 0], action[..., 1:]


def _normalised(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    normalised: NDArray[np.float64] = weights / weights.sum(-1, keepdims=True)
    return normalised


def _is_law(rows: NDArray[np.float64]) -> NDArray[np.bool_]:
    law: NDArray[np.bool_] = (rows >= 0).all(-1) & (abs(rows.sum(-1) - 1) <= TOLERANCE)
    return law


@batch_space.register(ProductOfSimplices)
def _batch_simplices(space: ProductOfSimplices, n: int = 1) -> ProductOfSimplices:
    seed = np.random.default_rng(space.np_random.integers(2**63))
    return ProductOfSimplices(space.states, space.labels, space.candidates, batch=(n, *space.batch), seed=seed)


@iterate.register(ProductOfSimplices)
def _iterate_simplices(space: ProductOfSimplices, items: NDArray[Any]) -> Any:  # type: ignore[misc]
    return iter(items)

"""How much a token says: the likelihood ratio of its uniform number, for a receiver that has no model.

The sender says the token x that minimises s(x) / p(x), where s = -ln(1 - v) and v is the uniform number of (place, x,
payload). Given that x was said, s(x) is exponential with rate 1/p(x); the s of any other payload, place or key is
exponential with rate 1. The receiver does not know p, so f, a mixture of exponentials over what p usually is, takes its
place; log2 f(s) / e^-s is the evidence in bits. f may depend on anything but the key: here on the kind of token
(`polar.text.schemes.robust.words`) and on how freely the text was sampled.

The ratio is averaged over cells of v, so that its mean over a uniform v is exactly 1 in every cell table: whatever f
is, evidence against the key is an e-value, never more than chance allows.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from polar.text.schemes.robust.randomness import Words
from wm_env.common.arrays import Floats, Ints

Singles = NDArray[np.float32]

_CELL_BITS = 5
"""Cells of each octave of v, as a power of two."""

_SHIFT = 23 - _CELL_BITS
_FIRST = 127 << _CELL_BITS
_CELLS = 64 << _CELL_BITS


def cells(words: Words) -> NDArray[np.int32]:
    """The cell of each word's v: 32 for each octave, the last ones around v = 1."""
    index = (words.astype(np.float32).view(np.int32) >> _SHIFT) - _FIRST
    return np.clip(index, 0, _CELLS - 1, out=index)


def race_times(words: Words) -> Floats:
    """s = -ln(1 - v) of each word: exponential with rate 1, exact near 0, where the winners are."""
    times: Floats = -np.log1p(-((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53)
    return times


def _lead_edges() -> Floats:
    """Edges of cells of the leading 16 bits: whole numbers, 32 cells for each octave where there are as many."""
    octaves = np.exp2(np.arange(16 << _CELL_BITS) / (1 << _CELL_BITS))
    return np.unique(np.concatenate([[0, 1 << 16], np.floor(octaves)]))


_LEAD_EDGES = _lead_edges()
LEAD_CELL = (np.searchsorted(_LEAD_EDGES, np.arange(1 << 16), side="right") - 1).astype(np.int32)
"""The cell of each lead, shape (2^16,)."""


@dataclass(frozen=True)
class Likelihood:
    """Tables of the likelihood ratio, for every kind of token and cell of v.

    Attributes:
        cell_ratio: of whole numbers, shape (kinds, cells).
        lead_ratio: of the leading 16 bits, shape (kinds, cells).
    """

    cell_ratio: Singles
    lead_ratio: Singles


def make_likelihood(masses: Floats, weights: Floats) -> Likelihood:
    """The tables for the densities f_k(s) = sum_g w_kg exp(-s / p_g) / p_g, one for each kind k of token.

    Args:
        masses: p_g, values of the model's probability p(x) of a token that was written, in (0, 1], shape (G,).
        weights: w_kg, the share of written tokens of kind k with p(x) = p_g, shape (kinds, G); rows sum to 1.
    """
    cell = np.arange(_CELLS + 1)
    edges = np.exp2((cell >> _CELL_BITS) - 64.0) * (1 + (cell & ((1 << _CELL_BITS) - 1)) / (1 << _CELL_BITS))
    edges[0], edges[-1] = 0.0, 1.0
    return Likelihood(_mean_ratio(masses, weights, edges), _mean_ratio(masses, weights, _LEAD_EDGES / (1 << 16)))


def load_likelihoods() -> tuple[Likelihood, ...]:
    """The tables that come with the package: for texts sampled freely, and at a low temperature.

    `benchmarks/robust_likelihood.py` makes their weights from plain texts of the embedded model.
    """
    with np.load(Path(__file__).with_name("likelihood.npz"), allow_pickle=False) as stored:
        masses, weights = stored["masses"], stored["weights"]
    return tuple(make_likelihood(masses, table / table.sum(axis=1, keepdims=True)) for table in weights)


def _mean_ratio(masses: Floats, weights: Floats, edges: Floats) -> Singles:
    """Mass of each cell of v under f over its mass under the uniform law."""
    with np.errstate(divide="ignore"):
        times = -np.log1p(-edges)
    below = -np.expm1(-times / masses[:, None])
    ratio: Singles = (weights @ np.diff(below, axis=1) / np.diff(edges)).astype(np.float32)
    return ratio


def word_ratios(likelihood: Likelihood, kinds: Ints, words: Words) -> Singles:
    """The ratio of every number; `kinds`, that of the token, broadcasts with `words`."""
    index = cells(words) + (kinds * _CELLS).astype(np.int32)
    return likelihood.cell_ratio.reshape(-1).take(index, mode="clip")


def lead_ratios(likelihood: Likelihood, kinds: Ints | int, leads: NDArray[np.uint16]) -> Singles:
    """The ratio of the leading 16 bits of pilots; `kinds`, that of the token, broadcasts with `leads`."""
    index = LEAD_CELL.take(leads, mode="clip") + np.int32(len(_LEAD_EDGES) - 1) * np.asarray(kinds, dtype=np.int32)
    return likelihood.lead_ratio.reshape(-1).take(index, mode="clip")

"""Random laws that several tests share."""

import numpy as np
import torch

from wm_env.law import BlockLaw, JointLaw, roll_out
from wm_env.tree import StateTree


def random_law(tree: StateTree, labels: int, seed: int, sparse: bool = False) -> JointLaw:
    """A law with random conditionals on the support of the cover; `sparse` ones have labels of probability 0."""
    rng = np.random.default_rng(seed)

    def policy(number, _):
        cover = tree.blocks[number].cover
        states, candidates = cover.shape
        p_label = rng.dirichlet(np.ones(labels), size=states)
        if sparse:
            p_label = np.where(rng.random(p_label.shape) < 0.6, 0, p_label)
            p_label[np.arange(states), rng.integers(labels, size=states)] += 0.5
            p_label /= p_label.sum(1, keepdims=True)
        weights = rng.gamma(0.4, size=(states, labels, candidates)) * (cover > 0)[:, None]
        weights += 1e-6 * (cover > 0)[:, None]
        return torch.from_numpy(p_label), torch.from_numpy(weights / weights.sum(2, keepdims=True))

    return roll_out(tree, policy)


def noiseless_law(states: int, labels: int, seed: int) -> BlockLaw:
    """Label u of state s is sent as a symbol of its own: Q = M candidates, all labels different in every state."""
    rng = np.random.default_rng(seed)
    place = np.stack([rng.permutation(labels) for _ in range(states)])
    p_label = torch.from_numpy(rng.dirichlet(np.ones(labels), size=states))
    p_candidate = torch.zeros(states, labels, labels, dtype=torch.float64)
    p_candidate.scatter_(2, torch.from_numpy(place)[:, :, None], 1.0)
    symbol = torch.from_numpy(np.arange(states)[:, None] * labels + np.argsort(place, axis=1))
    # All states share the symbols of equal labels: the decoder needs no state.
    symbol = torch.from_numpy(np.argsort(place, axis=1)) if seed % 2 else symbol
    cover = torch.einsum("nm,nmq->nq", p_label, p_candidate)
    return BlockLaw(torch.from_numpy(rng.dirichlet(np.ones(states))), cover, symbol, p_label, p_candidate)


def bits_of(label: int, block_length: int) -> list[int]:
    """V of a label number."""
    return [int(digit) for digit in format(label, f"0{block_length}b")]


def word_of(label: int, block_length: int, positions: tuple[int, ...]) -> int:
    """Value of V on some positions, the first one most significant."""
    return int("0" + "".join(str(bits_of(label, block_length)[position]) for position in positions), 2)

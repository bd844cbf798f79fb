"""A place for every candidate of a state, the same place for the same token block in every state.

The heads of the policy have one column per place. Where states share token blocks, they can then agree on the labels
of these from the start; otherwise X would tell the decoder less about U than about S.
"""

import numpy as np

from wm_env.common.arrays import Ints
from wm_env.labels.colouring import colour_candidates
from wm_env.tree import TreeBlock


def candidate_slots(block: TreeBlock) -> Ints:
    """Slot 0..Q-1 of every candidate, shape (N, Q), each row a permutation; equal symbols have equal slots.

    Where a proper colouring needs more than Q colours, the candidates of the further colours take what their state has
    left, and padded candidates take the rest.
    """
    slot = colour_candidates(block)
    states, candidates = slot.shape
    slot[slot >= candidates] = -1
    used = np.zeros((states, candidates), dtype=np.bool_)
    state, place = np.nonzero(slot >= 0)
    used[state, slot[state, place]] = True
    unused = np.argsort(used, axis=1, kind="stable")
    homeless = np.where(slot >= 0, 2, np.where(block.cover > 0, 0, 1))
    order = np.argsort(homeless, axis=1, kind="stable")
    rank = np.argsort(order, axis=1)
    return np.where(slot >= 0, slot, np.take_along_axis(unused, rank, axis=1))

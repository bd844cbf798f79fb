"""One label for every candidate: the family of laws in which U is a function of X.

A law of this family is a marginal q(x|s) and a labelling u = f(x) that every state shares. The decoder reads U off X,
so I(U;X) - I(U;S) = H(U|S), and if f is injective on the candidates of every state that is H_q(X|S), the most that any
law with this marginal has (see `wm_env.optimum`). So an agent that acts in this family needs N Q numbers instead of N M
(1 + Q), and loses nothing as long as the labels suffice for a proper colouring.
"""

import torch
from torch import Tensor

from wm_env.information import entropy
from wm_env.labels.colouring import colour_candidates
from wm_env.tree import TreeBlock


def label_candidates(block: TreeBlock, labels: int) -> Tensor:
    """The label f(x) of every candidate, shape (N, Q), int64 in 0..labels-1; -1 where the cover is 0.

    The colour of `wm_env.labels.colouring.colour_candidates`, modulo `labels` if these are too few; then some
    candidates of a state share a label, and the rate is that of the label.
    """
    colour = torch.from_numpy(colour_candidates(block))
    return torch.where(colour >= 0, colour % labels, -1)


def is_injective(label: Tensor) -> bool:
    """Whether no two candidates of a state have the same label, shape (N, Q), -1 for no candidate."""
    ordered = label.sort(1).values
    return not bool(((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any())


def label_law(marginal: Tensor, label: Tensor, cover: Tensor, labels: int) -> tuple[Tensor, Tensor]:
    """P(u|s), shape (N, M), and W(x|u,s), shape (N, M, Q), of the marginal q(x|s) under a labelling.

    P(u|s) = sum of q(x|s) over the x with f(x) = u, and W(x|u,s) = q(x|s) / P(u|s) there. Labels that a state does not
    use have probability 0 and, as their W, the cover.

    Args:
        marginal: q(x|s), shape (N, Q), rows sum to 1, zero where the cover is.
        label: f(x), shape (N, Q), -1 where the cover is zero.
        cover: P(x|s), shape (N, Q).
        labels: M.
    """
    state, candidate = (label >= 0).nonzero(as_tuple=True)
    chosen, weight = label[state, candidate], marginal[state, candidate]
    joint = marginal.new_zeros(len(marginal), labels, marginal.shape[1])
    joint[state, chosen, candidate] = weight
    p_label = marginal.new_zeros(len(marginal), labels).index_put_((state, chosen), weight, accumulate=True)
    used = (p_label > 0)[..., None]
    return p_label, torch.where(used, joint / p_label[..., None].where(used, 1), cover[:, None])


def label_entropy(marginal: Tensor, label: Tensor, labels: int) -> Tensor:
    """H(U|S=s) in bits, shape (N, ...), of marginals of shape (N, Q, ...) under a labelling of shape (N, Q).

    Where the labelling is injective on the candidates of every state, this is H(X|S=s).
    """
    place = label.clamp_min(0).reshape(*label.shape, *(1 for _ in marginal.shape[2:])).expand_as(marginal)
    p_label = marginal.new_zeros(len(marginal), labels, *marginal.shape[2:]).scatter_add_(1, place, marginal)
    return entropy(p_label, 1)

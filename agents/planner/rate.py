"""The exact optimum as a joint law: the best marginals of `wm_env.optimum`, with a proper colouring as labels."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from wm_env.coded import label_bits
from wm_env.common.arrays import Ints
from wm_env.common.foreign.torch_settings import usual_torch
from wm_env.criteria.costs import TOTAL_VARIATION, Cost
from wm_env.labels.colouring import colour_candidates, fewest_colours
from wm_env.labels.labelling import label_law
from wm_env.law import JointLaw, roll_out
from wm_env.optimum import Optimum, solve
from wm_env.tree import StateTree


@dataclass(frozen=True)
class Plan:
    """A law with what it is worth.

    Attributes:
        law: P(S,U,X) of every block.
        multiplier: beta, bits of rate per unit of budget; 0 where the budget does not bind.
        rate: sum_b gamma^b r_b in bits, b = 1..B.
        cost: sum_b gamma^b c_b.
    """

    law: JointLaw
    multiplier: float
    rate: float
    cost: float


@usual_torch()
def plan(
    tree: StateTree, epsilon: float, gamma: float = 1.0, labels: int | None = None, cost: Cost = TOTAL_VARIATION
) -> Plan:
    """The law with the highest rate of all laws whose cost is at most `epsilon`.

    P(u|s) = q(x) at the colour u of candidate x, W(x|u,s) = 1 there. Labels that a state does not use have
    probability 0 and, as their W, the cover.

    Args:
        tree: the states and their covers.
        epsilon: bound on sum_b gamma^b c_b, b = 1..B; 0 gives the cover itself.
        gamma: discount, in (0, 1].
        labels: M, a power of two; by default the smallest that suffices for the colouring.
        cost: c.

    Raises:
        ValueError: a negative budget, a discount outside (0, 1], labels that are no power of two, or too few of them.
    """
    return plan_optimum(tree, solve(tree, epsilon, gamma, cost), labels)


@usual_torch()
def plan_optimum(tree: StateTree, optimum: Optimum, labels: int | None = None) -> Plan:
    """The law of an optimum's marginals, labelled as `plan` does; arguments and errors as there."""
    colours = [colour_candidates(block) for block in tree.blocks]
    count = _enough_labels(tree, colours, labels)
    policies = [
        label_law(marginal, torch.as_tensor(colour), torch.as_tensor(block.cover), count)
        for marginal, colour, block in zip(optimum.marginals, colours, tree.blocks, strict=True)
    ]
    law = roll_out(tree, lambda number, _: policies[number])
    return Plan(law, optimum.multiplier, optimum.rate, optimum.cost)


def _enough_labels(tree: StateTree, colours: Sequence[Ints], labels: int | None) -> int:
    needed = max(int(colour.max()) + 1 for colour in colours)
    count = 1 << (needed - 1).bit_length() if labels is None else labels
    bits = label_bits(count)
    if bits > tree.block_length:
        raise ValueError(
            f"labels={count}: blocks of {tree.block_length} tokens have at most {2**tree.block_length} words"
        )
    if count < needed:
        fewest = max(fewest_colours(block) for block in tree.blocks)
        raise ValueError(
            f"labels={count} are too few: the candidates of a state need different labels, at least {fewest}, "
            f"and a labelling with {needed} was found; use labels={1 << (needed - 1).bit_length()}"
        )
    return count

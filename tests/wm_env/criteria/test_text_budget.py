"""The optimum for a budget of whole texts: a general solver, the exact variation of its law, and the sum of blocks."""

import cvxpy
import numpy as np
import pytest
import torch
from small_trees import uneven_tree

from wm_env.criteria.text_budget import solve_text
from wm_env.information import entropy, text_total_variation
from wm_env.law import BlockLaw
from wm_env.optimum import solve
from wm_env.problem import Problem
from wm_env.synthetic import synthetic_tree
from wm_env.tree import StateTree


def rolled(tree: StateTree, marginals: tuple[torch.Tensor, ...]) -> tuple[float, float]:
    """Rate and total variation of the text of a law, block by block."""
    probs, blocks, rate = torch.from_numpy(tree.prior), [], 0.0
    for block, marginal in zip(tree.blocks, marginals, strict=True):
        cover = torch.from_numpy(block.cover)
        blocks.append(
            BlockLaw(probs, cover, torch.from_numpy(block.symbol), torch.ones(len(cover), 1), marginal[:, None])
        )
        rate += float(probs @ entropy(marginal))
        following = torch.zeros(int(block.child.max()) + 1, dtype=torch.float64)
        there = torch.from_numpy(block.child >= 0)
        following.index_add_(0, torch.from_numpy(block.child)[there], (probs[:, None] * marginal)[there])
        probs = following
    children = tuple(torch.from_numpy(block.child) for block in tree.blocks[:-1])
    return rate, float(text_total_variation(tuple(blocks), children))


@pytest.mark.parametrize("epsilon", [0.0, 0.03, 0.2, 5.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_law_has_the_rate_and_the_variation_that_are_told(epsilon, seed):
    tree = uneven_tree(3, 2, 5, 0.5, seed)
    found = solve_text(tree, epsilon)
    rate, variation = rolled(tree, found.marginals)
    assert rate == pytest.approx(found.rate, abs=1e-9)
    assert variation == pytest.approx(found.cost, abs=1e-9)
    assert variation <= epsilon + 1e-9
    assert found.rate >= solve(tree, epsilon).rate - 1e-9


def test_it_is_what_a_general_solver_finds():
    tree = synthetic_tree(2, 2, 3, entropy=1.2, overlap=0.4, seed=2)
    first, second = tree.blocks
    cover = np.stack([(first.cover[s][:, None] * second.cover[first.child[s]]).ravel() for s in range(2)])
    law = cvxpy.Variable((2, 9), nonneg=True)
    spent = 0.5 * cvxpy.sum(cvxpy.multiply(tree.prior[:, None], cvxpy.abs(law - cover)))
    rate = cvxpy.sum(cvxpy.multiply(np.repeat(tree.prior[:, None], 9, 1), cvxpy.entr(law))) / np.log(2)
    best = cvxpy.Problem(cvxpy.Maximize(rate), [cvxpy.sum(law, axis=1) == 1, spent <= 0.07]).solve()
    assert solve_text(tree, 0.07).rate == pytest.approx(best, abs=1e-5)


def test_trees_that_join_paths_and_other_costs_are_refused():
    tree = synthetic_tree(2, 2, 3, entropy=1.2, overlap=0.4, seed=2)
    first = tree.blocks[0]
    joined = np.zeros_like(first.child)
    object.__setattr__(first, "child", joined)
    with pytest.raises(ValueError, match="several paths"):
        solve_text(tree, 0.1)
    with pytest.raises(ValueError, match="budget='text'"):
        Problem(tree, 0.1, 0.5, budget="text")

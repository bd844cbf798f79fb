"""The limit for unknown states against the planner, the known-state bound, and parts of other sizes."""

import numpy as np
import pytest
from small_trees import uneven_tree

from agents.planner.noisy import plan_noisy
from wm_env.criteria.channel import tree_channels
from wm_env.criteria.noise import noisy_rate_bound
from wm_env.synthetic import synthetic_tree
from wm_env.theory.noisy_groups import part_rate, parts_of


def limit(tree, channels, most_maps):
    return sum(map(part_rate, parts_of(tree, channels, most_maps)))


@pytest.mark.parametrize("seed", range(3))
def test_no_plan_beats_it_and_larger_parts_tighten_it(seed):
    tree = uneven_tree(3, 2, 4, 0.9, seed)
    channels = tree_channels(tree, "substitution", 0.1)
    known = noisy_rate_bound(tree, channels, 0.0).rate
    whole, pairs, single = (limit(tree, channels, most) for most in (4096, 16, 1))
    assert whole <= pairs + 1e-3 * known <= single + 2e-3 * known
    assert single == pytest.approx(known)
    assert plan_noisy(tree, channels, 0.0, labels=16, iterations=40).rate <= whole + 1e-9


def test_two_states_in_one_part_are_at_the_capacity_that_many_labels_reach():
    tree = synthetic_tree(2, 1, 3, entropy=1.4, overlap=1.0, seed=3)
    channels = tree_channels(tree, "substitution", 0.15)
    (part,) = parts_of(tree, channels)
    reached = plan_noisy(tree, channels, 0.0, labels=16, iterations=2000).rate
    assert part_rate(part, 1e-4) == pytest.approx(reached, rel=2e-3)
    assert part_rate(part) < 0.99 * part.known


def test_states_that_share_no_output_are_parts_of_their_own():
    tree = synthetic_tree(4, 1, 3, entropy=1.2, overlap=0.0, seed=1)
    parts = list(parts_of(tree, tree_channels(tree, "substitution", 0.1)))
    assert len(parts) == 4
    assert sum(part.probability for part in parts) == pytest.approx(1)
    assert all(np.allclose(part.kernel.sum(2)[part.cover > 0], 1) for part in parts)

import pytest
from transfer import file_of, mean_entropy, play

from agents.planner import plan
from agents.training.policy import table_policy
from wm_env.env import CovertWatermarkEnv
from wm_env.problem import open_tree


def test_a_planned_law_plays_for_what_it_was_planned_for(tmp_path):
    path = file_of("synthetic:1.5", tmp_path, 3)
    tree = open_tree(path)
    assert mean_entropy(tree) == pytest.approx(1.5)
    planned = plan(tree, 0.05, labels=32)
    env = CovertWatermarkEnv(tree=path, prompts=16, candidates=20, labels=32, epsilon=0.05)
    rate, cost = play(table_policy(planned.law), env)
    assert rate == pytest.approx(planned.rate, abs=1e-4)
    assert cost == pytest.approx(planned.cost, abs=1e-5)


def test_other_trees_are_taken_as_they_are(tmp_path):
    assert file_of("news", tmp_path, 0) == "news"
    assert not list(tmp_path.iterdir())

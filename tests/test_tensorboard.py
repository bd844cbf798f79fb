"""What TensorBoard shows of a run, asked of a running TensorBoard over its HTTP API."""

import dataclasses
import json
import time
import urllib.request

import pytest
from tensorboard import program

from agents.settings import PRESETS, PPOSettings
from agents.training import start_run, train
from wm_env.tree import save_tree

TAGS = {
    "rollout/ep_rew_mean",
    "rollout/ep_cost_mean",
    "rollout/cost_violation",
    "rollout/rate_bits_per_token",
    "train/lagrange_multiplier",
    "train/cost_value_loss",
    "train/kl_total",
    "train/kl_per_row",
    "law/i_ux",
    "law/i_us",
    "law/i_ux_given_s",
    "law/cover_entropy",
    "law/percent_of_optimum",
    "eval/rate",
    "eval/cost",
    "eval/feasible",
    "eval/best_feasible_rate",
    "time/fps",
}


@pytest.fixture
def run(small_tree, tmp_path):
    save_tree(small_tree, tmp_path / "tree.safetensors")
    settings = dataclasses.replace(
        PRESETS["ppo"],
        tree=str(tmp_path / "tree.safetensors"),
        prompts=2,
        candidates=4,
        labels=4,
        iterations=4,
        ppo=PPOSettings(copies=2, evaluate_every=2),
    )
    started = start_run(tmp_path / "run", settings, ["train.py"])
    train(started)
    return started.folder


def ask(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def test_tags_and_values_of_a_run(run):
    server = program.TensorBoard()
    server.configure(argv=["tensorboard", "--logdir", str(run.path), "--port", "0", "--load_fast", "false"])
    url = server.launch()
    shown = {}
    for _ in range(150):
        shown = {tag for tags in ask(f"{url}data/plugin/scalars/tags").values() for tag in tags}
        if shown >= TAGS:
            break
        time.sleep(0.2)
    assert shown >= TAGS
    points = ask(f"{url}data/plugin/scalars/scalars?run=.&tag=eval/rate")
    rows = [line.split(",") for line in run.metrics.read_text().splitlines()]
    column = rows[0].index("eval/rate")
    assert [(step, pytest.approx(value, abs=1e-6)) for _, step, value in points] == [
        (int(row[0]), float(row[column])) for row in rows[1:]
    ]
    # Rollouts of two copies and two blocks: evaluated before the first, after the second and after the fourth.
    assert [step for _, step, _ in points] == [0, 8, 16]

"""The harness around every learner: threads, signals, resumed steps, the summary, policies of finished runs."""

import csv
import dataclasses
import json
import os
import shutil
import signal
import threading
from functools import cache

import gymnasium as gym
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from agents.common.interrupts import SIGNALS, InterruptedRunError
from agents.common.learner import Learner
from agents.common.table import AGENTS, agent_of, preset, preset_names
from agents.ppo_lagrangian.settings import PPOSettings
from agents.primal_dual.settings import LearnerSettings
from agents.training import load_policy, loop, read_settings, resume_run, start_run, train
from agents.training.loop import TrainingFailedError
from wm_env.common.command import WorkFailedError
from wm_env.law import load_law
from wm_env.tree import load_tree

SMALL = {"prompts": 2, "candidates": 4, "labels": 4, "iterations": 4}
CONSTANTS = {"primal-dual": LearnerSettings(evaluate_every=2), "ppo": PPOSettings(copies=2, evaluate_every=2)}


def settings_of(agent, tree, **changes):
    found = dataclasses.replace(preset("smoke", agent)[1], tree=str(tree), **SMALL)
    return dataclasses.replace(found, **({"constants": CONSTANTS.get(agent, found.constants)} | changes))


def rows_of(folder):
    with folder.metrics.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def whole(small_tree_file, tmp_path_factory):
    """The folder of a finished run of each learner, made where it is asked for first."""

    @cache
    def folder(agent):
        run = start_run(tmp_path_factory.mktemp("whole") / "run", settings_of(agent, small_tree_file), [])
        train(run)
        return run.folder

    return folder


@pytest.mark.parametrize("agent", AGENTS)
def test_the_summary_of_a_run(agent, small_tree_file, tmp_path):
    run = start_run(tmp_path / "run", settings_of(agent, small_tree_file, cost="kl", epsilon=0.3, seed=0), [])
    found = train(run)
    told = json.loads(run.folder.summary.read_text())
    assert (told["agent"], told["seed"], told["limited_cost"], told["epsilon"]) == (agent, 0, "kl", 0.3)
    assert (told["rate"], told["cost"], told["feasible"]) == (found.rate, found.cost, found.feasible)
    assert told["cost"] == told["cost_kl"] == found.costs["kl"]
    assert told["cost_tv"] == found.costs["tv"]
    if found.feasible:
        key = "percent_of_optimum" if run.problem.rate_bound.exact else "percent_of_bound"
        assert told[key] == pytest.approx(100 * found.rate / run.problem.rate_bound.rate)
    assert told["iterations"] == (0 if agent == "planner" else 4)
    assert told["seconds"] > 0
    assert {"python", "torch", "covert-watermark"} <= told["versions"].keys()


@pytest.mark.parametrize("agent", AGENTS)
def test_a_policy_plays_the_law_of_its_run(agent, small_tree_file, tmp_path):
    run = start_run(tmp_path / "run", settings_of(agent, small_tree_file, epsilon=1.0), [])
    found = train(run)
    act = load_policy(run.folder.path)
    env = gym.make("wm_env:CovertWatermarkEnv-v0", problem=run.problem)
    observation, _ = env.reset(seed=0)
    rate, terminated = 0.0, False
    while not terminated:
        observation, reward, terminated, _, info = env.step(act(observation, env.unwrapped))
        rate += reward
    assert rate == pytest.approx(found.rate, abs=1e-5)
    assert info["cost_so_far"] == pytest.approx(found.cost, abs=1e-5)


def test_the_policy_of_ppo_acts_on_prompts_that_it_never_saw(small_tree_file, whole):
    env = gym.make("wm_env:CovertWatermarkEnv-v0", tree=str(small_tree_file), prompts=5, candidates=4, labels=4)
    observation, _ = env.reset(seed=0)
    action = load_policy(whole("ppo").path)(observation, env.unwrapped)
    assert action.shape == env.action_space.shape
    env.step(action)


def test_training_in_a_thread(small_tree_file, tmp_path):
    run = start_run(tmp_path / "run", settings_of("primal-dual", small_tree_file), [])
    failed = []

    def work():
        try:
            train(run)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert failed == []
    assert run.folder.law.exists()


@pytest.mark.parametrize(
    ("agent", "number"), [*(("primal-dual", number) for number in SIGNALS), ("ppo", signal.SIGINT)]
)
def test_a_run_that_stops_at_once_goes_on_without_a_row_twice(
    agent, number, small_tree_file, whole, tmp_path, monkeypatch
):
    settings = settings_of(agent, small_tree_file)
    cut = start_run(tmp_path / "cut", settings, [])
    evaluate = type(agent_of(agent).learner(cut.problem, cut.objective, settings)).evaluate

    def stop(learner):
        os.kill(os.getpid(), number)
        return evaluate(learner)

    with monkeypatch.context() as patch:
        patch.setattr(type(agent_of(agent).learner(cut.problem, cut.objective, settings)), "evaluate", stop)
        # A second signal would end the process: only the first evaluation sends one.
        patch.setattr("agents.training.loop._Harness.save_best", lambda harness: None)
        with pytest.raises(InterruptedRunError, match=r"^stopped after iteration 0 of 4;") as stopped:
            train(cut)
    assert stopped.value.signal_number == number
    train(resume_run(cut.folder.path, read_settings(cut.folder.path), settings))
    assert [row["iteration"] for row in rows_of(cut.folder)] == ["0", "2", "4"]
    assert [row["eval/rate"] for row in rows_of(cut.folder)] == [row["eval/rate"] for row in rows_of(whole(agent))]


def test_a_law_that_got_worse_in_everything_is_a_failure(small_tree_file, tmp_path):
    steep = dataclasses.replace(LearnerSettings(evaluate_every=2), learning_rate=1000.0)
    run = start_run(tmp_path / "run", settings_of("primal-dual", small_tree_file, constants=steep, labels=8), [])
    with pytest.raises(TrainingFailedError, match=r"diverged: start a new run with a lower learner\.learning_rate"):
        train(run)
    law = load_law(run.folder.law, load_tree(run.folder.tree))
    assert len(law.blocks) == 2


def test_tensorboard_shows_the_limits_and_the_law_that_was_saved(small_tree_file, tmp_path):
    run = start_run(tmp_path / "run", settings_of("primal-dual", small_tree_file, epsilon=1.0), [])
    found = train(run)
    events = EventAccumulator(str(run.folder.path))
    events.Reload()
    assert {event.value for event in events.Scalars("limit/cost")} == {1.0}
    assert events.Scalars("limit/rate")[0].value == pytest.approx(run.problem.rate_bound.rate)
    (rate,) = events.Scalars("result/rate")
    assert rate.value == pytest.approx(found.rate)
    assert "custom_scalars__config__" in events.Tags()["tensors"]
    shown = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    assert b"learner.policy.common" in shown


@pytest.mark.parametrize("name", AGENTS)
def test_rows_of_the_table(name):
    agent = agent_of(name)
    assert issubclass(type(agent.constants), object)
    agent.constants.check()
    assert set(AGENTS[name].presets) <= agent.presets.keys()
    assert all(settings.check() is None for settings in agent.presets.values())
    for kind in preset_names():
        found = preset(kind, name)[1]
        assert (found.agent, type(found.constants)) == (name, type(agent.constants))
        found.check()
    assert agent.lacks <= {field.name for field in dataclasses.fields(found)}


def test_an_agent_implies_its_preset():
    assert preset(None, "ppo") == preset("ppo")
    assert preset()[0] == preset(None, "primal-dual")[0] == preset(None, "planner")[0] == "default"
    assert preset(None, None, "coded")[0] == "coded"
    assert preset("ppo")[1].agent == "ppo"
    assert preset("ppo", "planner")[1].prompts == 4
    with pytest.raises(ValueError, match="preset='huge': choose one of small, default, paper"):
        preset("huge")


def test_a_learner_without_a_checkpoint_is_enough():
    class Constant(Learner):
        def learn(self, iterations, pause):
            pause()

        def evaluate(self):
            raise NotImplementedError

    assert Constant().state() == Constant().parameters() == {}
    assert signal.SIGHUP in SIGNALS


@pytest.mark.parametrize(
    ("agent", "way"),
    [("primal-dual", "removed"), ("primal-dual", "renamed"), ("primal-dual", "replaced"), ("ppo", "removed")],
)
def test_a_folder_that_vanishes_is_not_made_anew(agent, way, small_tree_file, tmp_path, monkeypatch):
    """The folder goes after the first evaluation, whose line is told."""
    run = start_run(tmp_path / "run", settings_of(agent, small_tree_file), [])
    told = []

    def take_away(line):
        told.append(line)
        if way == "removed":
            shutil.rmtree(run.folder.path)
        else:
            run.folder.path.rename(tmp_path / "other")
        if way == "replaced":
            run.folder.path.mkdir()
            run.folder.config.write_text("another run's")

    monkeypatch.setattr(loop, "say", take_away)
    with pytest.raises(WorkFailedError, match=f"^{tmp_path / 'run'} was removed or renamed while"):
        train(run)
    assert len(told) == 1
    assert run.folder.path.exists() == (way == "replaced")
    if way == "replaced":
        assert [path.name for path in run.folder.path.iterdir()] == ["config.json"]


def test_a_folder_that_vanishes_before_a_signal_is_not_made_anew(small_tree_file, tmp_path, monkeypatch):
    run = start_run(tmp_path / "run", settings_of("primal-dual", small_tree_file), [])

    def stop(line):
        shutil.rmtree(run.folder.path)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(loop, "say", stop)
    with pytest.raises(WorkFailedError, match="was removed or renamed"):
        train(run)
    assert not run.folder.path.exists()

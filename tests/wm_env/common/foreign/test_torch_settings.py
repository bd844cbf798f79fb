"""Programs that have changed torch's defaults get the same numbers, or one line."""

import dataclasses
from contextlib import ExitStack, contextmanager
from functools import cache

import gymnasium as gym
import pytest
import torch

from agents.common.settings import RunSettings
from agents.common.table import preset
from agents.planner import plan
from agents.ppo_lagrangian.settings import PPOSettings
from agents.primal_dual.settings import LearnerSettings
from agents.training import start_run, train
from polar.text.channel import open_channel
from polar.text.decoding import decode
from polar.text.embedding import embed
from polar.text.framing import BitString
from polar.text.keys.key import Key
from polar.text.settings import Settings
from wm_env.common.foreign.torch_settings import usual_torch
from wm_env.lm.models.load import load_lm
from wm_env.lm.models.marginals import marginals

CONSTANTS = {
    "primal-dual": LearnerSettings(evaluate_every=2),
    "primal-dual by row": LearnerSettings(evaluate_every=2, second_moment="row"),
    "primal-dual autograd": LearnerSettings(evaluate_every=2),
    "ppo": PPOSettings(copies=2, evaluate_every=2),
    "planner": None,
}


@contextmanager
def default_dtype(dtype):
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def default_device(device):
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


CHANGES = {
    "float64": lambda: default_dtype(torch.float64),
    "float16": lambda: default_dtype(torch.float16),
    "meta": lambda: default_device("meta"),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
}


@contextmanager
def all_changes():
    """Every change at once; of the numbers' formats the last one counts."""
    with ExitStack() as stack:
        for change in CHANGES.values():
            stack.enter_context(change())
        yield


def trained(agent, tree, folder):
    """Rate and cost of a short run."""
    name = agent.partition(" ")[0]
    settings: RunSettings = dataclasses.replace(
        preset("smoke", name)[1], tree=str(tree), prompts=2, candidates=4, labels=4, iterations=2, epsilon=0.3
    )
    if CONSTANTS[agent] is not None:
        settings = dataclasses.replace(settings, constants=CONSTANTS[agent])
    if agent.endswith("autograd"):
        settings = dataclasses.replace(settings, gradient="autograd")
    found = train(start_run(folder, settings, []))
    return found.rate, found.cost


@pytest.fixture(scope="module")
def usually(small_tree_file, tmp_path_factory):
    """What an agent finds where nothing was changed, once for each."""
    return cache(lambda agent: trained(agent, small_tree_file, tmp_path_factory.mktemp("usual") / "run"))


@pytest.mark.parametrize("agent", CONSTANTS)
def test_training_is_the_same_under_all_changes(agent, small_tree_file, usually, tmp_path):
    usual = usually(agent)
    with all_changes():
        assert trained(agent, small_tree_file, tmp_path / "changed") == usual


@pytest.mark.parametrize("change", CHANGES)
def test_training_is_the_same_under_each_change(change, small_tree_file, usually, tmp_path):
    usual = usually("primal-dual")
    with CHANGES[change]():
        assert trained("primal-dual", small_tree_file, tmp_path / "changed") == usual


@pytest.mark.parametrize("change", CHANGES)
def test_a_plan_and_an_environment_are_the_same(change, small_tree):
    def found():
        law = plan(small_tree, epsilon=0.1).law
        env = gym.make("wm_env:CovertWatermarkEnv-v0", prompts=2, candidates=4, labels=4)
        env.reset(seed=0)
        env.action_space.seed(0)
        return [block.p_label.tolist() for block in law.blocks], env.step(env.action_space.sample())[1]

    usual = found()
    with CHANGES[change]():
        assert found() == usual


def law_of(lm):
    context = tuple(lm.encode("The mayor"))
    return marginals(lm, context, 2, 0.7).tolist()


@pytest.mark.parametrize("arithmetic", ["exact", "float"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("late", [False, True])
def test_the_law_of_a_model_is_the_same_or_refused(arithmetic, change, late):
    usual = load_lm("mini", arithmetic=arithmetic)
    expected = law_of(usual)
    with CHANGES[change]():
        lm = usual if late else load_lm("mini", arithmetic=arithmetic)
        if change == "autocast":
            with pytest.raises(ValueError, match=r"^autocast changes .*: leave it before the model is run$"):
                law_of(lm)
        else:
            assert law_of(lm) == expected
    assert law_of(lm) == expected


@pytest.mark.parametrize("change", ["float64", "meta"])
def test_a_text_is_written_and_read(change):
    key, settings = Key(bytes(range(32))), Settings()
    with CHANGES[change]():
        channel = open_channel(load_lm("mini"), "The mayor said", settings)
        sent = embed(channel, BitString(5, 8), key, 0)
        assert decode(channel, sent.text.encode(), key, [0]).message == BitString(5, 8)


def test_a_device_that_is_named_is_used():
    with default_device("meta"), usual_torch():
        assert torch.zeros(1).device.type == "cpu"
        assert torch.zeros(1, device="meta").device.type == "meta"
        with torch.autocast("cpu", torch.bfloat16), usual_torch():
            assert (torch.zeros(1, 1) @ torch.zeros(1, 1)).dtype == torch.float32

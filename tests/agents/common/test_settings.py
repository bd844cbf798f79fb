from dataclasses import replace

import pytest

from agents.common.settings import PolicySettings, RunSettings
from agents.ppo_lagrangian.settings import PPOSettings
from agents.primal_dual.settings import LearnerSettings

HUGE = 10**400
"""Python's integers may be larger than any float."""


@pytest.mark.parametrize("value", [HUGE, float("inf"), float("nan"), -1], ids=("huge", "inf", "nan", "negative"))
@pytest.mark.parametrize(
    ("part", "name"),
    [
        *(("run", name) for name in ("iterations", "epsilon")),
        *(("learner", name) for name in ("learning_rate", "dual_step", "first_multiplier", "evaluate_every")),
        *(("policy", name) for name in ("common", "label_spread", "leading_spread", "trailing_spread")),
        *(("ppo", name) for name in ("copies", "learning_rate", "epochs", "dual_step", "dual_gain", "target_kl")),
    ],
)
def test_numbers_out_of_range_are_refused_by_their_name(part, name, value):
    run, changes = RunSettings(), {name: value}
    if part == "run":
        run = replace(run, **changes)
    elif part == "ppo":
        run = replace(run, constants=PPOSettings(**changes))
    elif part == "learner":
        run = replace(run, constants=LearnerSettings(**changes))
    else:
        run = replace(run, constants=LearnerSettings(policy=PolicySettings(**changes)))
    with pytest.raises(ValueError, match=rf"{name}=.* is needed"):
        run.check()


def test_a_length_that_follows_the_state_goes_as_far_as_labels_and_candidates():
    assert RunSettings(message_bits=3).bits_of_message == 3
    assert RunSettings().bits_of_message is None
    assert RunSettings(message_bits="auto", labels=64, candidates=20).bits_of_message == 4
    assert RunSettings(message_bits="auto", labels=8, candidates=20).bits_of_message == 3

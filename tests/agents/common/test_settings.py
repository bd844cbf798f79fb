from dataclasses import replace

import pytest

from agents.common.settings import LearnerSettings, PolicySettings, PPOSettings, RunSettings

HUGE = 10**400
"""Python's integers may be larger than any float."""


@pytest.mark.parametrize("value", [HUGE, float("inf"), float("nan"), -1], ids=("huge", "inf", "nan", "negative"))
@pytest.mark.parametrize(
    ("part", "name"),
    [
        *(("run", name) for name in ("iterations", "epsilon")),
        *(("learner", name) for name in ("learning_rate", "dual_step", "first_multiplier", "evaluate_every")),
        *(("policy", name) for name in ("common", "label_spread", "leading_spread", "trailing_spread")),
        *(("ppo", name) for name in ("copies", "learning_rate", "dual_step", "target_kl", "evaluate_every")),
    ],
)
def test_numbers_out_of_range_are_refused_by_their_name(part, name, value):
    run, changes = RunSettings(), {name: value}
    if part == "run":
        run = replace(run, **changes)
    elif part == "ppo":
        run = replace(run, ppo=PPOSettings(**changes))
    elif part == "learner":
        run = replace(run, learner=LearnerSettings(**changes))
    else:
        run = replace(run, learner=LearnerSettings(policy=PolicySettings(**changes)))
    with pytest.raises(ValueError, match=rf"{name}=.* is needed"):
        run.check()


def test_without_a_length_the_coded_objective_has_that_of_the_environment():
    from wm_env.problem import make_objective

    settings = RunSettings(objective="coded")
    assert settings.coded_bits == len(make_objective("coded", 8, settings.labels).message_set)
    assert RunSettings().coded_bits is None
    assert RunSettings(objective="coded", message_bits="auto", labels=64, candidates=20).coded_bits == 4

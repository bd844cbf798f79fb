from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest

from agents.common.settings import RunSettings
from agents.ppo_lagrangian.settings import PPOSettings
from agents.primal_dual.settings import LearnerSettings
from polar.code.decoders import observations
from polar.code.key_schedule import KeySchedule
from polar.evaluation.settings import EvaluationSettings
from polar.text.schemes.block import Block
from polar.text.schemes.robust import Robust
from polar.text.schemes.robust.settings import RobustSettings
from polar.text.settings import LawSettings, Limits, Settings
from wm_env.common.checks import check_choices, integer, number
from wm_env.lm.models.load import dtype_named, load_lm
from wm_env.problem import Problem
from wm_env.synthetic import synthetic_tree


def test_numbers_of_python_and_numpy():
    assert number("epsilon", np.float32(0.5)) == number("epsilon", 0.5) == 0.5
    assert number("epsilon", np.int64(2)) == number("epsilon", 2) == 2.0
    assert integer("labels", np.int64(2)) == 2
    assert type(integer("labels", np.int64(2))) is int
    assert type(number("epsilon", 2)) is float


def test_numbers_that_are_none_or_that_no_float_holds():
    for value in (float("inf"), float("nan"), 10**400, -(10**400), True, "1", None):
        with pytest.raises(ValueError, match=r"^epsilon=.*: a finite number is needed$"):
            number("epsilon", value)


SMALL = synthetic_tree(2, 2, 4, 4, 1.5, overlap=0.5, seed=1)


@dataclass(frozen=True)
class Choices:
    """A field of each kind that there is."""

    word: Literal["a", "b"] = "a"
    maybe: Literal["a"] | None = None
    number: int | Literal["auto"] = 1
    several: tuple[Literal["a", "b"], ...] = ("a",)
    mixed: tuple[int | Literal["auto"], ...] = ()
    free: str = "None"


@pytest.mark.parametrize(
    "right", [{}, {"word": "b", "maybe": "a", "number": "auto", "several": (), "mixed": (3, "auto")}, {"free": "x"}]
)
def test_choices_that_there_are(right):
    check_choices(Choices(**right))


@pytest.mark.parametrize(
    ("wrong", "known"),
    [
        ({"word": "None"}, "a, b"),
        ({"word": None}, "a, b"),
        ({"maybe": "None"}, "a"),
        ({"number": "Auto"}, "auto"),
        ({"several": ("a", "c")}, "a, b"),
        ({"mixed": (1, "c")}, "auto"),
    ],
)
def test_what_is_no_choice_is_refused_with_the_choices(wrong, known):
    name = next(iter(wrong))
    with pytest.raises(ValueError, match=f"^{name}=.*: choose one of {known}$"):
        check_choices(Choices(**wrong))


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: load_lm("mini", arithmetic="None"), "arithmetic"),
        (lambda: load_lm("mini", arithmetic="Exact"), "arithmetic"),
        (lambda: dtype_named("float16"), "dtype"),
        (lambda: RunSettings(budget="None").check(), "budget"),
        (lambda: RunSettings(gradient="None").check(), "gradient"),
        (lambda: RunSettings(channel="None").check(), "channel"),
        (lambda: RunSettings(device="tpu").check(), "device"),
        (lambda: LearnerSettings(schedule="None").check(), "schedule"),
        (lambda: LearnerSettings(second_moment="None").check(), "second_moment"),
        (lambda: PPOSettings(plays="None").check(), "plays"),
        (lambda: LawSettings(form="None").check(), "form"),
        (lambda: Limits(ending="None").check(), "ending"),
        (lambda: RobustSettings(clock="None"), "clock"),
        (lambda: Settings(Robust(clock="None")).check(), "clock"),
        (lambda: Settings(Block(pool="None")).check(), "pool"),
        (lambda: EvaluationSettings(knowledge=("None",)), "knowledge"),
        (lambda: EvaluationSettings(surplus=("None",)), "surplus"),
        (lambda: EvaluationSettings(channel="None"), "channel"),
        (lambda: EvaluationSettings(keys=("None",)), "keys"),
        (lambda: KeySchedule(1, 2, "None"), "surplus"),
        (lambda: observations(SMALL, "None"), "knowledge"),
        (lambda: Problem(SMALL, 0.1, 1.0, budget="None"), "budget"),
    ],
)
def test_no_public_setting_takes_a_word_that_it_does_not_know(make, name):
    with pytest.raises(ValueError, match=rf"^{name}=.*: choose "):
        make()

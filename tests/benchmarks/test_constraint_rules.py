"""The rules of benchmarks/constrained.py: what they answer to costs, and a file of constants that is wrong."""

import re

import pytest
from constraint_rules import read_rules
from repository import ROOT

SHIPPED = read_rules(ROOT / "benchmarks" / "constrained.yaml")
OVER, WITHIN = 0.3, 0.06
"""Costs against a limit of 0.1."""


def answers(name, *costs):
    rule = SHIPPED[name](1.5)
    return [rule.weights(cost, 0.1) for cost in costs]


@pytest.mark.parametrize(
    ("name", "multipliers"),
    [
        ("optimal multiplier", [1.5, 1.5, 1.5]),
        ("penalty 1", [1.0, 1.0, 1.0]),
        ("dual ascent", [0.5 * 0.2, 0.5 * 0.2 - 0.5 * 0.04, 0.5 * 0.4 - 0.5 * 0.04]),
        # The first steps of Adam are its rate, whatever the violation is.
        ("dual Adam", [0.001 + 0.035]),
        # Rising costs count, falling ones do not.
        ("PID", [0.1 + 2.0, 0.0, 0.5 * 0.36 + 10 * 0.2 + 10 * 0.24]),
        ("ours", [0.1 + 2.0, 0.0, 0.5 * 0.36 + 10 * 0.2]),
        ("P3O", [20.0, 0.0, 20.0]),
        ("FOCOPS multiplier", [0.002, 0.0016, 0.0036]),
    ],
)
def test_multipliers_of_rising_falling_and_rising_costs(name, multipliers):
    found = answers(name, *[OVER, WITHIN, OVER][: len(multipliers)])
    assert [reward for reward, _ in found] == [1.0] * len(found)
    assert [cost for _, cost in found] == pytest.approx(multipliers, abs=1e-7)


def test_rules_that_switch_to_the_cost_alone():
    assert answers("CRPO", OVER, WITHIN) == [(0.0, 1.0), (1.0, 0.0)]
    assert answers("IPO", OVER, WITHIN) == [(0.0, 1.0), (1.0, pytest.approx(1 / (20 * 0.04)))]


def test_every_rule_begins_anew():
    assert len(SHIPPED) == 10
    for name in SHIPPED:
        assert answers(name, OVER, WITHIN, OVER) == answers(name, OVER, WITHIN, OVER)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: {rule: P3O}", "a: kappa is missing"),
        ("a: {rule: P3O, kappa: ten}", "a: kappa is 'ten', a number is needed"),
        ("a: {rule: P3O, kappa: optimal}", "a: kappa is 'optimal', a number is needed"),
        ("a: {rule: PID, proportional: 1, integral_step: 1, derivative: 1, integral: 1}", "a: integral is unknown"),
        ("a: {rule: P4O}", "a: rule P4O is unknown: choose from Fixed, DualAscent, DualAdam"),
        ("a: {kappa: 1}", "a: rule is missing"),
        ("a: [1", "is no YAML: while parsing"),
        ("- a", "is ['a'], an object is needed"),
    ],
)
def test_a_wrong_file_is_one_line(text, says, tmp_path):
    path = tmp_path / "rules.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(says)) as refused:
        read_rules(path)
    assert str(refused.value).startswith(str(path))
    assert "\n" not in str(refused.value)

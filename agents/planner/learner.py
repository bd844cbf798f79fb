"""The planner as the training harness sees it: a learner that knows its law before the first iteration."""

import dataclasses
from collections.abc import Callable
from functools import cached_property

from agents.common.evaluation import Evaluation, evaluate_law
from agents.common.learner import Learner
from agents.common.settings import RunSettings
from agents.planner.adaptive import plan_adaptive
from agents.planner.coded import plan_coded
from agents.planner.noisy import plan_noisy
from agents.planner.rate import plan_optimum
from wm_env.criteria.costs import TOTAL_VARIATION
from wm_env.criteria.objectives import Objective
from wm_env.problem import Problem


class Planner(Learner):
    """The best law of a problem in closed form; the planner has no iterations and nothing to resume."""

    iterates = False

    def __init__(self, problem: Problem, objective: Objective, settings: RunSettings) -> None:
        self.problem, self.objective, self.settings = problem, objective, settings

    def learn(self, iterations: int, pause: Callable[[], None]) -> None:
        """Nothing to learn."""
        pause()

    def evaluate(self) -> Evaluation:
        """The law of the plan.

        Raises:
            ValueError: more labels are needed, or the cost has no plan for the objective.
        """
        return self._evaluation

    @cached_property
    def _evaluation(self) -> Evaluation:
        settings, tree = self.settings, self.problem.tree
        if self.objective.message_set and self.problem.cost != TOTAL_VARIATION:
            cost = self.problem.cost.name
            raise ValueError(f"cost={cost!r}: plans of the coded objective are for cost='tv' only; choose a learner")
        channels = [channel for channel in self.problem.channels if channel is not None]
        if channels and (self.objective.message_set or settings.message_bits == "auto"):
            raise ValueError(f"channel={self.problem.channel!r}: plans are for objective='gp' only; choose a learner")
        if channels and self.problem.cost != TOTAL_VARIATION:
            raise ValueError(f"channel={self.problem.channel!r}: plans are for cost='tv' only; choose a learner")
        if settings.budget == "text" and (self.objective.message_set or settings.message_bits == "auto"):
            raise ValueError("budget='text': plans are for objective='gp' only; leave one of the two out")
        message_bits = None
        if settings.message_bits == "auto":
            planned = plan_adaptive(tree, settings.epsilon, settings.gamma, settings.labels, settings.dither_bits)
            blocks, message_bits = planned.law.blocks, planned.bits
        elif channels:
            blocks = plan_noisy(tree, channels, settings.epsilon, settings.gamma, settings.labels).law.blocks
        elif bits := len(self.objective.message_set):
            blocks = plan_coded(tree, bits, settings.epsilon, settings.gamma, settings.labels).law.blocks
        else:
            blocks = plan_optimum(tree, self.problem.optimum, settings.labels).law.blocks
        laws = [(block.p_label, block.p_candidate) for block in blocks]
        evaluation = evaluate_law(self.problem, self.objective, lambda number, _: laws[number])
        return dataclasses.replace(evaluation, message_bits=message_bits)

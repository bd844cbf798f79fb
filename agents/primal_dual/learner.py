"""The primal-dual learner as the training harness sees it."""

from collections.abc import Callable

import torch
from torch import Tensor

from agents.common.evaluation import Evaluation, evaluate_policy
from agents.common.learner import Learner
from agents.common.settings import RunSettings
from agents.primal_dual.algorithm import AutogradLagrangian, Gradient, PrimalDual, initial_policy
from agents.primal_dual.closed_form import ClosedFormLagrangian
from agents.primal_dual.settings import LearnerSettings
from wm_env.criteria.objectives import Objective
from wm_env.problem import Problem


class PrimalDualLearner(Learner):
    """Algorithm 1 on a problem, in float32.

    The subgradient of the total variation makes the iterates swing around the limit with the size of a step, so about
    every second one costs slightly too much; the best that does not is what a run is for.

    Attributes:
        algorithm: the policy, its optimiser and the multiplier.
    """

    advice = "learner.learning_rate, learner.dual_step or learner.first_multiplier"

    def __init__(self, problem: Problem, objective: Objective, settings: RunSettings) -> None:
        constants = settings.constants
        assert isinstance(constants, LearnerSettings)
        self.problem, self.objective = problem, objective
        self.evaluate_every = constants.evaluate_every
        policy = initial_policy(problem, settings.labels, constants.policy, settings.seed).to(settings.device)
        gradient: Gradient
        if settings.gradient == "autograd":
            gradient = AutogradLagrangian(problem, objective, torch.float32, settings.device)
        else:
            gradient = ClosedFormLagrangian(problem, objective, settings.labels, torch.float32, settings.device)
        self.algorithm = PrimalDual(policy, gradient, settings.epsilon, constants, settings.iterations)

    @property
    def iteration(self) -> int:  # type: ignore[override]
        """Steps taken so far."""
        return self.algorithm.iteration

    @property
    def multiplier(self) -> float:  # type: ignore[override]
        """beta, bits per unit of cost."""
        return float(self.algorithm.multiplier)

    def learn(self, iterations: int, pause: Callable[[], None]) -> None:
        """One step of Algorithm 1 after the other."""
        pause()
        while self.iteration < iterations:
            self.algorithm.step()
            pause()

    def evaluate(self) -> Evaluation:
        """The law of the softmax policy."""
        return evaluate_policy(self.problem, self.objective, self.algorithm.policy)

    def metrics(self, evaluation: Evaluation) -> dict[str, float]:
        """Rate and cost as the float32 gradient sees them, and the norm of that gradient."""
        algorithm = self.algorithm
        seen = algorithm.gradient(algorithm.policy, algorithm.multiplier)
        tokens = len(evaluation.measures) * self.problem.tree.block_length
        return {
            "rollout/ep_rew_mean": float(seen.rate),
            "rollout/ep_cost_mean": float(seen.cost),
            "rollout/cost_violation": float(seen.cost) - self.problem.epsilon,
            "rollout/rate_bits_per_token": sum(float(measured.rate) for measured in evaluation.measures) / tokens,
            "train/lagrange_multiplier": self.multiplier,
            "train/gradient_norm": float(algorithm.gradient_norm()),
        }

    def parameters(self) -> dict[str, Tensor]:
        """A copy of the policy's parameters."""
        return {name: value.detach().clone() for name, value in self.algorithm.policy.named_parameters()}

    def load(self, parameters: dict[str, Tensor]) -> None:
        """Put back the policy's parameters."""
        self.algorithm.policy.load_state_dict(parameters)

    def state(self) -> dict[str, Tensor]:
        """See `PrimalDual.state`."""
        return self.algorithm.state()

    def restore(self, tensors: dict[str, Tensor], source: object) -> None:
        """See `PrimalDual.restore`."""
        self.algorithm.restore(tensors, source)

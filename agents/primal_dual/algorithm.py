"""The paper's Algorithm 1: primal-dual policy gradient through the exact transition.

This is the readable form, line by line and by automatic differentiation. `agents.primal_dual.closed_form` computes the
same gradients in closed form.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from agents.common.checkpoints import COUNT, TensorSpec, adam, checked, count, like, under
from agents.common.multiplier import dual_ascent
from agents.common.policies import SoftmaxPolicy, softmax_policy
from agents.common.settings import PolicySettings
from agents.primal_dual.row_adam import RowAdam
from agents.primal_dual.settings import LearnerSettings
from wm_env.criteria.objectives import Objective
from wm_env.law import BlockLaw, advance, induced_cover
from wm_env.problem import BlockTensors, Problem


@dataclass(frozen=True)
class Outcome:
    """What a policy is worth over all blocks; scalar tensors.

    Attributes:
        rate: sum_b gamma^b r_b in bits, b = 1..B.
        cost: sum_b gamma^b c_b.
    """

    rate: Tensor
    cost: Tensor


Gradient = Callable[[SoftmaxPolicy, Tensor], Outcome]
"""(policy, multiplier) -> outcome of the policy; leaves the gradient of rate - multiplier * cost in its parameters."""


class AutogradLagrangian:
    """The Lagrangian of a problem and its gradient by automatic differentiation: a `Gradient`."""

    def __init__(
        self, problem: Problem, objective: Objective, dtype: torch.dtype = torch.float64, device: str = "cpu"
    ) -> None:
        self.objective, self.cost = objective, problem.cost
        self.gamma = problem.gamma
        self.prior = torch.as_tensor(problem.tree.prior, dtype=dtype, device=device)
        self.blocks = tensors_on(problem, dtype, device)
        self.channels = problem.channels

    def __call__(self, policy: SoftmaxPolicy, multiplier: Tensor) -> Outcome:
        """One pass of Algorithm 1 over the blocks, and the gradient of its objective."""
        policy.zero_grad()
        outcome = self.outcome(policy)
        (outcome.rate - multiplier * outcome.cost).backward()  # type: ignore[no-untyped-call]
        return Outcome(outcome.rate.detach(), outcome.cost.detach())

    def outcome(self, policy: SoftmaxPolicy) -> Outcome:
        """The inner loop of Algorithm 1: sums over b = 1..B, differentiable."""
        rate = cost = self.prior.new_zeros(())
        state_probs = self.prior
        for number, block in enumerate(self.blocks):
            law = self.objective(BlockLaw(state_probs, block.cover, block.symbol, *policy(number)))
            measured = self.objective.measure_behind(law, self.cost, self.channels[number])
            weight = self.gamma ** (number + 1)
            rate = rate + weight * measured.rate
            cost = cost + weight * measured.cost
            if number + 1 < len(self.blocks):
                states = len(self.blocks[number + 1].cover)
                state_probs = advance(state_probs, induced_cover(law), block.child, states)
        return Outcome(rate, cost)


class PrimalDual:
    """The learner: a policy, its Adam, the multiplier and the number of steps taken.

    Args:
        policy: P(u|s) and W(x|u,s) at their start.
        gradient: of the Lagrangian.
        epsilon: bound on the cost.
        settings: the constants.
        iterations: T, the end of a step that falls; a constant step does without.

    Raises:
        ValueError: a falling step without an end.

    Attributes:
        policy: P(u|s) and W(x|u,s) of every state.
        multiplier: beta, a scalar tensor.
        iteration: steps taken so far.
    """

    def __init__(
        self,
        policy: SoftmaxPolicy,
        gradient: Gradient,
        epsilon: float,
        settings: LearnerSettings,
        iterations: int | None = None,
    ) -> None:
        if settings.schedule == "linear" and iterations is None:
            raise ValueError("schedule=linear: say after how many iterations the step is 0")
        self.policy = policy
        self.gradient = gradient
        self.epsilon = epsilon
        self.settings = settings
        self.iterations = iterations
        self.optimizer = _optimizer(policy, settings)
        self.multiplier = next(policy.parameters()).new_tensor(settings.first_multiplier)
        self.iteration = 0

    def step(self) -> Outcome:
        """One iteration of Algorithm 1: phi by Adam, then beta by dual ascent; returns what both saw."""
        outcome = self.gradient(self.policy, self.multiplier)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate()
        self.optimizer.step()
        self.multiplier = dual_ascent(self.multiplier, outcome.cost, self.epsilon, self.settings.dual_step)
        self.iteration += 1
        return outcome

    def learning_rate(self) -> float:
        """eta_phi of the next step."""
        if self.settings.schedule == "constant" or self.iterations is None:
            return self.settings.learning_rate
        return self.settings.learning_rate * max(0.0, 1 - self.iteration / self.iterations)

    def gradient_norm(self) -> Tensor:
        """Euclidean norm of the last gradient over all parameters, in bits per unit of parameter."""
        grads = [parameter.grad for parameter in self.policy.parameters() if parameter.grad is not None]
        norm: Tensor = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(grad) for grad in grads]))
        return norm

    def state(self) -> dict[str, Tensor]:
        """All that a later step depends on, as named tensors: parameters, Adam's moments and steps, beta, iteration.

        No generator: nothing after the initial policy is random.
        """
        tensors = {f"policy.{name}": value.detach() for name, value in self.policy.named_parameters()}
        for name, parameter in self.policy.named_parameters():
            for entry, value in self.optimizer.state[parameter].items():
                tensors[f"adam.{name}.{entry}"] = value
        tensors["multiplier"] = self.multiplier
        tensors["iteration"] = torch.tensor(self.iteration)
        return tensors

    def restore(self, tensors: dict[str, Tensor], source: object = "the state") -> None:
        """Take over what `state` returned, all or nothing.

        Args:
            tensors: what `state` returned, or a file that it went through.
            source: what they were read from, for errors.

        Raises:
            ValueError: a tensor is missing, unknown, of another type or shape, or out of range; the first is named.
        """
        iteration = count(tensors, "iteration", source)
        saved = checked(tensors, self._entries(iteration), source)
        device = self.multiplier.device
        with torch.no_grad():
            for name, parameter in self.policy.named_parameters():
                parameter.copy_(saved[f"policy.{name}"])
                moments = under(f"adam.{name}", saved)
                self.optimizer.state[parameter] = {key: value.to(device, copy=True) for key, value in moments.items()}
        self.multiplier = saved["multiplier"].to(device)
        self.iteration = iteration

    def _entries(self, iteration: int) -> dict[str, TensorSpec]:
        """What `state` returns after so many steps; before the first there is nothing of Adam."""
        parameters = dict(self.policy.named_parameters())
        entries = like(parameters, "policy")
        entries |= {"multiplier": TensorSpec((), self.multiplier.dtype, lowest=0), "iteration": COUNT}
        if iteration > 0:
            by_row = self.settings.second_moment == "row"
            for name, parameter in parameters.items():
                entries |= adam(parameter, f"adam.{name}", (iteration, iteration), by_row)
        return entries


def _optimizer(policy: SoftmaxPolicy, settings: LearnerSettings) -> torch.optim.Optimizer:
    if settings.second_moment == "row":
        return RowAdam(policy.parameters(), settings.learning_rate)
    return torch.optim.Adam(policy.parameters(), lr=settings.learning_rate, maximize=True, fused=True)


def initial_policy(problem: Problem, labels: int, settings: PolicySettings, seed: int) -> SoftmaxPolicy:
    """The policy that a seed starts from, in float32 on the CPU, so that every device and precision starts alike."""
    return softmax_policy(problem.tree, labels, settings, torch.Generator().manual_seed(seed))


def tensors_on(problem: Problem, dtype: torch.dtype, device: str) -> tuple[BlockTensors, ...]:
    """The blocks of a problem in another precision or on another device."""
    return tuple(
        BlockTensors(
            block.cover.to(device, dtype),
            block.symbol.to(device),
            block.child.to(device),
            block.support.to(device),
        )
        for block in problem.blocks
    )

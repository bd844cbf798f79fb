"""Rules for one cost limit: from the costs that were seen to the weights of the gradients of rate and cost.

Every rule is told the mean cost of a rollout's episodes and answers with (w_r, w_c); the learner then ascends
(w_r grad J_r - w_c grad J_c) / (w_r + w_c). What a published method has beyond that, such as a trust region, it does
not have here: the rules are compared, not the learners they come from. Constants are the papers' or their reference
code's where these have the units of this problem, and else the ones that did best on the environment's default problem.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

Weights = tuple[float, float]


class Rule(Protocol):
    """A rule with its state; a new one for every run."""

    def weights(self, cost: float, epsilon: float) -> Weights:
        """Weights after a rollout whose episodes cost this much on average."""


@dataclass
class Fixed:
    """The same multiplier always: the optimal one, which only an exact solution knows, or a guess."""

    multiplier: float

    def weights(self, cost: float, epsilon: float) -> Weights:
        return 1.0, self.multiplier


@dataclass
class DualAscent:
    """beta <- [beta + step (cost - epsilon)]_+, projected gradient ascent on the dual."""

    step: float = 0.5
    multiplier: float = 0.0

    def weights(self, cost: float, epsilon: float) -> Weights:
        self.multiplier = max(0.0, self.multiplier + self.step * (cost - epsilon))
        return 1.0, self.multiplier


@dataclass
class DualAdam:
    """Adam on the multiplier, as OmniSafe and SafePO have it: the step is about `rate`, whatever the violation is."""

    rate: float = 0.035
    multiplier: float = 0.001
    moments: list[float] = field(default_factory=lambda: [0.0, 0.0])
    count: int = 0

    def weights(self, cost: float, epsilon: float) -> Weights:
        self.count += 1
        gradient = cost - epsilon
        self.moments = [0.9 * self.moments[0] + 0.1 * gradient, 0.999 * self.moments[1] + 0.001 * gradient**2]
        mean = self.moments[0] / (1 - 0.9**self.count)
        square = self.moments[1] / (1 - 0.999**self.count)
        self.multiplier = max(0.0, self.multiplier + self.rate * mean / (square**0.5 + 1e-8))
        return 1.0, self.multiplier


@dataclass
class PID:
    """Stooke et al. (2020): proportional, integral and derivative terms of the violation, the last for rising costs."""

    proportional: float = 10.0
    integral_step: float = 0.5
    derivative: float = 10.0
    integral: float = 0.0
    before: float | None = None

    def weights(self, cost: float, epsilon: float) -> Weights:
        self.integral = max(0.0, self.integral + self.integral_step * (cost - epsilon))
        rise = 0.0 if self.before is None else max(0.0, cost - self.before)
        self.before = cost
        return 1.0, max(0.0, self.integral + self.proportional * (cost - epsilon) + self.derivative * rise)


@dataclass
class ProportionalIntegral:
    """What `PPOLagrangian` does: dual ascent, and a term in proportion to the violation for the present update only."""

    step: float = 0.5
    gain: float = 10.0
    integral: float = 0.0

    def weights(self, cost: float, epsilon: float) -> Weights:
        self.integral = max(0.0, self.integral + self.step * (cost - epsilon))
        return 1.0, max(0.0, self.integral + self.gain * (cost - epsilon))


@dataclass
class CRPO:
    """Xu et al. (2021): the cost alone while it exceeds the limit by more than a tolerance, else the rate alone."""

    tolerance: float = 0.0

    def weights(self, cost: float, epsilon: float) -> Weights:
        return (0.0, 1.0) if cost > epsilon + self.tolerance else (1.0, 0.0)


@dataclass
class P3O:
    """Zhang et al. (2022): an exact penalty, kappa max(0, cost - epsilon), whose kappa is larger than the
    multiplier."""

    kappa: float = 20.0

    def weights(self, cost: float, epsilon: float) -> Weights:
        return 1.0, self.kappa if cost > epsilon else 0.0


@dataclass
class IPO:
    """Liu et al. (2020): the log barrier ln(epsilon - cost) / t. It has no answer beyond the limit; there, the cost
    alone."""

    sharpness: float = 20.0

    def weights(self, cost: float, epsilon: float) -> Weights:
        return (1.0, 1 / (self.sharpness * (epsilon - cost))) if cost < epsilon else (0.0, 1.0)


@dataclass
class CappedDual:
    """The multiplier of FOCOPS (Zhang et al. 2020): dual ascent, projected onto [0, `most`]."""

    step: float = 0.01
    most: float = 2.0
    multiplier: float = 0.0

    def weights(self, cost: float, epsilon: float) -> Weights:
        self.multiplier = min(self.most, max(0.0, self.multiplier + self.step * (cost - epsilon)))
        return 1.0, self.multiplier


RULES: dict[str, Callable[[float], Rule]] = {
    "optimal multiplier": Fixed,
    "penalty 1": lambda _: Fixed(1.0),
    "dual ascent": lambda _: DualAscent(),
    "dual Adam": lambda _: DualAdam(),
    "PID": lambda _: PID(),
    "ours": lambda _: ProportionalIntegral(),
    "CRPO": lambda _: CRPO(),
    "P3O": lambda _: P3O(),
    "IPO": lambda _: IPO(),
    "FOCOPS multiplier": lambda _: CappedDual(),
}
"""A new rule by name, from the optimal multiplier, which all but the first ignore."""

"""Rules for one cost limit: from the costs that were seen to the weights of the gradients of rate and cost.

Every rule is told the mean cost of a rollout's episodes and answers with (w_r, w_c); the learner then ascends
(w_r grad J_r - w_c grad J_c) / (w_r + w_c). What a published method has beyond that, such as a trust region, it does
not have here: the rules are compared, not the learners they come from. Their constants stand in constrained.yaml.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

import yaml

from wm_env.common.files import read_file
from wm_env.common.json_values import entry, read_as

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

    step: float
    multiplier: float = field(default=0.0, init=False)

    def weights(self, cost: float, epsilon: float) -> Weights:
        self.multiplier = max(0.0, self.multiplier + self.step * (cost - epsilon))
        return 1.0, self.multiplier


@dataclass
class DualAdam:
    """Adam on the multiplier, as OmniSafe and SafePO have it: the step is about `rate`, whatever the violation is."""

    rate: float
    multiplier: float = field(default=0.001, init=False)
    moments: list[float] = field(default_factory=lambda: [0.0, 0.0], init=False)
    count: int = field(default=0, init=False)

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

    proportional: float
    integral_step: float
    derivative: float
    integral: float = field(default=0.0, init=False)
    before: float | None = field(default=None, init=False)

    def weights(self, cost: float, epsilon: float) -> Weights:
        self.integral = max(0.0, self.integral + self.integral_step * (cost - epsilon))
        rise = 0.0 if self.before is None else max(0.0, cost - self.before)
        self.before = cost
        return 1.0, max(0.0, self.integral + self.proportional * (cost - epsilon) + self.derivative * rise)


@dataclass
class ProportionalIntegral:
    """What `PPOLagrangian` does: dual ascent, and a term in proportion to the violation for the present update only."""

    step: float
    gain: float
    integral: float = field(default=0.0, init=False)

    def weights(self, cost: float, epsilon: float) -> Weights:
        self.integral = max(0.0, self.integral + self.step * (cost - epsilon))
        return 1.0, max(0.0, self.integral + self.gain * (cost - epsilon))


@dataclass
class CRPO:
    """Xu et al. (2021): the cost alone while it exceeds the limit by more than a tolerance, else the rate alone."""

    tolerance: float

    def weights(self, cost: float, epsilon: float) -> Weights:
        return (0.0, 1.0) if cost > epsilon + self.tolerance else (1.0, 0.0)


@dataclass
class P3O:
    """Zhang et al. (2022): an exact penalty, kappa max(0, cost - epsilon), whose kappa is larger than the
    multiplier."""

    kappa: float

    def weights(self, cost: float, epsilon: float) -> Weights:
        return 1.0, self.kappa if cost > epsilon else 0.0


@dataclass
class IPO:
    """Liu et al. (2020): the log barrier ln(epsilon - cost) / t. It has no answer beyond the limit; there, the cost
    alone."""

    sharpness: float

    def weights(self, cost: float, epsilon: float) -> Weights:
        return (1.0, 1 / (self.sharpness * (epsilon - cost))) if cost < epsilon else (0.0, 1.0)


@dataclass
class CappedDual:
    """The multiplier of FOCOPS (Zhang et al. 2020): dual ascent, projected onto [0, `most`]."""

    step: float
    most: float
    multiplier: float = field(default=0.0, init=False)

    def weights(self, cost: float, epsilon: float) -> Weights:
        self.multiplier = min(self.most, max(0.0, self.multiplier + self.step * (cost - epsilon)))
        return 1.0, self.multiplier


KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Fixed, DualAscent, DualAdam, PID, ProportionalIntegral, CRPO, P3O, IPO, CappedDual)
}

MakeRule = Callable[[float], Rule]
"""A new rule from the optimal multiplier, which all but one ignore."""


def read_rules(path: Path) -> dict[str, MakeRule]:
    """The rules of a YAML file by name, in its order: `rule`, a class of this module, and the class's constants.

    The multiplier of `Fixed` may be the word `optimal`.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no YAML; or a rule, a constant or a number in it is wrong or missing.
    """
    try:
        found = yaml.safe_load(read_file(path))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is no YAML: {' '.join(str(error).split())}") from None
    return {name: _maker(name, values, path) for name, values in read_as(dict[str, Any], found, path).items()}


def _maker(name: str, given: object, path: Path) -> MakeRule:
    source = f"{path}: {name}"
    word = entry(given, "rule", str, source)
    if word not in KINDS:
        raise ValueError(f"{source}: rule {word} is unknown: choose from {', '.join(KINDS)}")
    kind = KINDS[word]
    constants = {key: value for key, value in read_as(dict[str, Any], given, source).items() if key != "rule"}
    if unknown := sorted(constants.keys() - {one.name for one in fields(kind) if one.init}):
        raise ValueError(f"{source}: {unknown[0]} is unknown")
    optimal = kind is Fixed and constants.get("multiplier") == "optimal"

    def make(multiplier: float) -> Rule:
        made: Rule = read_as(kind, constants | {"multiplier": multiplier} if optimal else constants, source)
        return made

    make(0.0)  # a wrong constant is an error now, not after the first run
    return make

"""What a training run can be told, and the presets. Free of torch, so that a command line shows its help at once."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class PolicySettings:
    """Size and start of the softmax policy."""

    embedding: int = 64
    """D, numbers that every (state, block) has of its own."""
    label_spread: float = 5.0
    """Standard deviation over u of the initial logits of P(u|s), nats."""
    candidate_spread: float = 2.5
    """Standard deviation over x of the initial logits of W(x|u,s), nats."""
    uniform_bits: int = 3
    """Leading free bits of V that are uniform given any state at the start."""


@dataclass(frozen=True)
class LearnerSettings:
    """The constants of Algorithm 1."""

    learning_rate: float = 1e-3
    """eta_phi, the step of Adam."""
    dual_step: float = 0.05
    """eta_beta, the step of the multiplier, bits per unit of total variation."""
    evaluate_every: int = 100
    """Iterations between two exact evaluations, each with a row of metrics and a checkpoint."""
    policy: PolicySettings = PolicySettings()
    """Size and start of the policy."""


@dataclass(frozen=True)
class RunSettings:
    """All that a run depends on: the same settings give the same law on the same machine."""

    agent: Literal["primal-dual", "planner"] = "primal-dual"
    """Who chooses the laws: the paper's Algorithm 1, or the exact optimum in closed form."""
    objective: Literal["gp", "coded"] = "gp"
    """Reward r of a block, in bits: gp = I(U;X) - I(U;S), the paper's; coded = I(V_M*;X) of uniform message bits."""
    tree: str = "news"
    """State tree: "news" is the shipped one, anything else the path of a tree file."""
    prompts: int = 50
    """Prompts, the equally likely states of block 1; the first ones of the tree."""
    candidates: int = 20
    """Q, candidate token blocks kept per state."""
    labels: int = 64
    """M, values of the label U; a power of two, at most 2^L."""
    blocks: int | None = None
    """B, blocks per text; all that the tree has if not given."""
    epsilon: float = 0.1
    """epsilon, bound on sum_b gamma^b c_b, a total variation (no unit)."""
    gamma: float = 1.0
    """gamma in (0, 1], the discount: block b = 1..B counts gamma^b."""
    iterations: int = 2000
    """T, iterations of Algorithm 1; with --resume a new end of the run."""
    message_bits: int = 3
    """l, message bits per block, read by the coded objective."""
    seed: int = 0
    """Seed of the initial policy, the only random thing in the algorithm."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the learner computes."""
    gradient: Literal["closed-form", "autograd"] = "closed-form"
    """How Algorithm 1 gets its gradient; the same numbers, autograd is the readable reference."""
    learner: LearnerSettings = LearnerSettings()
    """The constants of Algorithm 1."""

    def to_json(self) -> dict[str, Any]:
        """Nested dictionaries of JSON types."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "RunSettings":
        """What `to_json` wrote.

        Raises:
            KeyError, TypeError: a setting is missing or unknown.
        """
        learner = dict(value["learner"])
        policy = PolicySettings(**learner.pop("policy"))
        rest = {name: setting for name, setting in value.items() if name != "learner"}
        return RunSettings(**rest, learner=LearnerSettings(**learner, policy=policy))


PRESETS = {
    "default": RunSettings(labels=64, iterations=2000, learner=LearnerSettings(evaluate_every=50)),
    "paper": RunSettings(labels=256, iterations=6000),
    "smoke": RunSettings(prompts=3, candidates=6, labels=16, iterations=60, learner=LearnerSettings(evaluate_every=10)),
}
"""paper: the set-up of the paper's simulations. default: the same problem with fewer labels and iterations, for a first
look. smoke: seconds, for tests."""

"""What a training run can be told, and the presets. Free of torch, so that a command line can show its help at once."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PolicySettings:
    """Size and start of the softmax policy.

    Attributes:
        embedding: D, numbers that every (state, block) has of its own.
        label_spread: standard deviation over u of the initial logits of P(u|s).
        candidate_spread: standard deviation over x of the initial logits of W(x|u,s).
    """

    embedding: int = 64
    label_spread: float = 3.5
    candidate_spread: float = 2.5


@dataclass(frozen=True)
class LearnerSettings:
    """The constants of Algorithm 1.

    Attributes:
        iterations: T, gradient steps.
        learning_rate: eta_phi, the step of Adam.
        dual_step: eta_beta, the step of the multiplier.
        seed: seed of the initial policy, the only random thing in the algorithm.
        policy: size and start of the policy.
    """

    iterations: int = 6000
    learning_rate: float = 1e-3
    dual_step: float = 0.05
    seed: int = 0
    policy: PolicySettings = PolicySettings()


@dataclass(frozen=True)
class Preset:
    """Defaults of a training run that go together.

    Attributes:
        prompts: prompts of the tree that are used, the first ones.
        candidates: Q, the most likely candidates kept per state.
        labels: M.
        iterations: T of Algorithm 1.
    """

    prompts: int
    candidates: int
    labels: int
    iterations: int


PRESETS = {
    "paper": Preset(prompts=50, candidates=20, labels=256, iterations=6000),
    "default": Preset(prompts=50, candidates=20, labels=64, iterations=2000),
    "smoke": Preset(prompts=3, candidates=6, labels=16, iterations=60),
}

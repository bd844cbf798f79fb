"""What a training run can be told, and the presets. Free of torch, so that a command line shows its help at once."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from wm_env.common.files import check_seed
from wm_env.common.help import paragraph_help
from wm_env.common.json_values import is_finite, read_as

MOST = 1e30
"""Largest step, spread or multiplier: learners compute in float32, which ends at 3e38."""
MOST_THREADS = 1024
MOST_COPIES = 4096
"""Most copies of an environment, all of whose laws of a rollout are in memory at once."""
MOST_DIMENSIONS = 65_536
"""Most dimensions of an embedding: the paper's set-up has 64."""


@paragraph_help
@dataclass(frozen=True)
class PolicySettings:
    """Size and start of the softmax policy."""

    embedding: int | None = 64
    """D, numbers that every (state, block) has of its own, with heads that all states share, as in the paper; None: a
    table, every state has its own logits and shares nothing."""
    common: float = 0.9
    """Share of the variance of the initial embeddings, of the logits in a table, that all states have in common, in
    [0, 1]."""
    label_spread: float = 0.5
    """Standard deviation of the initial logits of P(u|s), nats."""
    leading_spread: float = 2.0
    """Standard deviation that each of the first log2 Q free bits of V adds to the initial logits of W(x|u,s), nats."""
    trailing_spread: float = 0.3
    """Standard deviation that each further bit of V adds."""


@paragraph_help
@dataclass(frozen=True)
class LearnerSettings:
    """The constants of Algorithm 1."""

    learning_rate: float = 1e-3
    """eta_phi, the step of Adam."""
    schedule: Literal["constant", "linear"] = "constant"
    """linear: eta_phi falls to 0 over the T iterations of the run, so that the laws come to rest."""
    second_moment: Literal["entry", "row"] = "entry"
    """What Adam divides a gradient by: the root mean square of the entry, or of its row, which is a state's (in heads,
    a dimension's). By row, heavy candidates of a state settle before light ones, which then fill the gaps."""
    dual_step: float = 0.05
    """eta_beta, the step of the multiplier, bits per unit of total variation."""
    first_multiplier: float = 0.0
    """beta before the first step, bits per unit of total variation; the paper's is 0. With the coded objective a price
    from the start lets words divide the candidates evenly, which they cannot change later."""
    evaluate_every: int = 100
    """Iterations between two exact evaluations, each with a row of metrics and a checkpoint."""
    policy: PolicySettings = PolicySettings()
    """Size and start of the policy."""


@paragraph_help
@dataclass(frozen=True)
class PPOSettings:
    """The constants of constrained PPO that matter; the others are the defaults of `PPOLagrangian`."""

    copies: int = 8
    """Copies of the environment; a rollout is one episode of each."""
    learning_rate: float = 0.02
    """Step of Adam at the start; falls linearly to 0 over the run."""
    dual_step: float = 0.2
    """eta_beta, the step of the multiplier, bits per unit of total variation."""
    target_kl: float = 0.1
    """KL divergence by row that ends the epochs of a rollout, nats."""
    evaluate_every: int = 25
    """Rollouts between two exact evaluations, each with a row of metrics and a checkpoint."""


@paragraph_help
@dataclass(frozen=True)
class RunSettings:
    """All that a run depends on: the same settings give the same law, with any number of cores."""

    agent: Literal["primal-dual", "ppo", "planner"] = "primal-dual"
    """Who chooses the laws: the paper's Algorithm 1, constrained PPO, or the exact optimum in closed form."""
    objective: Literal["gp", "coded"] = "gp"
    """Reward r of a block, in bits: gp = I(U;X) - I(U;S), the paper's; coded = I(V_M*;X) of uniform message bits."""
    tree: str = "news"
    """State tree: "news" is the shipped one, anything else the path of a tree file."""
    prompts: int | None = None
    """Prompts, the equally likely states of block 1; the first ones of the split, all of it if not given."""
    split: Literal["all", "train", "test"] = "all"
    """Prompts to choose from: test = every fifth of the tree, train = the others. With --agent ppo, train also writes
    the law for the test prompts: evaluate it with python evaluate.py RUN/held-out."""
    candidates: int | None = None
    """Q, candidate token blocks kept per state; all that the tree has if not given."""
    labels: int = 64
    """M, values of the label U; a power of two, at most 2^L."""
    blocks: int | None = None
    """B, blocks per text; all that the tree has if not given."""
    epsilon: float = 0.1
    """epsilon, bound on sum_b gamma^b c_b, a total variation (no unit)."""
    gamma: float = 1.0
    """gamma in (0, 1], the discount: block b = 1..B counts gamma^b."""
    iterations: int = 2000
    """T, iterations of Algorithm 1 or rollouts of PPO; with --resume a new end of the run."""
    message_bits: int | Literal["auto"] | None = None
    """l, message bits per block, for the coded objective only; 3 if not given. "auto" is for the planner: every state
    gets as many error-free bits as the budget buys."""
    dither_bits: int = 0
    """d, with --message-bits auto: bits of a block's key beyond the pad, which the receiver knows too. They let states
    with uneven candidates carry bits at total variation 0; use 2^d times as many --labels as words."""
    seed: int = 0
    """Seed of the initial policy, the only random thing in the algorithm."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the learner computes."""
    threads: int = 2
    """Threads of the CPU that compute. They decide the order of sums, and so the last digits of a law, on machines with
    any number of cores. Where other programs keep the cores busy, 1 is faster."""
    gradient: Literal["closed-form", "autograd"] = "closed-form"
    """How Algorithm 1 gets its gradient; the same numbers, autograd is the readable reference."""
    learner: LearnerSettings = LearnerSettings()
    """The constants of Algorithm 1."""
    ppo: PPOSettings = PPOSettings()
    """The constants of constrained PPO."""

    @property
    def coded_bits(self) -> int | None:
        """Length of the coded objective's message set: l, or with "auto" the most that labels and candidates allow. The
        gp objective has none.

        Raises:
            ValueError: "auto" while the number of candidates is open, or 1.
        """
        if self.objective == "gp":
            return None
        if self.message_bits == "auto":
            if self.candidates is None:
                raise ValueError("message_bits=auto: the number of candidates is needed")
            if self.candidates < 2:
                raise ValueError("message_bits=auto: one candidate carries no message; take more --candidates")
            return min(self.labels, self.candidates).bit_length() - 1
        # Imported only here, for its torch: see above.
        from wm_env.problem import MESSAGE_BITS

        return MESSAGE_BITS if self.message_bits is None else self.message_bits

    def to_json(self) -> dict[str, Any]:
        """Nested dictionaries of JSON types."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(value: object, source: object = "settings") -> "RunSettings":
        """What `to_json` wrote; settings that came later than the file have their defaults.

        Args:
            value: of JSON's types.
            source: what it was read from, for errors.

        Raises:
            ValueError: a setting is unknown, of another type or out of range.
        """
        settings = read_as(RunSettings, value, source)
        try:
            settings.check()
        except ValueError as error:
            raise ValueError(f"{source}: {error}") from None
        return settings

    def check(self) -> None:
        """Check what does not depend on the tree.

        Raises:
            ValueError: the first setting that is out of range.
        """
        learner, policy, ppo = self.learner, self.learner.policy, self.ppo
        check_seed(self.seed)
        _check_numbers(
            "above 0",
            lambda value: value > 0,
            iterations=self.iterations,
            evaluate_every=learner.evaluate_every,
            ppo_evaluate_every=ppo.evaluate_every,
        )
        _check_numbers(
            f"above 0 and at most {MOST:g}",
            lambda value: 0 < value <= MOST,
            learning_rate=learner.learning_rate,
            dual_step=learner.dual_step,
            ppo_learning_rate=ppo.learning_rate,
            ppo_dual_step=ppo.dual_step,
            ppo_target_kl=ppo.target_kl,
        )
        _check_numbers(
            f"of 0 or more and at most {MOST:g}",
            lambda value: 0 <= value <= MOST,
            first_multiplier=learner.first_multiplier,
            label_spread=policy.label_spread,
            leading_spread=policy.leading_spread,
            trailing_spread=policy.trailing_spread,
        )
        _check_numbers("in [0, 1]", lambda value: 0 <= value <= 1, common=policy.common)
        if not 0 < self.threads <= MOST_THREADS:
            raise ValueError(f"threads={self.threads}: a number from 1 to {MOST_THREADS} is needed")
        if not 0 < ppo.copies <= MOST_COPIES:
            raise ValueError(f"ppo.copies={ppo.copies}: a number from 1 to {MOST_COPIES} is needed")
        if policy.embedding is not None and not 0 < policy.embedding <= MOST_DIMENSIONS:
            raise ValueError(f"embedding={policy.embedding}: a number from 1 to {MOST_DIMENSIONS} is needed")
        if not (is_finite(self.epsilon) and self.epsilon >= 0):
            raise ValueError(f"epsilon={self.epsilon}: a total-variation budget of 0 or more is needed")
        if not 0 < self.gamma <= 1:
            raise ValueError(f"gamma={self.gamma}: a discount in (0, 1] is needed")
        if self.labels == 1:
            raise ValueError("labels=1: a label needs at least two values to carry anything")
        if self.message_bits is not None and self.objective == "gp":
            raise ValueError(f"message_bits={self.message_bits}: the gp objective has none; add --objective coded")
        if self.message_bits == "auto" and self.agent != "planner":
            raise ValueError("message_bits=auto: only the planner chooses lengths; add --agent planner, or a number")
        if self.dither_bits and self.message_bits != "auto":
            raise ValueError(f"dither_bits={self.dither_bits}: only --message-bits auto plans for dither; leave it out")
        if self.dither_bits:
            _check_dither(self.dither_bits)


def _check_dither(bits: int) -> None:
    # Imported only here, for its torch: see above.
    from wm_env.problem import MOST_DITHER_BITS

    if not 0 <= bits <= MOST_DITHER_BITS:
        raise ValueError(f"dither_bits={bits}: 0 to {MOST_DITHER_BITS} are possible")


def _check_numbers(wanted: str, is_right: Callable[[float], bool], **values: float) -> None:
    for name, value in values.items():
        if not (is_finite(value) and is_right(value)):
            raise ValueError(f"{name.replace('ppo_', 'ppo.')}={value}: a number {wanted} is needed")


PRESETS = {
    "default": RunSettings(labels=64, iterations=2000, learner=LearnerSettings(evaluate_every=50)),
    "paper": RunSettings(labels=256, iterations=6000),
    "coded": RunSettings(
        objective="coded",
        labels=8,
        iterations=3000,
        learner=LearnerSettings(
            learning_rate=0.1,
            schedule="linear",
            second_moment="row",
            dual_step=0.1,
            first_multiplier=10.0,
            policy=PolicySettings(embedding=None, leading_spread=0.01, trailing_spread=0.01),
        ),
    ),
    "ppo": RunSettings(agent="ppo", prompts=4, candidates=8, labels=8, iterations=600),
    "smoke": RunSettings(prompts=3, candidates=6, labels=16, iterations=60, learner=LearnerSettings(evaluate_every=10)),
}
"""paper: the set-up of the paper's simulations. default: the same problem with fewer labels and iterations, for a first
look. coded: the coded objective, a label for each word of 3 bits. ppo: constrained PPO on the environment's default
problem. smoke: seconds, for tests."""

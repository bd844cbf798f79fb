"""What a training run can be told. Free of torch, so that a command line shows its help at once."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from wm_env.common.checks import check_choices, check_known
from wm_env.common.files import check_seed
from wm_env.common.help import paragraph_help
from wm_env.common.json_values import is_finite
from wm_env.criteria.table import COSTS, OBJECTIVES

MOST = 1e30
"""Largest step, spread or multiplier: learners compute in float32, which ends at 3e38."""
MOST_THREADS = 1024
MOST_DIMENSIONS = 65_536
"""Most dimensions of an embedding: the paper's set-up has 64."""


@paragraph_help
@dataclass(frozen=True)
class PolicySettings:
    """Size and start of the softmax policy."""

    embedding: int | None = 64
    """D, numbers that every (state, block) has of its own, with heads that all states share, as in the paper; None, in
    Python alone: a table, every state has its own logits and shares nothing."""
    common: float = 0.9
    """Share of the variance of the initial embeddings, of the logits in a table, that all states have in common, in
    [0, 1]."""
    label_spread: float = 0.5
    """Standard deviation of the initial logits of P(u|s), nats."""
    leading_spread: float = 2.0
    """Standard deviation that each of the first log2 Q free bits of V adds to the initial logits of W(x|u,s), nats."""
    trailing_spread: float = 0.3
    """Standard deviation that each further bit of V adds."""

    def check(self) -> None:
        """Check all of them.

        Raises:
            ValueError: the first one that is out of range.
        """
        check_nonnegative(
            label_spread=self.label_spread, leading_spread=self.leading_spread, trailing_spread=self.trailing_spread
        )
        check_numbers("in [0, 1]", lambda value: 0 <= value <= 1, common=self.common)
        if self.embedding is not None and not 0 < self.embedding <= MOST_DIMENSIONS:
            raise ValueError(f"embedding={self.embedding}: a number from 1 to {MOST_DIMENSIONS} is needed")


@dataclass(frozen=True)
class AgentSettings:
    """The constants of one agent; an agent with constants has a subclass of its own.

    Attributes:
        section: name of these constants in config.json and in front of their options; empty if there are none.
        chooses_lengths: the agent knows what message_bits="auto" asks for.
    """

    section: ClassVar[str] = ""
    chooses_lengths: ClassVar[bool] = False

    def check(self) -> None:
        """Check the constants.

        Raises:
            ValueError: the first one that is out of range.
        """


@paragraph_help
@dataclass(frozen=True)
class RunSettings:
    """All that a run depends on: the same settings give the same law, with any number of cores."""

    agent: str = "primal-dual"
    """Who chooses the laws, a name in the table of agents."""
    objective: str = "gp"
    """Reward r of a block, in bits, a name in the table of objectives."""
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
    cost: str = "tv"
    """Cost c of a block, a name in the table of costs."""
    epsilon: float = 0.1
    """epsilon, bound on sum_b gamma^b c_b, in the unit of the cost."""
    budget: Literal["blocks", "text"] = "blocks"
    """What epsilon bounds: blocks = the sum over blocks; text = the total variation of whole texts, exactly, which is
    less. For the planner's gp objective, --cost tv and gamma 1."""
    gamma: float = 1.0
    """gamma in (0, 1], the discount: block b = 1..B counts gamma^b."""
    channel: Literal["none", "erasure", "substitution"] = "none"
    """Edits on the way to the decoder, token by token: erasure = the edited tokens are seen to be edited; substitution
    = a block with an edited token arrives as another candidate. The reward is then I(U;Y) - I(U;S), the cost stays that
    of what is sent. Algorithm 1 needs --gradient autograd."""
    noise: float = 0.0
    """Probability that a token is edited, with --channel; below 1."""
    iterations: int = 2000
    """T, iterations of Algorithm 1 or rollouts of PPO; with --resume a new end of the run."""
    message_bits: int | Literal["auto"] | None = None
    """l, message bits per block, for the coded objective only; 3 if not given. "auto" is for the planner: every state
    gets as many error-free bits as the budget buys."""
    dither_bits: int = 0
    """d, with --message-bits auto: bits of a block's key beyond the pad, which the receiver knows too. They let states
    with uneven candidates carry bits at total variation 0; use 2^d times as many --labels as words."""
    seed: int = 0
    """Seed of all that is random: the policy at the start, and what PPO draws."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the learner computes."""
    threads: int = 2
    """Threads of the CPU that compute. They decide the order of sums, and so the last digits of a law, on machines with
    any number of cores. Where other programs keep the cores busy, 1 is faster."""
    gradient: Literal["closed-form", "autograd"] = "closed-form"
    """How Algorithm 1 gets its gradient; the same numbers, autograd is the readable reference."""
    constants: AgentSettings = AgentSettings()
    """The constants of the agent."""

    @property
    def bits_of_message(self) -> int | None:
        """l, message bits per block, for the objective.

        The number itself if `message_bits` is one. With "auto" it is the largest l with 2^l <= min(labels,
        candidates). None: the objective chooses.

        Raises:
            ValueError: "auto" while the number of candidates is open, or 1.
        """
        if self.message_bits != "auto":
            return self.message_bits
        if self.candidates is None:
            raise ValueError("message_bits=auto: the number of candidates is needed")
        if self.candidates < 2:
            raise ValueError("message_bits=auto: one candidate carries no message; take more candidates")
        return min(self.labels, self.candidates).bit_length() - 1

    def to_json(self) -> dict[str, Any]:
        """Nested dictionaries of JSON types; the agent's constants stand under the name of their section."""
        values = dataclasses.asdict(self)
        constants = values.pop("constants")
        return values | {self.constants.section: constants} if self.constants.section else values

    def check(self) -> None:
        """Check what does not depend on the tree.

        Raises:
            ValueError: the first setting that is out of range.
        """
        check_choices(self)
        check_known("objective", self.objective, OBJECTIVES)
        check_known("cost", self.cost, COSTS)
        check_seed(self.seed)
        check_numbers("above 0", lambda value: value > 0, iterations=self.iterations)
        if not 0 < self.threads <= MOST_THREADS:
            raise ValueError(f"threads={self.threads}: a number from 1 to {MOST_THREADS} is needed")
        self.constants.check()
        if not (is_finite(self.epsilon) and self.epsilon >= 0):
            raise ValueError(f"epsilon={self.epsilon}: a budget of 0 or more is needed")
        if not 0 < self.gamma <= 1:
            raise ValueError(f"gamma={self.gamma}: a discount in (0, 1] is needed")
        check_numbers("from 0 to below 1", lambda value: 0 <= value < 1, noise=self.noise)
        if self.noise and self.channel == "none":
            raise ValueError(f"noise={self.noise}: say how tokens are edited: channel=erasure or channel=substitution")
        if self.labels == 1:
            raise ValueError("labels=1: a label needs at least two values to carry anything")
        if self.message_bits == "auto" and not self.constants.chooses_lengths:
            raise ValueError("message_bits=auto: only the planner chooses lengths; choose agent=planner, or a number")
        if self.dither_bits and self.message_bits != "auto":
            raise ValueError(f"dither_bits={self.dither_bits}: only message_bits=auto plans for dither; leave it out")
        if self.dither_bits:
            _check_dither(self.dither_bits)


def _check_dither(bits: int) -> None:
    # Imported only here, for its torch: see above.
    from wm_env.problem import MOST_DITHER_BITS

    if not 0 <= bits <= MOST_DITHER_BITS:
        raise ValueError(f"dither_bits={bits}: 0 to {MOST_DITHER_BITS} are possible")


def check_numbers(wanted: str, is_right: Callable[[float], bool], **values: float) -> None:
    """Check that numbers are finite and in a range.

    Args:
        wanted: the range in words, to stand behind "a number".
        is_right: whether a number is in the range.
        values: the numbers by name.

    Raises:
        ValueError: the first one that is not.
    """
    for name, value in values.items():
        if not (is_finite(value) and is_right(value)):
            raise ValueError(f"{name}={value}: a number {wanted} is needed")


def check_positive(**values: float) -> None:
    """Check that numbers are above 0 and at most `MOST`; errors as in `check_numbers`."""
    check_numbers(f"above 0 and at most {MOST:g}", lambda value: 0 < value <= MOST, **values)


def check_nonnegative(**values: float) -> None:
    """Check that numbers are 0 or more and at most `MOST`; errors as in `check_numbers`."""
    check_numbers(f"of 0 or more and at most {MOST:g}", lambda value: 0 <= value <= MOST, **values)


TASKS = {
    "small": RunSettings(prompts=4, candidates=8, labels=8),
    "default": RunSettings(labels=64),
    "paper": RunSettings(labels=256, iterations=6000),
    "coded": RunSettings(objective="coded", labels=8, iterations=3000),
    "smoke": RunSettings(prompts=3, candidates=6, labels=16, iterations=60),
}
"""What is to be solved, by name; agents have presets for it with constants of their own.

small: the 4 prompts, 8 candidates and 8 labels of `CovertWatermarkEnv-Small-v0`. default: all prompts and candidates of
the tree, fewer labels and iterations than in the paper. paper: the set-up of the paper's simulations. coded: the coded
objective, a label for each word of 3 bits. smoke: seconds, too short for the budget.
"""

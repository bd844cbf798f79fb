"""The constants of constrained PPO."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from agents.common.settings import AgentSettings, check_nonnegative, check_numbers, check_positive
from wm_env.common.checks import check_choices
from wm_env.common.help import paragraph_help

MOST_COPIES = 4096
"""Most copies of an environment, all of whose laws of a rollout are in memory at once."""


@paragraph_help
@dataclass(frozen=True)
class PPOSettings(AgentSettings):
    """The constants of constrained PPO that matter; the others are the defaults of `PPOLagrangian`."""

    section: ClassVar[str] = "ppo"
    plays: Literal["laws", "texts"] = "laws"
    """What an episode is: laws = the law over all states, as in CovertWatermarkEnv-v0; texts = a single text, whose
    states are drawn, as in CovertWatermarkText-v0, for the gp objective, --cost tv and a label for each candidate."""
    copies: int = 8
    """Copies of the environment; a rollout is one episode of each."""
    learning_rate: float = 0.005
    """Step of Adam at the start; falls linearly to 0 over the run."""
    epochs: int = 4
    """Passes over the states of a rollout."""
    dual_step: float = 1.0
    """eta_beta, the step of the multiplier, bits per unit of cost and unit of violation."""
    dual_gain: float = 20.0
    """A term of the multiplier that follows the violation at once and forgets it, in the same units."""
    target_kl: float = 0.02
    """KL divergence by row that ends the epochs of a rollout, nats."""
    evaluate_every: int = 25
    """Rollouts between two exact evaluations, each with a row of metrics and a checkpoint."""

    def check(self) -> None:
        """As in `AgentSettings`."""
        check_choices(self)
        check_numbers("above 0", lambda value: value > 0, evaluate_every=self.evaluate_every, epochs=self.epochs)
        check_nonnegative(dual_gain=self.dual_gain)
        check_positive(learning_rate=self.learning_rate, dual_step=self.dual_step, target_kl=self.target_kl)
        if not 0 < self.copies <= MOST_COPIES:
            raise ValueError(f"copies={self.copies}: a number from 1 to {MOST_COPIES} is needed")

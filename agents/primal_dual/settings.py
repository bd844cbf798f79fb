"""The constants of the primal-dual learner."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from agents.common.settings import AgentSettings, PolicySettings, check_nonnegative, check_numbers, check_positive
from wm_env.common.checks import check_choices
from wm_env.common.help import paragraph_help


@paragraph_help
@dataclass(frozen=True)
class LearnerSettings(AgentSettings):
    """The constants of Algorithm 1."""

    section: ClassVar[str] = "learner"
    learning_rate: float = 1e-3
    """eta_phi, the step of Adam."""
    schedule: Literal["constant", "linear"] = "constant"
    """linear: eta_phi falls to 0 over the T iterations of the run, so that the laws come to rest."""
    second_moment: Literal["entry", "row"] = "entry"
    """What Adam divides a gradient by: the root mean square of the entry, or of its row, which is a state's (in heads,
    a dimension's). By row, heavy candidates of a state settle before light ones, which then fill the gaps."""
    dual_step: float = 0.05
    """eta_beta, the step of the multiplier, bits per unit of cost and unit of violation."""
    first_multiplier: float = 0.0
    """beta before the first step, bits per unit of cost; the paper's is 0. With the coded objective a price from the
    start lets words divide the candidates evenly, which they cannot change later."""
    evaluate_every: int = 100
    """Iterations between two exact evaluations, each with a row of metrics and a checkpoint."""
    policy: PolicySettings = PolicySettings()  # noqa: RUF009  (frozen, as the class itself is)
    """Size and start of the policy."""

    def check(self) -> None:
        """As in `AgentSettings`."""
        check_choices(self)
        check_numbers("above 0", lambda value: value > 0, evaluate_every=self.evaluate_every)
        check_positive(learning_rate=self.learning_rate, dual_step=self.dual_step)
        check_nonnegative(first_multiplier=self.first_multiplier)
        self.policy.check()

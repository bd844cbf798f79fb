"""What the training harness needs of an agent: a row for the table, and a learner."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from agents.common.evaluation import Evaluation
    from agents.common.runs import RunFolder
    from wm_env.env import CovertWatermarkEnv


TrainedPolicy = Callable[[dict[str, Any], "CovertWatermarkEnv"], NDArray[np.float32]]
"""Observation and the environment that gave it -> its action; nothing random."""


class Learner(ABC):
    """Something that improves a law, iteration by iteration.

    `agents.training.loop.fit` does everything else: exact evaluations, the best law that meets the limit, metrics,
    checkpoints, signals. A learner that cannot go on from a checkpoint leaves out `state` and `restore`.

    Attributes:
        generalises: the policy is a function of observations, `act`, not a table of the tree's states.
        iterates: there are iterations; otherwise the first evaluation is all there is.
        iteration: iterations done so far.
        multiplier: beta, the present price of the cost in bits; 0 if there is none.
        evaluate_every: iterations between two exact evaluations.
        advice: which constants to lower if the law is no longer finite.
    """

    generalises: bool = False
    iterates: bool = True
    iteration: int = 0
    multiplier: float = 0.0
    evaluate_every: int = 1
    advice: str = ""

    @abstractmethod
    def learn(self, iterations: int, pause: Callable[[], None]) -> None:
        """Go on until `iteration` is `iterations`.

        Call `pause` before every iteration and after the last one. It may raise an error, which ends the training.

        Raises:
            FloatingPointError: the parameters are no longer finite.
        """

    @abstractmethod
    def evaluate(self) -> "Evaluation":
        """The law of the present parameters, exactly."""

    def act(self, observation: dict[str, Any], env: "CovertWatermarkEnv") -> NDArray[np.float32]:
        """The action on an observation of an environment, if the policy generalises."""
        raise NotImplementedError

    def parameters(self) -> dict[str, Tensor]:
        """A copy of what the law is a function of, by name."""
        return {}

    def load(self, parameters: dict[str, Tensor]) -> None:  # noqa: B027  (optional)
        """Put back what `parameters` returned."""

    def state(self) -> dict[str, Tensor]:
        """All that later iterations depend on, by name; nothing if the learner has nothing to go on from."""
        return {}

    def restore(self, tensors: dict[str, Tensor], source: object) -> None:  # noqa: B027  (optional)
        """Take over what `state` returned.

        Args:
            tensors: what a file holds; check it with `agents.common.checkpoints.checked`.
            source: the file, for errors.

        Raises:
            ValueError: a tensor is missing, unknown, of another type or shape, or out of range.
        """

    def metrics(self, evaluation: "Evaluation") -> dict[str, float]:
        """Numbers of the last iteration, by their tags in TensorBoard, beside those of the present `evaluation`."""
        return {}

    def finish(self, folder: "RunFolder") -> None:  # noqa: B027  (optional)
        """Write what there is beside the law, once that is in the folder."""

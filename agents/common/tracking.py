"""The numbers of a training run in Weights & Biases or MLflow too, under the same names as in TensorBoard.

Both are optional: the library is imported for the tracker that is chosen only. Where it sends the numbers is its own
configuration: `wandb login` or WANDB_MODE=offline; MLFLOW_TRACKING_URI, or else a file in the working folder.
"""

import errno
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from wm_env.common.foreign.imports import is_installed

PROJECT = "covert-watermark"
"""The project of Weights & Biases, and the experiment of MLflow."""


class Tracker(Protocol):
    """A run there. A run that is resumed here is another one there, since neither takes an iteration twice."""

    def add(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Numbers of an iteration, by tag.

        Raises:
            OSError: they cannot be sent.
        """

    def close(self, whole: bool) -> None:
        """End the run there; `whole` if it came to its end.

        Raises:
            OSError: that cannot be sent.
        """


def check_tracker(name: str | None) -> None:
    """Check that the library of a tracker is there; None is no tracker.

    Raises:
        ValueError: it is not, or there is no such tracker.
    """
    if name is None:
        return
    if name not in TRACKERS:
        raise ValueError(f"track={name}: choose from {', '.join(TRACKERS)}")
    if not is_installed(name):
        raise ValueError(f"track={name}: the library is not there: pip install {name}")


def open_tracker(name: str, folder: Path, first: int, settings: Mapping[str, int | float | str]) -> Tracker:
    """Begin a run there, named after the run's folder; `first`, its first iteration, is not 0 if it was resumed.

    Raises:
        ValueError: the library is missing, or cannot begin, for one of its own reasons.
    """
    check_tracker(name)
    label = f"{folder.name}-from-{first}" if first else folder.name
    return TRACKERS[name](label, folder, settings)


class WandbTracker:
    """Weights & Biases; its files go beside the run folder, into wandb/."""

    def __init__(self, label: str, folder: Path, settings: Mapping[str, int | float | str]) -> None:
        # It takes this package, agents, for a library of language-model agents, and would advertise one for those.
        os.environ.setdefault("WANDB_DISABLE_WEAVE", "true")
        import wandb

        quiet = wandb.Settings(console="off", silent=True)
        # Its configuration has no dots in names.
        config = {name.replace(".", "/"): value for name, value in settings.items()}
        try:
            self._run = wandb.init(
                project=PROJECT, name=label, dir=str(folder.parent), config=config, settings=quiet, reinit="create_new"
            )
        except Exception as error:  # one of many classes, as in `_sending`
            raise ValueError(f"track=wandb: {_line(error)} (or WANDB_MODE=offline)") from None

    def add(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Queued; its own process sends them."""
        with _sending("wandb"):
            self._run.log(dict(metrics), step=iteration)

    def close(self, whole: bool) -> None:
        """Waits until all is sent, or in the file."""
        with _sending("wandb"):
            self._run.finish(exit_code=0 if whole else 1)


class MlflowTracker:
    """MLflow, in the experiment `PROJECT`."""

    def __init__(self, label: str, folder: Path, settings: Mapping[str, int | float | str]) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._metric = Metric
        try:
            self._client = MlflowClient()
            found = self._client.get_experiment_by_name(PROJECT)
            experiment = self._client.create_experiment(PROJECT) if found is None else found.experiment_id
            self._run: str = self._client.create_run(experiment, run_name=label).info.run_id
            params = [Param(name, str(value)) for name, value in settings.items()]
            self._client.log_batch(self._run, params=params)
        except Exception as error:  # one of many classes, as in `_sending`
            raise ValueError(f"track=mlflow: {_line(error)}") from None

    def add(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """All at once."""
        now = int(1000 * time.time())
        batch = [self._metric(name, value, now, iteration) for name, value in metrics.items()]
        with _sending("mlflow"):
            self._client.log_batch(self._run, metrics=batch)

    def close(self, whole: bool) -> None:
        """With the state FINISHED or KILLED."""
        with _sending("mlflow"):
            self._client.set_terminated(self._run, "FINISHED" if whole else "KILLED")


TRACKERS: dict[str, type[WandbTracker] | type[MlflowTracker]] = {"wandb": WandbTracker, "mlflow": MlflowTracker}


@contextmanager
def _sending(name: str) -> Iterator[None]:
    """Within the context whatever the library `name` raises is an OSError of one line, and failed work.

    Neither library has one class for its errors: a process of Weights & Biases that has ended and a database of MLflow
    that is gone have classes of their own.
    """
    try:
        yield
    except Exception as error:
        failure = OSError(f"track={name}: {_line(error)}")
        failure.errno = errno.EIO  # failed work, no bad input
        raise failure from None


def _line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__

"""What a checkpoint holds is checked, all of it, before anything is restored.

The fingerprint of a checkpoint tells that a file was changed, not that the program which wrote it was another one. A
tensor of the wrong size ends a process, and one of the wrong type or range gives other numbers without a word.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wm_env.common.json_values import read_as

ADVICE = "start a new run"
LARGEST_STEP = 2**24
"""Adam counts its steps in float32: there the count ends."""


class TensorSpec(NamedTuple):
    """What a tensor of a checkpoint must be: shape, type, and the range of its numbers, which are finite."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    lowest: float = -math.inf
    highest: float = math.inf


@dataclass(frozen=True)
class Best:
    """The evaluation with the highest rate of all that met the cost limit: its iteration, sum_b gamma^b r_b in bits."""

    at: int
    rate: float


@dataclass(frozen=True)
class CheckpointHeader:
    """What a checkpoint says beside its tensors.

    Attributes:
        settings: `agents.common.runs.settings_fingerprint` of the run.
        metrics: `agents.common.log.TrainingLog.fingerprint` of the rows so far.
        best: the best evaluation, whose parameters are the tensors best.*; None if no evaluation met the limit.
    """

    settings: str
    metrics: str
    best: Best | None


def read_about(meta: Any, source: object) -> CheckpointHeader:
    """The metadata of a checkpoint.

    Raises:
        ValueError: an entry is missing, unknown, or of another type.
    """
    try:
        return read_as(CheckpointHeader, meta, source)
    except ValueError as error:
        raise ValueError(f"{error}: {ADVICE}") from None


def check_best(best: Best | None, reached: int, source: object) -> None:
    """Check that the best evaluation is not yet to come in a checkpoint that was taken at the iteration `reached`.

    Raises:
        ValueError: it is.
    """
    if best is not None and not 0 <= best.at <= reached:
        raise ValueError(f"{source}: best.at is {best.at}, a number from 0 to {reached} is needed: {ADVICE}")


COUNT = TensorSpec((), torch.int64, lowest=0)


def adam(parameter: Tensor, prefix: str, steps: tuple[int, int], by_row: bool = False) -> dict[str, TensorSpec]:
    """Entries of what an Adam keeps for a parameter after a number of steps in a range.

    Args:
        prefix: what the names begin with, before a dot.
        steps: the least and the most it can have taken.
        by_row: `agents.primal_dual.row_adam.RowAdam` has one second moment for a row.
    """
    shape = tuple(parameter.shape)
    lowest, highest = (min(step, LARGEST_STEP) for step in steps)
    return {
        f"{prefix}.step": TensorSpec((), torch.float32, lowest, highest),
        f"{prefix}.exp_avg": TensorSpec(shape, parameter.dtype),
        f"{prefix}.exp_avg_sq": TensorSpec(
            (shape[0], *[1] * (len(shape) - 1)) if by_row else shape, parameter.dtype, 0
        ),
    }


def like(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, TensorSpec]:
    """Entries called `prefix`.NAME of the shapes and types of `tensors`."""
    return {f"{prefix}.{name}": TensorSpec(tuple(value.shape), value.dtype) for name, value in tensors.items()}


def checked(tensors: Mapping[str, Tensor], wanted: Mapping[str, TensorSpec], source: object) -> dict[str, Tensor]:
    """The tensors of a file, which has no scalars, in the shapes that are wanted.

    Raises:
        ValueError: the first entry that is missing, unknown, of another type or shape, not finite, or out of range.
    """
    if missing := wanted.keys() - tensors.keys():
        raise ValueError(f"{source}: {min(missing)} is missing: {ADVICE}")
    if unknown := tensors.keys() - wanted.keys():
        raise ValueError(f"{source}: {min(unknown)} is unknown: {ADVICE}")
    return {name: _fitting(tensors[name], entry, f"{source}: {name}") for name, entry in wanted.items()}


def count(tensors: Mapping[str, Tensor], name: str, source: object) -> int:
    """The whole number `name` of a file, 0 or more. What else is wanted may depend on it.

    Raises:
        ValueError: as `checked`.
    """
    present = {name: tensors[name]} if name in tensors else {}
    return int(checked(present, {name: COUNT}, source)[name])


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors called `prefix`.NAME, by NAME."""
    return {name.removeprefix(f"{prefix}."): value for name, value in tensors.items() if name.startswith(f"{prefix}.")}


def _fitting(value: Tensor, wanted: TensorSpec, name: str) -> Tensor:
    if value.dtype != wanted.dtype:
        raise ValueError(f"{name} has type {_short(value.dtype)}, {_short(wanted.dtype)} is needed: {ADVICE}")
    if value.shape not in (wanted.shape, wanted.shape or (1,)):
        raise ValueError(f"{name} has shape {tuple(value.shape)}, {wanted.shape} is needed: {ADVICE}")
    if not torch.isfinite(value).all():
        raise ValueError(f"{name} is not finite: {ADVICE}")
    if not ((value >= wanted.lowest) & (value <= wanted.highest)).all():
        raise ValueError(f"{name} is not in [{wanted.lowest:g}, {wanted.highest:g}]: {ADVICE}")
    return value.reshape(wanted.shape)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

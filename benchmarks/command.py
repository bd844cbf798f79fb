"""How benchmarks begin and end: like the commands of the package, with one line for what goes wrong."""

from collections.abc import Callable
from functools import partial
from typing import NoReturn

import numpy as np

from wm_env.common.arrays import Ints
from wm_env.common.command import exit_code, run_command

SEEDS = (0, 2**32 - 1)
MANY = (1, 10**9)
"""Counts that cost time but no memory."""


def run_benchmark(main: Callable[[], None]) -> NoReturn:
    """Run a benchmark and end the process: with code 0, 1 failed, 2 bad arguments or input, 130 interrupted."""
    run_command(partial(exit_code, main))


def draw_bits(rng: np.random.Generator, rows: int, columns: int) -> Ints:
    """Uniform bits, shape (rows, columns)."""
    return rng.integers(0, 2, (rows, columns), dtype=np.uint8).astype(np.int64)


def within(options: object, **limits: tuple[float, float]) -> None:
    """Check numbers of a command line, of which some have several and some are left out (None).

    Args:
        options: an object that has them as attributes.
        limits: by name, the least and the most that an option may be.

    Raises:
        ValueError: the first that is not; NaN never is.
    """
    for name, (least, most) in limits.items():
        given = getattr(options, name)
        for value in given if isinstance(given, list | tuple) else [given]:
            if value is not None and not least <= value <= most:
                flag = name.replace("_", "-")
                raise ValueError(f"--{flag} {value}: a number from {least:g} to {most:g} is needed")

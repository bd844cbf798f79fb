"""Types of the environment's arguments, which come from keyword dictionaries, sweeps and files without a check."""

from os import PathLike, fspath
from typing import Any

import numpy as np

from wm_env.json_values import is_finite


def integer(name: str, value: Any) -> int:
    """`value`, an integer of Python or NumPy; True and False are none.

    Raises:
        ValueError: it is something else; names the argument.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ValueError(f"{name}={value!r}: an integer is needed")
    return int(value)


def number(name: str, value: Any) -> float:
    """`value`, a finite number of Python or NumPy; True and False are none.

    Raises:
        ValueError: it is something else; names the argument.
    """
    is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not is_number or not is_finite(value):
        raise ValueError(f"{name}={value!r}: a finite number is needed")
    return float(value)


def name_or_path(name: str, value: Any) -> str:
    """`value`, a string or a path.

    Raises:
        ValueError: it is something else; names the argument.
    """
    if not isinstance(value, str | PathLike):
        raise ValueError(f"{name}={value!r}: a name or a path is needed")
    return str(fspath(value))

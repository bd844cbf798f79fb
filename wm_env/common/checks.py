"""Checks of arguments that come from outside: keyword dictionaries, sweeps, files, policies.

Each check returns the argument as one type, or refuses it with its name.
"""

import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from os import PathLike, fspath
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from wm_env.common.files import first_line
from wm_env.common.json_values import is_finite


def integer(name: str, value: Any) -> int:
    """`value`, an integer of Python or NumPy; True and False are none.

    Raises:
        ValueError: it is something else; names the argument.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ValueError(f"{name}={_shown(value)}: an integer is needed")
    return int(value)


def number(name: str, value: Any) -> float:
    """`value`, a finite number of Python or NumPy; True and False are none.

    Raises:
        ValueError: it is something else; names the argument.
    """
    is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not is_number or not is_finite(value):
        raise ValueError(f"{name}={_shown(value)}: a finite number is needed")
    return float(value)


def seed_or_none(value: Any) -> int | None:
    """The seed of a reset, an integer >= 0 of Python or NumPy, or None.

    Raises:
        ValueError: it is something else.
    """
    if value is None:
        return None
    if (seed := integer("seed", value)) < 0:
        raise ValueError(f"seed={seed}: an integer >= 0 is needed")
    return seed


def options_or_none(value: Any) -> dict[str, Any]:
    """The options of a reset, a dictionary with strings as keys; a copy, empty for None.

    Raises:
        ValueError: it is something else.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"options={_shown(value)}: a dictionary with strings as keys is needed")
    return dict(value)


def reals(name: str, value: Any) -> NDArray[Any]:
    """`value` as a contiguous array of real numbers: float16, float32 or float64 as they are, all others as float64.

    Raises:
        ValueError: it is no array of real numbers; names the argument.
    """
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"{name}: an array of real numbers is needed ({first_line(error)})") from None
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{name}: an array of real numbers is needed, not of {array.dtype}")
    small = array.dtype.kind == "f" and array.dtype.itemsize <= 8
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("=") if small else np.float64)


def name_or_path(name: str, value: Any) -> str:
    """`value`, a string or a path.

    Raises:
        ValueError: it is something else; names the argument.
    """
    if not isinstance(value, str | PathLike):
        raise ValueError(f"{name}={_shown(value)}: a name or a path is needed")
    return str(fspath(value))


def check_known(argument: str, name: object, names: Iterable[str]) -> None:
    """Check that `name`, which was given for `argument`, is one of `names`.

    Raises:
        ValueError: it is none of them; says which there are.
    """
    if name not in (known := tuple(names)):
        raise ValueError(f"{argument}={name!r}: choose one of {', '.join(known)}")


def check_choices(settings: Any) -> None:
    """Check the fields of a dataclass that are a choice, `Literal` in their type, or several choices in a tuple.

    Python itself takes any value there, and a word that is none of the choices would count as one of them without a
    word. Fields of other types do not count.

    Raises:
        ValueError: the first value that is no choice; says which there are.
    """
    types = get_type_hints(type(settings))
    for field in fields(settings):
        _check_choice(field.name, getattr(settings, field.name), types[field.name])


def _check_choice(name: str, value: object, kind: Any) -> None:
    if get_origin(kind) is tuple and isinstance(value, tuple):
        for each in value:
            _check_choice(name, each, get_args(kind)[0])
        return
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    known = [word for each in kinds if get_origin(each) is Literal for word in get_args(each)]
    others = tuple(each for each in kinds if isinstance(each, type))
    if known and value not in known and not isinstance(value, others):
        raise ValueError(f"{name}={_shown(value)}: choose one of {', '.join(map(str, known))}")


def _shown(value: Any) -> str:
    """A refused value as text of one line, cut if it is long."""
    return " ".join(reprlib.repr(value).split())

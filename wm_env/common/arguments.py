"""Command lines: tyro's, where an option that was given has a value, whatever the word.

tyro by itself takes the word `None` for no value where an option may be left out, so that a file of that name, or a
number that is none, would count as not given.
"""

from collections.abc import Callable
from dataclasses import replace
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, overload

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

T = TypeVar("T")

_REGISTRY = ConstructorRegistry()


@_REGISTRY.primitive_rule
def _without_none(kind: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """How to read `X | None`: as `X`."""
    if kind.type_origin not in (Union, UnionType) or NoneType not in get_args(kind.type):
        return None
    rest: Any = Union.__getitem__(tuple(part for part in get_args(kind.type) if part is not NoneType))
    found = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(rest, kind.markers))
    if not isinstance(found, PrimitiveConstructorSpec):
        return None
    spec = found
    return replace(
        spec,
        is_instance=lambda value: value is None or spec.is_instance(value),
        str_from_instance=lambda value: ["None"] if value is None else spec.str_from_instance(value),
    )


@overload
def parse(options: type[T], **settings: Any) -> T: ...


@overload
def parse(options: object, **settings: Any) -> Any: ...


def parse(options: Any, **settings: Any) -> Any:
    """Read a command line into `options`, a dataclass; ends the process with code 2 and a message if it is wrong.

    Args:
        options: what there is to set; of several types, subcommands choose one.
        settings: further arguments of `tyro.cli`.
    """
    return tyro.cli(options, registry=_REGISTRY, **settings)


def parse_subcommand(commands: dict[str, Callable[..., Any]], **settings: Any) -> Any:
    """Read a command line whose first word is one of `commands`; the rest is read into its dataclass, as by `parse`."""
    return tyro.extras.subcommand_cli_from_dict(commands, registry=_REGISTRY, **settings)

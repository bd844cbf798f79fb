"""Command lines: tyro's, where an option that was given has a value, whatever the word.

tyro by itself takes the word `None` for no value where an option may be left out, so that a file of that name, or a
number that is none, would count as not given.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import replace
from io import StringIO
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, overload

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from wm_env.common.foreign.visible import is_shown, visible

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
    with _visible_errors(settings.get("args")):
        return tyro.cli(options, registry=_REGISTRY, **settings)


def parse_subcommand(commands: dict[str, Callable[..., Any]], **settings: Any) -> Any:
    """Read a command line whose first word is one of `commands`; the rest is read into its dataclass, as by `parse`."""
    with _visible_errors(settings.get("args")):
        return tyro.extras.subcommand_cli_from_dict(commands, registry=_REGISTRY, **settings)


@contextmanager
def _visible_errors(arguments: Sequence[str] | None) -> Iterator[None]:
    """Within the context tyro's errors, which repeat words of the command line as they are, show what is in them."""
    if all(map(is_shown, "".join(sys.argv[1:] if arguments is None else arguments))):
        yield
        return
    caught = StringIO()
    try:
        with redirect_stderr(caught):
            yield
    finally:
        sys.stderr.write(visible(caught.getvalue(), kept="\n"))

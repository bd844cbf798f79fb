"""JSON of files as typed values. A value of another type is refused, and the error has its name in the file.

    settings = read_as(Settings, parse_json(text, path), path)

A file may come from anyone, so no value is converted: "3", 3.0 and true are no integers. Numbers are finite.
"""

import dataclasses
import json
import math
import reprlib
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, TypeVar, Union, cast, get_args, get_origin, get_type_hints

_T = TypeVar("_T")

_WORDS = {
    NoneType: "null",
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "an object",
}


def parse_json(text: str, source: object) -> Any:
    """The value that `text` spells.

    Raises:
        ValueError: it is not JSON, nested too deeply, or an object has a name twice; `source` names it.
    """
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_no_number)
    except ValueError as error:
        raise ValueError(f"{source} is not JSON: {error}") from None
    except RecursionError:
        raise ValueError(f"{source} is not JSON: nested too deeply") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object as a dictionary; ValueError if a name stands in it twice, since either value may be meant."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the name {reprlib.repr(name)} is there twice in one object")
        found[name] = value
    return found


def _no_number(name: str) -> NoReturn:
    """Refuse NaN and Infinity, which Python's parser accepts although JSON has no such numbers."""
    raise ValueError(f"{name} is no number of JSON")


def read_as(kind: type[_T] | UnionType, value: object, source: object, name: str = "") -> _T:
    """`value`, which came from JSON, as a `kind`.

    Args:
        kind: bool, int, float, str, list, dict, None, a Literal, a union, tuple[..., ...], or a dataclass of these. A
            list is read as a tuple, an object as a dataclass: fields that are missing take their defaults.
        value: of JSON's types.
        source: what it was read from, such as a path, for errors.
        name: its name there, such as settings.seed, for errors; empty for the whole.

    Raises:
        ValueError: it is of another type, lacks an entry or has an unknown one; the first is named.
    """
    return cast(_T, _read(kind, value, source, name))


def entry(values: object, name: str, kind: type[_T] | UnionType, source: object) -> _T:
    """The entry `name` of the object `values` as a `kind`, as in `read_as`; it must be there.

    Raises:
        ValueError: `values` is no object, or has no such entry, or it is of another type.
    """
    known = read_as(dict[str, Any], values, source)
    if name not in known:
        raise ValueError(f"{source}: {name} is missing")
    return read_as(kind, known[name], source, name)


def _read(kind: Any, value: Any, source: object, name: str) -> Any:
    if kind is Any:
        return value
    if dataclasses.is_dataclass(kind):
        return _read_fields(kind, _read(dict, value, source, name), source, name)
    origin, parts = get_origin(kind), get_args(kind)
    if origin is dict and parts[1:] != (Any,):
        values = _read(dict, value, source, name)
        return {key: _read(parts[1], item, source, f"{name}.{key}" if name else key) for key, item in values.items()}
    if origin is tuple and Ellipsis not in parts:
        items = _read(list, value, source, name)
        if len(items) != len(parts):
            raise ValueError(f"{source}{name and f': {name}'} has {len(items)} entries, {len(parts)} are needed")
        places = zip(parts, items, strict=True)
        return tuple(_read(part, item, source, f"{name}[{place}]") for place, (part, item) in enumerate(places))
    if origin is tuple:
        items = _read(list, value, source, name)
        return tuple(_read(parts[0], item, source, f"{name}[{place}]") for place, item in enumerate(items))
    if origin in (Union, UnionType):
        for part in parts:
            if _fits(part, value):
                return _read(part, value, source, name)
    if not _fits(kind, value):
        shown = reprlib.repr(value)
        raise ValueError(f"{source}{name and f': {name}'} is {shown}, {_wanted(kind)} is needed")
    return float(value) if kind is float else value


def _read_fields(kind: Any, values: dict[str, Any], source: object, name: str) -> Any:
    hints = get_type_hints(kind)
    types = {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    before = f"{name}." if name else ""
    if unknown := sorted(values.keys() - types.keys()):
        raise ValueError(f"{source}: {before}{unknown[0]} is unknown")
    for field in dataclasses.fields(kind):
        needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if needed and field.name not in values:
            raise ValueError(f"{source}: {before}{field.name} is missing")
    read = {field: _read(types[field], value, source, f"{before}{field}") for field, value in values.items()}
    return kind(**read)


def _fits(kind: Any, value: Any) -> bool:
    """Whether `value` is a `kind`, as far as can be told without looking into lists and objects."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return any(type(value) is type(part) and value == part for part in parts)
    if origin in (Union, UnionType):
        return any(_fits(part, value) for part in parts)
    if dataclasses.is_dataclass(kind):
        return isinstance(value, dict)
    if kind is float:
        return type(value) in (int, float) and is_finite(value)
    if kind is str:
        return isinstance(value, str) and _is_unicode(value)
    return type(value) is (list if origin is tuple else origin or kind)


def is_finite(value: float) -> bool:
    """Whether a number is neither infinite nor NaN nor an integer beyond the largest float."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _is_unicode(value: str) -> bool:
    """JSON can spell halves of surrogate pairs, which are no characters."""
    return not any("\ud800" <= character <= "\udfff" for character in value)


def _wanted(kind: Any) -> str:
    """A type in words."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return " or ".join(repr(part) for part in parts)
    if origin in (Union, UnionType):
        return " or ".join(_wanted(part) for part in parts)
    if dataclasses.is_dataclass(kind):
        return _WORDS[dict]
    return _WORDS[list if origin is tuple else origin or kind]

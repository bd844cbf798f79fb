"""The help of commands: what the docs of options say, without the line breaks of the source."""

import inspect
from typing import TypeVar

import docstring_parser

_Options = TypeVar("_Options", bound=type)


def paragraph_help(options: _Options) -> _Options:
    """Class decorator for dataclasses of options: the doc of every field is one paragraph of the help.

    tyro keeps the line breaks of field docs whose further lines are indented, as all are, and wraps what is between
    them once more. It reads the docstring of the class first, so that is where the paragraphs go.
    """
    docs = docstring_parser.parse_from_object(options).params
    lines = [f"    {doc.arg_name}: {' '.join((doc.description or '').split())}" for doc in docs]
    options.__doc__ = "\n".join([inspect.cleandoc(options.__doc__ or ""), "", "Attributes:", *lines])
    return options

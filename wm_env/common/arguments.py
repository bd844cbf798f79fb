"""Options that may be left out, and whose value may be any word: tyro by itself takes the word `None` for no value."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from tyro.constructors import PrimitiveConstructorSpec


def _word(kind: Callable[[str], Any], metavar: str) -> PrimitiveConstructorSpec[Any]:
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda words: kind(words[0]),
        is_instance=lambda value: value is None or isinstance(value, str | Path | int),
        str_from_instance=lambda value: [str(value)],
    )


OptionalText = Annotated[str | None, _word(str, "STR")]
"""Text, None if the option is left out."""

OptionalPath = Annotated[Path | None, _word(Path, "PATH")]
"""A path, None if the option is left out."""

OptionalInteger = Annotated[int | None, _word(int, "INT")]
"""An integer, None if the option is left out."""

"""Lines of text files, which may be compressed."""

import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import TextIO, cast

from wm_env.common.files import reading
from wm_env.common.foreign.encodings import encoding_of

PACKED = (".gz", ".xz")
"""How the names of compressed files end; files of other names are plain."""

_LONGEST_MARK = 4
"""Bytes of the longest byte-order mark."""

MOST_CHARACTERS = 1 << 26
"""Longest line that is read: a device or a few packed bytes may hold one without end."""


def read_lines(path: Path, longest: int = MOST_CHARACTERS) -> Iterator[str]:
    """The lines of a file (plain, .gz or .xz) in UTF-8 or in what its byte-order mark says, without mark and ends.

    Raises:
        OSError: there is no such file, it is a folder, or it cannot be read.
        ValueError: it is no such text, or no complete file of the kind that its name says, or a line has more than
            `longest` characters.
    """
    try:
        with reading(path), _open(path) as file:
            while line := file.readline(longest + 1):
                text = line.removesuffix("\n")
                if len(text) > longest:
                    raise ValueError(f"{path} has a line of more than {longest:,} characters, or without end")
                yield text
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not {error.encoding.upper()} text ({error.reason}): save it as UTF-8") from None
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError) as error:
        raise ValueError(f"{path} is no complete {path.suffix.lower()} file ({error})") from None


def _open(path: Path) -> TextIO:
    kinds: dict[str, Callable[[Path, str], object]] = {".gz": gzip.GzipFile, ".xz": lzma.LZMAFile}
    unpack = kinds.get(path.suffix.lower(), open)
    # Each has `peek`, as the files of `open` have.
    file = cast(BufferedReader, unpack(path, "rb"))
    try:
        return TextIOWrapper(file, encoding=encoding_of(file.peek(_LONGEST_MARK)[:_LONGEST_MARK]))
    except BaseException:
        file.close()
        raise

"""Lines of text files, which may be compressed."""

import gzip
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from wm_env.common.files import reading

PACKED = (".gz", ".xz")
"""How the names of compressed files end; files of other names are plain."""

MOST_CHARACTERS = 1 << 26
"""Longest line that is read: a device or a few packed bytes may hold one without end."""


def read_lines(path: Path, longest: int = MOST_CHARACTERS) -> Iterator[str]:
    """The lines of a UTF-8 file (plain, .gz or .xz), without their ends; a byte order mark before the first is skipped.

    Raises:
        OSError: there is no such file, it is a folder, or it cannot be read.
        ValueError: it is not UTF-8, or no complete file of the kind that its name says, or a line has more than
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
        raise ValueError(f"{path} is not UTF-8 text ({error.reason})") from None
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError) as error:
        raise ValueError(f"{path} is no complete {path.suffix.lower()} file ({error})") from None


def _open(path: Path) -> TextIO:
    packing = path.suffix.lower()
    if packing == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig")
    if packing == ".xz":
        return lzma.open(path, "rt", encoding="utf-8-sig")
    return path.open(encoding="utf-8-sig")

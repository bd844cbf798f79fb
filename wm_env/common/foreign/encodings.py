"""Bytes of files as text, whatever editor saved them: UTF-8, or what a byte-order mark says."""

import codecs

# The mark of UTF-32 begins with that of UTF-16.
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def encoding_of(start: bytes) -> str:
    """The encoding that the first four bytes of a file tell: that of its byte-order mark, or UTF-8.

    Python's codec of this name reads the mark and leaves it out.
    """
    return next((name for mark, name in _MARKS.items() if start.startswith(mark)), "utf-8")


def text_of(data: bytes) -> str:
    """The text that `data` encodes, without a byte-order mark.

    Raises:
        ValueError: it is none in its encoding; says which, and where.
    """
    encoding = encoding_of(data)
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        name = encoding.removesuffix("-sig").upper()
        raise ValueError(f"not {name} text ({error.reason} at byte {error.start}): save it as UTF-8") from None

"""From the bytes of a text back to the blocks that it was made of.

A receiver has no tokens: a block is a byte string among those that its state allows, and where one candidate continues
another several readings may fit for a while. The end of the text decides: a reading must use all of it.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

_Place = TypeVar("_Place")

Branch = tuple[bytes, int, _Place]
"""A candidate of a state: its byte string, its number, and the state that follows it."""

TextReading = tuple[tuple[_Place, int], ...]
"""The state and the number of the candidate of every block."""


def read_blocks(
    text: bytes, start: Iterable[_Place], branches: Callable[[_Place], Iterable[Branch[_Place]]], blocks: int
) -> tuple[list[TextReading[_Place]], int]:
    """All readings of `text` as `blocks` candidates one after the other, and how many blocks could be matched.

    Args:
        text: the whole text, without the prompt.
        start: the states that the first block may be in.
        branches: the candidates of a state; asked only for states that the text leads to.
        blocks: B.

    Returns:
        The readings, in the order of the candidates, and the most blocks from the front that some reading matched: B
        if there is a whole one.
    """
    found: list[TextReading[_Place]] = []
    matched = 0
    unread: list[tuple[_Place, int, TextReading[_Place]]] = [(node, 0, ()) for node in start]
    unread.reverse()
    while unread:
        node, position, path = unread.pop()
        longer = []
        for string, number, following in branches(node):
            end = position + len(string)
            step = (*path, (node, number))
            if not text.startswith(string, position) or (len(step) == blocks and end != len(text)):
                continue
            matched = max(matched, len(step))
            if len(step) == blocks:
                found.append(step)
            else:
                longer.append((following, end, step))
        unread += reversed(longer)
    return found, matched

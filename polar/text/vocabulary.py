"""A vocabulary as a trie of byte strings, laid out so that every prefix is one range of tokens.

Tokens are numbered by rank in the order of their byte strings. In that order the tokens that begin with a prefix are
neighbours, so with a cumulative law over ranks the mass of any prefix is one subtraction.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from wm_env.common.arrays import Ints


@dataclass(frozen=True)
class Node:
    """All tokens that begin with one string.

    Attributes:
        depth: length of the string.
        bounds: ranks, shape (n + 2,): the first token; then the end of the tokens that *are* the string, which is where
            the tokens of the first next byte start; then the end of the tokens of every next byte.
        next_bytes: the n bytes that can follow the string inside a token, ascending.
    """

    depth: int
    bounds: Ints
    next_bytes: tuple[int, ...]


class Vocabulary:
    """The tokens that a text can contain.

    Attributes:
        ids: token ids by rank, shape (tokens,).
        strings: their bytes by rank, ascending; equal strings in the order of their ids.
        root: the node of the empty string.
    """

    def __init__(self, token_bytes: Mapping[int, bytes]) -> None:
        """Raises ValueError if there are no tokens, or one without bytes."""
        ranked = sorted((string, token) for token, string in token_bytes.items())
        if not ranked:
            raise ValueError("a vocabulary needs at least one token")
        if not ranked[0][0]:
            raise ValueError(f"token {ranked[0][1]} has no bytes: ban it or use another tokenizer")
        self.strings = tuple(string for string, _ in ranked)
        self.ids: Ints = np.array([token for _, token in ranked], dtype=np.int64)
        self._nodes: dict[tuple[int, int], Node] = {}
        self.root = self._node(0, len(ranked), 0)
        self._string_of = dict(token_bytes)

    def text(self, tokens: tuple[int, ...]) -> bytes:
        """The bytes of a sequence of token ids."""
        return b"".join(self._string_of[token] for token in tokens)

    def child(self, node: Node, byte: int) -> Node:
        """The node of the string with one more byte, one of `next_bytes`."""
        place = node.next_bytes.index(byte)
        return self._node(int(node.bounds[place + 1]), int(node.bounds[place + 2]), node.depth + 1)

    def matches(self, text: bytes) -> list[int]:
        """The ids of the tokens that `text` begins with, longest first; equal strings in the order of their ids."""
        found: list[int] = []
        node = self.root
        for byte in text:
            if byte not in node.next_bytes:
                break
            node = self.child(node, byte)
            found[:0] = self.ids[node.bounds[0] : node.bounds[1]].tolist()
        return found

    def _node(self, start: int, end: int, depth: int) -> Node:
        # Where a single token begins with a string, several depths have its range.
        if (start, depth) not in self._nodes:
            self._nodes[start, depth] = self._make_node(start, end, depth)
        return self._nodes[start, depth]

    def _make_node(self, start: int, end: int, depth: int) -> Node:
        own_end = start
        while own_end < end and len(self.strings[own_end]) == depth:
            own_end += 1
        bounds, next_bytes = [start, own_end], []
        while bounds[-1] < end:
            longer = self.strings[bounds[-1]][: depth + 1]
            next_bytes.append(longer[-1])
            after = longer[:-1] + bytes([longer[-1] + 1]) if longer[-1] < 255 else None
            bounds.append(end if after is None else bisect_left(self.strings, after, bounds[-1], end))
        return Node(depth, np.array(bounds, dtype=np.int64), tuple(next_bytes))

"""Discop: a walk down a Huffman tree; at every node the two values of a bit see the same pointer, half a turn apart.

Where they go to different children, the child carries the bit; where they agree, it carries none. The pointer is
shared randomness, each value of the bit sees a uniform one, so the law is exact.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

POINTER_BITS = 64


@dataclass(frozen=True)
class Node:
    """A leaf has `symbol` >= 0 and no children."""

    weight: int
    symbol: int = -1
    left: "Node | None" = None
    right: "Node | None" = None


def huffman_tree(weights: Sequence[int]) -> Node:
    """The tree of the symbols with mass; equal weights merge in the order in which they arose."""
    heap = [(weight, x, Node(weight, x)) for x, weight in enumerate(weights) if weight]
    heapq.heapify(heap)
    number = len(weights)
    while len(heap) > 1:
        (a, _, left), (b, _, right) = heapq.heappop(heap), heapq.heappop(heap)
        heapq.heappush(heap, (a + b, number, Node(a + b, left=left, right=right)))
        number += 1
    return heap[0][2]


def directions(node: Node, pointer: int, pointer_bits: int = POINTER_BITS) -> tuple[bool, bool]:
    """Whether bit 0 and bit 1 go left, with the pointer at `pointer` / 2^pointer_bits of a turn."""
    assert node.left is not None
    turn = 1 << pointer_bits
    limit = node.left.weight << pointer_bits
    turned = (pointer + turn // 2) % turn
    return pointer * node.weight < limit, turned * node.weight < limit


def send(root: Node, bits: Sequence[int], pointer: Callable[[], int]) -> tuple[int, int]:
    """(symbol, number of bits consumed); behind the last bit zeros are sent."""
    node, used = root, 0
    while node.symbol < 0:
        zero, one = directions(node, pointer())
        bit = bits[used] if used < len(bits) else 0
        used += zero != one
        following = node.left if (one if bit else zero) else node.right
        assert following is not None
        node = following
    return node.symbol, used


def receive(root: Node, symbol: int, pointer: Callable[[], int]) -> list[int]:
    """The bits that a symbol carries.

    Raises:
        ValueError: no message leads to the symbol with these pointers.
    """
    path = _path(root, symbol)
    node, bits = root, []
    for goes_left in path:
        zero, one = directions(node, pointer())
        if zero != one:
            bits.append(int(goes_left == one))
        elif goes_left != zero:
            raise ValueError("no message of this key chooses what was received")
        following = node.left if goes_left else node.right
        assert following is not None
        node = following
    return bits


def _path(root: Node, symbol: int) -> list[bool]:
    """Left or right, from the root to the leaf."""
    stack: list[tuple[Node, list[bool]]] = [(root, [])]
    while stack:
        node, path = stack.pop()
        if node.symbol == symbol:
            return path
        for child, goes_left in ((node.left, True), (node.right, False)):
            if child is not None:
                stack.append((child, [*path, goes_left]))
    raise ValueError(f"symbol {symbol} has no mass")


def message_leaves(root: Node, message_bits: int, pointers: Sequence[int]) -> list[int]:
    """The symbol that every message of so many bits chooses; pointer d serves depth d."""
    chosen = [0] * (1 << message_bits)
    stack = [(root, 0, 0, 0)]
    while stack:
        node, depth, used, prefix = stack.pop()
        if node.symbol >= 0:
            rest = message_bits - used
            for message in range(prefix << rest, (prefix + 1) << rest):
                chosen[message] = node.symbol
            continue
        assert node.left is not None
        assert node.right is not None
        zero, one = directions(node, pointers[depth])
        if zero == one or used == message_bits:
            stack.append((node.left if zero else node.right, depth + 1, used, prefix))
        else:
            for bit, goes_left in ((0, zero), (1, one)):
                stack.append((node.left if goes_left else node.right, depth + 1, used + 1, 2 * prefix + bit))
    return chosen


def message_law(root: Node, bits: Sequence[int], symbols: int) -> list[float]:
    """P(x | message) over uniform pointers, shape (symbols,): the arcs of the pointer at every node, multiplied out.

    Bit 1 sees the pointer half a turn on, so it goes left on two arcs: from half a turn, and behind the end of it.
    """
    law = [0.0] * symbols
    stack = [(root, 0, 1.0)]
    while stack:
        node, used, mass = stack.pop()
        if node.symbol >= 0:
            law[node.symbol] += mass
            continue
        assert node.left is not None
        assert node.right is not None
        split = node.left.weight / node.weight
        zero = [(0.0, split)]
        one = [(0.5, min(1.0, 0.5 + split)), (0.0, max(0.0, split - 0.5))]
        left_one = bool(bits[used]) if used < len(bits) else False
        own, other = (one, zero) if left_one else (zero, one)
        for goes_left, child in ((True, node.left), (False, node.right)):
            agreeing = _overlap(own, other, goes_left)
            alone = _measure(own, goes_left) - agreeing
            for share, consumed in ((agreeing, 0), (alone, 1)):
                if share > 0:
                    stack.append((child, used + consumed, mass * share))
    return law


def _measure(arcs: list[tuple[float, float]], inside: bool) -> float:
    length = sum(end - start for start, end in arcs)
    return length if inside else 1 - length


def _overlap(first: list[tuple[float, float]], second: list[tuple[float, float]], inside: bool) -> float:
    """Length of the pointers inside both, or outside both."""
    both = sum(max(0.0, min(b, d) - max(a, c)) for a, b in first for c, d in second)
    return both if inside else 1 - _measure(first, True) - _measure(second, True) + both

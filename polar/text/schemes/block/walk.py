"""The scheme `block`: in every block the message chooses among Q candidate blocks that both ends draw with the key.

A sampled pool is Q independent draws from the untruncated model with keyed randomness. A candidate has the probability
of its share of the draws, which averaged over the key is the model's own law. So a code whose induced law is the
pool's is exact against the model.

In every block the candidates lie on a circle, side by side, each as long as it is likely. The 2^l words are points at
equal distances, and the key turns them by a random angle: the message chooses the point, and the point lies in a
candidate. Whatever the message, a candidate is hit as often as it is likely. No two points meet in one that is at most
2^-l long, so l bits pass without error whenever l <= H_min, which is the one-shot limit with shared key
(`wm_env.theory.limits`); a partition into equal words, which needs no angle, rarely exists. Of a top pool the
candidates above 2^-l are cut down to it, at the least total variation 1 - U that makes room for l bits, if that is
allowed.

**Text, not tokens.** Candidates are byte strings. Those that are prefixes of each other cannot be told apart by a
reader of the text, so they are one group: the message chooses among groups, keyed randomness the member.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from polar.text.arithmetic import ReadOption, Side
from polar.text.keys.derivation import KeyStream, MessageKeys
from polar.text.scheme import NoMessageError, Tokens
from wm_env.common.arrays import Floats, Ints
from wm_env.theory.limits import shared_key_success

CIRCLE = 1 << 52
"""Length of the circle; probabilities are whole numbers of its units."""
_ROUNDING = 1e-9
"""Shares of draws are fractions, which float64 rounds: they fit to within this, or are far from it."""


class CandidatePool(Protocol):
    """What the scheme reads of a pool; `wm_env.lm.pools.candidates.Pool` is one."""

    @property
    def tokens(self) -> Ints:
        """Token ids, shape (q, L)."""

    @property
    def text(self) -> tuple[bytes, ...]:
        """Byte strings, q different ones."""

    @property
    def cover(self) -> Floats:
        """Probabilities, shape (q,), sum to 1."""


@dataclass(frozen=True)
class PoolCode:
    """How a pool carries bits.

    Attributes:
        bits: l, message bits of the block.
        groups: candidates that continue one another, in the order of their first byte strings.
        end: where every group ends on the circle, rising to `CIRCLE`; none is longer than CIRCLE / 2^l if l > 0.
        tv: total variation between the law of the code and the pool's, in [0, 1].
    """

    bits: int
    groups: tuple[tuple[int, ...], ...]
    end: tuple[int, ...]
    tv: float

    def group_at(self, word: int, angle: int) -> int:
        """The number of the group that holds the point of `word`, in [0, 2^l), turned by `angle`, in [0, CIRCLE)."""
        return bisect_right(self.end, (word * (CIRCLE >> self.bits) + angle) % CIRCLE)

    def word_in(self, group: int, angle: int) -> int | None:
        """The word whose point lies in a group, None if none does."""
        start = self.end[group - 1] if group else 0
        step = CIRCLE >> self.bits
        word = -((angle - start) // step) % (1 << self.bits)
        return word if self.group_at(word, angle) == group else None


AnyPool = TypeVar("AnyPool", bound=CandidatePool)


def walk_blocks(
    keys: MessageKeys,
    side: Side,
    tv_budget: float,
    pool_after: Callable[[Tokens], AnyPool],
    watch: Callable[[AnyPool, int], None] | None = None,
) -> Tokens:
    """Embed or read a message, block by block, until `side` is done; the tokens of all blocks.

    `watch` is told every pool and the candidate that the text goes on with.

    Raises:
        MessageTooLongError, NoEntropyError: from the sender.
        NoMessageError: from the receiver.
    """
    angles, members = keys.stream("angles"), keys.stream("members")
    tokens: Tokens = ()
    while not side.done:
        pool = pool_after(tokens)
        code = make_code(pool, tv_budget)
        angle = angles.below(CIRCLE)
        word = side.choose([1] * (1 << code.bits), _reader(pool, code, angle))
        candidate = _draw(pool.cover, code.groups[code.group_at(word, angle)], members)
        side.put(pool.text[candidate])
        if watch is not None:
            watch(pool, candidate)
        tokens += tuple(int(token) for token in pool.tokens[candidate])
        side.note_tokens(len(tokens))
    return tokens


def make_code(pool: CandidatePool, tv_budget: float) -> PoolCode:
    """The code with the most bits whose total variation from the pool's law is at most `tv_budget`."""
    groups = prefix_groups(pool.text)
    # Multiples of 2^-52, whose sums are exact in any order: both ends get the same code on any machines.
    cover = np.maximum(np.round(pool.cover * CIRCLE), pool.cover > 0) / CIRCLE
    mass = np.array([cover[list(group)].sum() for group in groups])
    most = int(np.count_nonzero(mass)).bit_length()
    lost = {bits: 1 - float(shared_key_success(mass, bits)) for bits in range(1, most)}
    bits = max((bits for bits, tv in lost.items() if tv <= tv_budget + _ROUNDING), default=0)
    tv = lost.get(bits, 0.0)
    end = _cut_down(mass, CIRCLE >> bits).cumsum()
    return PoolCode(bits, groups, tuple(end.tolist()), tv if tv > _ROUNDING else 0.0)


def _cut_down(mass: Floats, most: int) -> Ints:
    """Lengths on the circle in proportion to `mass`, at most `most` each, fullest first filled up; 0 for no mass."""
    edges = np.round(mass.cumsum() / mass.sum() * CIRCLE).astype(np.int64)
    length: Ints = np.minimum(np.diff(edges, prepend=0), most)
    fullest = np.argsort(-length, kind="stable")
    room = np.where(mass[fullest] > 0, most - length[fullest], 0)
    length[fullest] += np.clip(CIRCLE - length.sum() - (room.cumsum() - room), 0, room)
    return length


def prefix_groups(texts: tuple[bytes, ...]) -> tuple[tuple[int, ...], ...]:
    """The numbers of the byte strings in groups: all that begin with the same string of the list, itself included."""
    groups: list[list[int]] = []
    for number in sorted(range(len(texts)), key=texts.__getitem__):
        if groups and texts[number].startswith(texts[groups[-1][0]]):
            groups[-1].append(number)
        else:
            groups.append([number])
    return tuple(tuple(group) for group in groups)


def _reader(pool: CandidatePool, code: PoolCode, angle: int) -> ReadOption:
    def read(text: bytes, position: int) -> int | None:
        for number, group in enumerate(code.groups):
            if text.startswith(pool.text[group[0]], position):
                return code.word_in(number, angle)
        return None

    return read


def _draw(cover: Floats, candidates: Sequence[int], draws: KeyStream) -> int:
    """One of the candidates, in proportion to the cover, to within 2^-52 of the largest.

    NoMessageError if they have no probability, so that no sender takes them.
    """
    mass = cover[list(candidates)]
    if not mass.any():
        raise NoMessageError("the text holds a block without a probability")
    weights = [int(weight) for weight in np.round(mass / mass.max() * 2.0**52)]
    point = draws.below(sum(weights))
    for candidate, weight in zip(candidates, weights, strict=True):
        point -= weight
        if point < 0:
            return candidate
    raise AssertionError("a draw is below the sum of the weights")

"""The scheme `block`: in every block the message chooses among Q candidate blocks that both ends draw with the key.

A sampled pool is Q independent draws from the untruncated model with keyed randomness. A candidate has the probability
of its share of the draws, which averaged over the key is the model's own law. So a code whose induced law is the
pool's is exact against the model.

In every block the candidates are divided into 2^l words of equal mass, as the planner's coded objective does it: the
best partition (`wm_env.limits`), with l the largest number of bits whose words all have exactly 2^-l. Then the l
message bits choose the word, keyed randomness the candidate in it, the law is the pool's, and there are no errors. Of a
top pool no partition is that even: there l is the largest number of bits whose partition is within the allowed total
variation of the pool's law.

**Text, not tokens.** Candidates are byte strings. Those that are prefixes of each other cannot be told apart by a
reader of the text, so they are one group: the message chooses among groups, keyed randomness the member.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from polar.arithmetic import NoMessageError, Reader, Side
from polar.secrets import KeyStream, MessageKeys
from polar.stream import Tokens
from wm_env.limits import best_partition, shared_key_success
from wm_env.tree import Floats, Ints

_ROUNDING = 1e-9
"""Shares of draws are fractions, which float64 rounds: a partition is even to within this, or far from it."""


class CandidatePool(Protocol):
    """What the scheme reads of a pool; `wm_env.lm.candidates.Pool` is one."""

    @property
    def tokens(self) -> Ints:
        """Token ids, shape (q, L)."""

    @property
    def text(self) -> tuple[bytes, ...]:
        """Byte strings, q different ones."""

    @property
    def cover(self) -> Floats:
        """Probabilities, shape (q,), sum to 1."""

    @property
    def log2_prob(self) -> Floats:
        """log2 of the untruncated law, shape (q,)."""


@dataclass(frozen=True)
class BlockCode:
    """How a pool carries bits.

    Attributes:
        bits: l, message bits of the block.
        groups: candidates that continue one another, in the order of their first byte strings.
        word: the l-bit word of every group, shape (groups,).
        tv: total variation between the law with a uniform message and the pool's, in [0, 1].
    """

    bits: int
    groups: tuple[tuple[int, ...], ...]
    word: Ints
    tv: float


Walk = Generator[Tokens, CandidatePool, Tokens]
"""Asks for the pool after some tokens, gets it, and returns the tokens in the end."""


Watch = Callable[[CandidatePool, int], None]
"""(pool, candidate): what the text goes on with."""


def walk(keys: MessageKeys, side: Side, tv_budget: float, watch: Watch | None = None) -> Walk:
    """Embed or read a message, block by block, until `side` is done; `watch` is told every pool and its choice.

    Raises:
        MessageTooLongError, NoEntropyError: from the sender.
        NoMessageError: from the receiver.
    """
    members = keys.stream("members")
    tokens: Tokens = ()
    while not side.done:
        pool = yield tokens
        code = make_code(pool, tv_budget)
        word = side.choose([1] * (1 << code.bits), _reader(pool, code))
        chosen = [x for group, bits in zip(code.groups, code.word, strict=True) if bits == word for x in group]
        candidate = _draw(pool.cover, chosen, members)
        side.put(pool.text[candidate])
        if watch is not None:
            watch(pool, candidate)
        tokens += tuple(int(token) for token in pool.tokens[candidate])
        side.note_tokens(len(tokens))
    return tokens


def make_code(pool: CandidatePool, tv_budget: float) -> BlockCode:
    """The code with the most bits whose total variation from the pool's law is at most `tv_budget`."""
    groups = prefix_groups(pool.text)
    mass = np.array([pool.cover[list(group)].sum() for group in groups])
    for bits in range(len(groups).bit_length() - 1, 0, -1):
        if 1 - shared_key_success(mass, bits) > tv_budget + _ROUNDING:
            continue  # no partition is better than that, and most need not be searched for
        words, value = best_partition(mass, bits, nodes=0)
        if 1 - value <= tv_budget + _ROUNDING:
            return BlockCode(bits, groups, words, 1 - value if 1 - value > _ROUNDING else 0.0)
    return BlockCode(0, groups, np.zeros(len(groups), dtype=np.int64), 0.0)


def prefix_groups(texts: tuple[bytes, ...]) -> tuple[tuple[int, ...], ...]:
    """The numbers of the byte strings in groups: all that begin with the same string of the list, itself included."""
    groups: list[list[int]] = []
    for number in sorted(range(len(texts)), key=texts.__getitem__):
        if groups and texts[number].startswith(texts[groups[-1][0]]):
            groups[-1].append(number)
        else:
            groups.append([number])
    return tuple(tuple(group) for group in groups)


def _reader(pool: CandidatePool, code: BlockCode) -> Reader:
    def read(text: bytes, position: int) -> int | None:
        for group, word in zip(code.groups, code.word, strict=True):
            if text.startswith(pool.text[group[0]], position):
                return int(word)
        return None

    return read


def _draw(cover: Floats, candidates: list[int], draws: KeyStream) -> int:
    """One of the candidates, in proportion to the cover, to within 2^-52 of it."""
    weights = [int(weight) for weight in np.round(cover[candidates] * 2.0**52)]
    if not any(weights):
        raise NoMessageError("the text holds a block without a probability")
    point = draws.below(sum(weights))
    for candidate, weight in zip(candidates, weights, strict=True):
        point -= weight
        if point < 0:
            return candidate
    raise AssertionError("a draw is below the sum of the weights")

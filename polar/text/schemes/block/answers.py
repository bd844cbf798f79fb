"""The pools that the receiver of a text of the scheme `block` asked for."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

import numpy as np

from polar.text.records import packed, pieces, question_arrays, read_questions
from polar.text.scheme import Tokens
from polar.text.schemes.block.walk import CandidatePool
from wm_env.common.arrays import Floats, Ints
from wm_env.common.tensors import Arrays


@dataclass(frozen=True)
class RecordedPool:
    """A pool, as `CandidatePool` has it."""

    tokens: Ints
    text: tuple[bytes, ...]
    cover: Floats


@dataclass(frozen=True)
class PoolAnswers:
    """The pools, by the tokens before."""

    pools: dict[Tokens, CandidatePool]

    def watch(self, pool_after: Callable[[Tokens], CandidatePool]) -> Callable[[Tokens], CandidatePool]:
        """The same pools; those that are asked for are noted here."""
        return lambda tokens: self.pools.setdefault(tokens, pool_after(tokens))

    def arrays(self) -> Arrays:
        """As in `Answers`."""
        pools = list(self.pools.values())
        return (
            question_arrays(list(self.pools))
            | packed("text", [string for pool in pools for string in pool.text], np.uint8)
            | packed("tokens", [pool.tokens.ravel() for pool in pools])
            | packed("cover", [pool.cover for pool in pools], np.float64)
        )


def read_block_answers(arrays: Arrays, candidates: int, block_length: int) -> PoolAnswers:
    """What `PoolAnswers.arrays` made.

    Raises:
        ValueError: no text can have these answers.
    """
    texts = iter([piece.tobytes() for piece in pieces(arrays, "text", np.uint8)])
    columns = pieces(arrays, "tokens"), pieces(arrays, "cover", np.float64)
    pools: list[CandidatePool] = []
    for tokens, cover in zip(*columns, strict=True):
        text = tuple(islice(texts, len(cover)))
        if not 1 <= len(cover) == len(text) <= candidates or not all(text):
            raise ValueError("a pool has too few or too many candidates, or empty ones")
        if len(tokens) != len(cover) * block_length:
            raise ValueError(f"candidates have no {block_length} tokens each")
        if not ((cover >= 0).all() and abs(cover.sum() - 1) <= 1e-6):
            raise ValueError("probabilities of candidates are not a law")
        pools.append(RecordedPool(tokens.reshape(len(cover), block_length), text, cover))
    if next(texts, None) is not None:
        raise ValueError("there are more texts than candidates")
    return PoolAnswers(dict(zip(read_questions(arrays), pools, strict=True)))

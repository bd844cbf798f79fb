"""Texts of the scheme `block`: written and read with the model, or read with a record."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from polar.text.arithmetic import ArithmeticReceiver
from polar.text.canonical import is_start
from polar.text.channel import Channel
from polar.text.framing import Message, frame_bits
from polar.text.keys.derivation import MessageKeys
from polar.text.records import recorded
from polar.text.scheme import Attempt, NoMessageError, Reader, Tokens, UnfitTextError, VariationBound, Writing, Written
from polar.text.schemes.block.answers import PoolAnswers
from polar.text.schemes.block.evidence import log2_evidence
from polar.text.schemes.block.walk import CandidatePool, make_code, walk_blocks
from polar.text.schemes.sending import MODEL_LAW, given, open_sender, write_end
from wm_env.common.progress import Report, duration
from wm_env.lm.build.cost import estimate, measure_speed
from wm_env.lm.models.exact.law import probabilities
from wm_env.lm.pools.candidates import Pool, make_pools

if TYPE_CHECKING:
    from polar.text.schemes.block import Block

AnyPool = TypeVar("AnyPool", bound=CandidatePool)

_KEPT_POOLS = 1024
"""Pools that other forms of a text need again."""


@dataclass(frozen=True)
class PoolSource:
    """The pools of candidate blocks of one text."""

    scheme: "Block"
    channel: Channel
    keys: MessageKeys

    def pool(self, tokens: Tokens) -> Pool:
        """The candidates of the block that follows `tokens`."""
        source = self.channel.source
        context = np.array([source.context(tokens)], dtype=np.int64).reshape(1, -1)
        settings = self.scheme.pool_settings(self.channel.settings.law, self.keys.derive("pool"))
        pool = make_pools(source.lm, dict(self.channel.strings), context, settings)[0]
        if self.channel.settings.law.form == "any":
            return pool
        return self._canonical(pool, source.vocabulary.text(tokens))

    def _canonical(self, pool: Pool, text: bytes) -> Pool:
        """Candidates that keep a text in canonical form, UnfitTextError without any; the others count as dropped."""
        fits = np.array([is_start((text + block).decode("utf-8")) for block in pool.text])
        if not fits.any():
            raise UnfitTextError("no candidate keeps the text in canonical form")
        drawn = self.scheme.candidates - pool.dropped
        return replace(
            pool,
            tokens=pool.tokens[fits],
            log2_prob=pool.log2_prob[fits],
            cover=pool.cover[fits] / pool.cover[fits].sum(),
            text=tuple(block for block, fit in zip(pool.text, fits, strict=True) if fit),
            dropped=pool.dropped + round(drawn * float(pool.cover[~fits].sum())),
        )


def write_block_text(scheme: "Block", writing: Writing) -> Written:
    """As in `Scheme`."""
    channel, keys, sender = writing.channel, writing.keys, open_sender(writing)
    pools: dict[Tokens, Pool] = {}
    source = PoolSource(scheme, channel, keys)

    def pool_after(tokens: Tokens) -> Pool:
        writing.report(*sender.progress())
        return pools.setdefault(tokens, source.pool(tokens))

    tokens = walk_blocks(keys, sender, scheme.code_budget, pool_after)
    answers = PoolAnswers({})
    return Written(
        tokens=write_end(writing, sender, tokens, channel.source.vocabulary.root, channel.source.law),
        coded_tokens=len(tokens),
        cost=_cost(scheme, list(pools.values()), given(channel.settings.law)),
        read=_reader(scheme, lambda keys: answers.watch(recorded(pools))),
        answers=answers,
    )


def block_model_reader(scheme: "Block", channel: Channel) -> Reader:
    """As in `Scheme`."""

    def weigh(receiver: ArithmeticReceiver, pool: Pool, candidate: int) -> None:
        # A top pool is public, so it says nothing for the key.
        if scheme.draws:
            block_text = receiver.text[receiver.position - len(pool.text[candidate]) :]
            receiver.note_evidence(log2_evidence(channel.source.vocabulary, pool, candidate, scheme.draws, block_text))

    @lru_cache(maxsize=_KEPT_POOLS)
    def pool_of(keys: MessageKeys, tokens: Tokens) -> Pool | UnfitTextError:
        try:
            return PoolSource(scheme, channel, keys).pool(tokens)
        except UnfitTextError as error:
            return error

    def pools_of(keys: MessageKeys) -> Callable[[Tokens], Pool]:
        def pool_after(tokens: Tokens) -> Pool:
            pool = pool_of(keys, tokens)
            if isinstance(pool, UnfitTextError):
                raise NoMessageError(str(pool))
            return pool

        return pool_after

    return _reader(scheme, pools_of, weigh)


def block_recorded_reader(scheme: "Block", answers: PoolAnswers) -> Reader:
    """As in `Scheme`."""
    return _reader(scheme, lambda keys: recorded(answers.pools))


def _reader(
    scheme: "Block",
    pools_of: Callable[[MessageKeys], Callable[[Tokens], AnyPool]],
    weigh: Callable[[ArithmeticReceiver, AnyPool, int], None] | None = None,
) -> Reader:
    def read(text: bytes, keys: MessageKeys, report: Report) -> Attempt:
        receiver, pool_after = ArithmeticReceiver(text, keys), pools_of(keys)

        def reported(tokens: Tokens) -> AnyPool:
            report(receiver.position, len(text), f"nonce {keys.nonce}, bytes")
            return pool_after(tokens)

        watch = None if weigh is None else partial(weigh, receiver)
        return receiver.follow(partial(walk_blocks, keys, receiver, scheme.code_budget, reported, watch))

    return read


def _cost(scheme: "Block", pools: list[Pool], condition: str) -> VariationBound:
    """Sum over the blocks of what the code costs against the pool, and the pool against the model.

    Averaged over keys, a sampled pool has the model's law of blocks of a form: the share of the draws that had the form
    is an unbiased estimate of that form's probability, so its product over the blocks estimates the total variation.
    """
    if scheme.pool == "sampled":
        kept = math.prod(1 - pool.dropped / scheme.candidates for pool in pools)
        return VariationBound(1 - kept, MODEL_LAW, given=f"{condition} (blocks of whole characters)")
    outside = sum(1 - float(probabilities(torch.from_numpy(pool.log2_prob)).sum()) for pool in pools)
    total = outside + sum(make_code(pool, scheme.code_budget).tv for pool in pools)
    return VariationBound(min(1.0, max(0.0, total)), MODEL_LAW)


def estimate_line(scheme: "Block", channel: Channel, message: Message) -> str:
    """One line on what a message costs: the pools take the time, and how many are needed depends on how evenly each can
    be divided, so the number of blocks is a least one.
    """
    lm, law = channel.source.lm, channel.settings.law
    bits = frame_bits(message, channel.settings.check_bits)
    blocks = math.ceil(bits / math.log2(scheme.candidates))
    pool = scheme.pool_settings(law, b"")
    context = channel.source.context(())
    cost = estimate(lm, [context], pool, blocks=1, batch_size=1)
    seconds = cost.flops / measure_speed(lm, len(context) + law.block_length, pool)
    return (
        f"{bits} bits with the frame, at most log2 {scheme.candidates} in a block of {law.block_length} tokens: "
        f"{blocks} blocks or more of {cost.canvases} canvases; a block takes about {seconds:.2g} s by the speed just "
        f"measured, so {duration(blocks * seconds)} or more"
    )

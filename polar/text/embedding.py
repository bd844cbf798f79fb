"""A message in, a text out, and back.

    channel = open_channel(load_lm("mini"), "The mayor said on Monday", Settings())
    sent = embed(channel, b"user 4711", key, nonce=0)
    decode(channel, sent.text.encode(), key, nonces=[0]).message

Both ends open a channel (`polar.text.channel`) with the same model, prompt and settings; `decode` is in
`polar.text.decoding`.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count

import torch

from polar.text.arithmetic import NoEntropyError, NoMessageError, Receiver, Sender
from polar.text.channel import Channel, pool_source
from polar.text.decoding import decode_parallel
from polar.text.framing import Message, overhead_bits, payload_bits
from polar.text.keys import Key, MessageKeys
from polar.text.progress import Report, silence, watched
from polar.text.records import (
    About,
    Asking,
    LawRecords,
    PoolRecords,
    TextLaw,
    record_laws,
    record_pools,
    recorded_law,
    recorded_pool,
)
from polar.text.schemes import block, stream
from polar.text.schemes.parallel import scheme as parallel
from polar.text.schemes.stream import TokenLaw, Tokens
from polar.text.settings import Limits, Settings
from polar.text.sources import MASS_BITS, drive
from polar.text.tail import LONGEST_TAIL, write_tail
from polar.text.vocabulary import Node
from wm_env.lm.models.exact.law import probabilities
from wm_env.lm.pools.candidates import Pool


@dataclass(frozen=True)
class Embedded:
    """A text with a message in it.

    Attributes:
        text: the text, to be put behind the prompt as it is.
        tokens: its token ids.
        nonce: the nonce of the message.
        coded_tokens: tokens until the message was in; the others end the text.
        payload_bits: bits of the message.
        frame_bits: the same with header and check value.
        tv_bound: sum over the blocks or steps of the text of a bound on the total variation between the law that they
            are drawn from and `reference`, for this message and a random key. Its mean over texts bounds the total
            variation of the text. 0: exact.
        reference: the law that `tv_bound` is about, as a phrase.
        tv_estimated: the bound rests on random draws, and holds with 97.5 % confidence.
        law: everything but the key that a receiver needs; None for the scheme parallel, whose receiver needs no law.
        rejected: nonces before this one whose texts could not be sent. If a share q of all texts is rejected, that
            takes the law of those that are sent at most q further away from the model's (total variation).
    """

    text: str
    tokens: Tokens
    nonce: int
    coded_tokens: int
    payload_bits: int
    frame_bits: int
    tv_bound: float
    reference: str
    law: TextLaw | None
    tv_estimated: bool = False
    rejected: int = 0


class UnfitTextError(RuntimeError):
    """The text that this nonce gives cannot be sent; another nonce gives another one."""


def embed(
    channel: Channel,
    message: Message,
    key: Key,
    nonce: int,
    limits: Limits | None = None,
    report: Report = silence,
) -> Embedded:
    """Write a text that carries `message`, and check that it decodes.

    `report` is told the bits that are in, and then the tokens that end the text.

    Raises:
        MessageTooLongError: the message needs more than the allowed blocks; says how long it may be.
        NoEntropyError: the model leaves no choice for too long.
        UnfitTextError: the text is not UTF-8, or failed the check. Another nonce helps.
    """
    limits = limits or Limits()
    keys = MessageKeys(key, nonce, channel.settings.scheme)
    if channel.settings.scheme == "parallel":
        return _embed_parallel(channel, message, keys, limits, report)
    job = _Job(channel, message, keys, limits, report)
    if channel.settings.scheme == "stream":
        tokens, coded = drive(job.write_stream(), channel.source.law)
    else:
        coded_tokens = drive(job.write_blocks(), pool_source(channel, job.keys).pool)
        tokens, coded = drive(job.write_end(coded_tokens, channel.source.vocabulary.root), channel.source.law)
    return job.finish(tokens, coded)


def _embed_parallel(channel: Channel, message: Message, keys: MessageKeys, limits: Limits, report: Report) -> Embedded:
    """`embed` for the scheme parallel.

    The total variation is that against plain parallel sampling: the probability that its text would not re-tokenise to
    itself, estimated by draws from the key; nothing else differs.
    """
    limits.check()
    most_tokens = limits.max_blocks * channel.settings.block_length
    written = parallel.write(channel, message, keys, most_tokens, report)
    text = channel.source.vocabulary.text(written.tokens).decode("utf-8")
    found = decode_parallel(
        channel.source.lm.tokenizer, text.encode(), keys.key, [keys.nonce], channel.settings, channel.prompt
    )
    if found.message != message:
        raise UnfitTextError(
            f"with nonce {keys.nonce} {written.lost_bits} of {written.coded_bits} bits got lost, more than "
            f"{channel.settings.parity} parity bytes make up for"
        )
    return Embedded(
        text=text,
        tokens=written.tokens,
        nonce=keys.nonce,
        coded_tokens=len(written.tokens),
        payload_bits=payload_bits(message),
        frame_bits=written.frame_bits,
        tv_bound=written.variation_bound,
        reference="the law of plain parallel sampling",
        tv_estimated=True,
        law=None,
    )


@dataclass(frozen=True)
class _Job:
    """One message on its way into one text."""

    channel: Channel
    message: Message
    keys: MessageKeys
    limits: Limits
    report: Report = silence
    laws: LawRecords = field(default_factory=dict)
    pools: dict[Tokens, Pool] = field(default_factory=dict)

    def sender(self) -> Sender:
        self.limits.check()
        most_tokens = self.limits.max_blocks * self.channel.settings.block_length
        needed = payload_bits(self.message) + overhead_bits(self.message)
        if needed > most_tokens * MASS_BITS:
            raise ValueError(
                f"the message does not fit: its frame has {needed} bits, and {most_tokens} tokens carry at most "
                f"{most_tokens * MASS_BITS} under any model, in fact a fraction of that: allow more blocks"
            )
        return Sender(self.message, self.keys, most_tokens, self.limits.patience)

    def write_stream(self) -> Asking[TokenLaw, tuple[Tokens, int]]:
        """The tokens of the text, and how many of them the message took."""
        sender = self.sender()
        walk = stream.walk(self.channel.source.vocabulary, self.keys, sender)
        walk = watched(walk, partial(_bits_in, sender), self.report)
        tokens, node = yield from record_laws(walk, self.laws)
        return (yield from self.write_end(tokens, node))

    def write_blocks(self) -> Asking[Pool, Tokens]:
        """The tokens of the blocks that the message takes."""
        settings = self.channel.settings
        sender = self.sender()
        walk = block.walk(self.keys, sender, settings.code_budget)
        walk = watched(walk, partial(_bits_in, sender), self.report)
        return (yield from record_pools(walk, self.pools))

    def write_end(self, tokens: Tokens, node: Node) -> Asking[TokenLaw, tuple[Tokens, int]]:
        """The tokens of the text, and how many of them the message took."""
        vocabulary, draws = self.channel.source.vocabulary, self.keys.stream("tail")
        tail = write_tail(vocabulary, tokens, node, draws, self.limits.ending)
        places = count()
        finished = yield from watched(
            tail,
            lambda: (next(places), LONGEST_TAIL, "the message is in; tokens to the sentence's end, at most"),
            self.report,
        )
        return finished, len(tokens) + (node.depth > 0)

    def finish(self, tokens: Tokens, coded: int) -> Embedded:
        """Check the text, as a receiver would read it from the recorded laws."""
        source, settings = self.channel.source, self.channel.settings
        raw = source.vocabulary.text(tokens)
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            raise UnfitTextError(f"with nonce {self.keys.nonce} the model wrote bytes that are no UTF-8") from None
        receiver = Receiver(raw, self.keys)
        laws: LawRecords = {}
        pools: PoolRecords = {}
        try:
            if settings.scheme == "stream":
                walk = stream.walk(source.vocabulary, self.keys, receiver)
                drive(record_laws(walk, laws), partial(recorded_law, self.laws))
            else:
                blocks = block.walk(self.keys, receiver, settings.code_budget)
                drive(record_pools(blocks, pools), partial(recorded_pool, self.pools))
        except NoMessageError as error:
            raise UnfitTextError(f"with nonce {self.keys.nonce} the text does not decode: {error}") from None
        if receiver.message != self.message:
            raise UnfitTextError(f"with nonce {self.keys.nonce} the text decodes to another message")
        about = About(
            settings=settings,
            nonce=self.keys.nonce,
            model=source.lm.fingerprint,
            prompt=hashlib.sha256(self.channel.prompt).hexdigest(),
            text=hashlib.sha256(raw).hexdigest(),
        )
        return Embedded(
            text=text,
            tokens=tokens,
            nonce=self.keys.nonce,
            coded_tokens=coded,
            payload_bits=payload_bits(self.message),
            frame_bits=payload_bits(self.message) + overhead_bits(self.message),
            tv_bound=_tv_bound(self.pools, settings),
            reference=_reference(self.pools, settings),
            law=TextLaw(about, laws, pools, source.vocabulary if settings.scheme == "stream" else None),
        )


def _bits_in(sender: Sender) -> tuple[int, int, str]:
    """(bits of the frame that are in the text, bits of the frame, what they are)."""
    return min(sender.interval.information(), sender.frame.length), sender.frame.length, "bits"


def embed_with_retries(
    channel: Channel,
    message: Message,
    key: Key,
    nonces: Iterable[int],
    limits: Limits | None = None,
    report: Report = silence,
) -> Embedded:
    """`embed` with the first of the nonces whose text can be sent.

    Raises:
        MessageTooLongError: as `embed` does, at once.
        NoEntropyError, UnfitTextError: of the last nonce.
    """
    failure: RuntimeError = UnfitTextError("there is no nonce to try")
    rejected = 0
    for rejected, nonce in enumerate(nonces):
        try:
            return replace(embed(channel, message, key, nonce, limits, report), rejected=rejected)
        except (NoEntropyError, UnfitTextError) as error:
            failure = error
    if rejected:
        raise type(failure)(f"{failure}; {rejected + 1} nonces were tried")
    raise failure


def _tv_bound(pools: Mapping[Tokens, Pool], settings: Settings) -> float:
    """Sum over the blocks of what the code costs against the pool, and the pool against the model.

    A sampled pool costs nothing: averaged over keys its law is that of `_reference`.
    """
    total = 0.0
    for pool in pools.values():
        held = probabilities(torch.from_numpy(pool.log2_prob)).sum()
        outside = 1 - float(held) if settings.pool == "top" else 0.0
        total += outside + block.make_code(pool, settings.code_budget).tv
    return min(1.0, max(0.0, total))


def _reference(pools: Mapping[Tokens, Pool], settings: Settings) -> str:
    if settings.scheme == "stream":
        return "the model's law of UTF-8 texts"
    if settings.pool == "top":
        return "the model's law"
    dropped, drawn = sum(pool.dropped for pool in pools.values()), len(pools) * settings.candidates
    return f"the model's law of blocks of whole characters ({dropped:,} of {drawn:,} draws were not)"

"""A message in, a text out, and back.

    channel = open_channel(load_lm("mini"), "The mayor said on Monday", Settings())
    sent = embed(channel, b"user 4711", key, nonce=0)
    decode(channel, sent.text.encode(), key).message

Both ends open a channel with the same model, prompt and settings. Without a model, `decode_with_law` reads a text with
the law that `embed` recorded.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from typing import Literal

import numpy as np

from polar import block, stream
from polar.arithmetic import NoEntropyError, NoMessageError, Receiver, Sender
from polar.block import CandidatePool
from polar.framing import CHECK_BITS, Message, payload_bits
from polar.records import (
    Asking,
    LawRecords,
    PoolRecords,
    TextLaw,
    record_laws,
    record_pools,
    recorded_law,
    recorded_pool,
)
from polar.secrets import Key, MessageKeys
from polar.sources import ModelSource, PoolSource, drive, drive_many, open_vocabulary
from polar.stream import TokenLaw, Tokens
from polar.tail import Ending, write_tail
from polar.vocabulary import Node, Vocabulary
from wm_env.lm.candidates import Pool, PoolSettings
from wm_env.lm.llada import MaskedLM
from wm_env.lm.text import token_bytes

POOL_ROWS = 16
"""Canvases in a forward pass when candidate blocks are drawn."""


@dataclass(frozen=True)
class Settings:
    """What both ends must agree on, besides key, model and prompt."""

    scheme: Literal["stream", "block"] = "stream"
    """stream: token by token, all of the model's entropy. block: in every block one of Q candidates."""
    block_length: int = 8
    """L, tokens that the model fills in from left to right before it sees new masks; a power of two."""
    temperature: float = 1.0
    """tau of p_tau = softmax(logits / tau)."""
    pool: Literal["sampled", "top"] = "sampled"
    """Scheme block: Q keyed draws from the model (exact), or its Q most likely blocks (not covert; says how far)."""
    candidates: int = 64
    """Scheme block: Q, candidates per block."""
    tv_budget: float = 0.01
    """Scheme block with a top pool: total variation per block that the code may cost against the truncated law."""
    rows: int = 1
    """Scheme stream: canvases in every forward pass. Floating-point sums depend on it."""

    def check(self) -> None:
        """Raise ValueError for a number out of its range."""
        if not 0 <= self.tv_budget < 1:
            raise ValueError(f"tv_budget={self.tv_budget}: a number from 0 to below 1 is needed")
        if self.rows < 1:
            raise ValueError("rows must be at least 1")
        self.pool_settings(b"")

    @property
    def code_budget(self) -> float:
        """Total variation that the code of a block may cost against the law of its pool."""
        return self.tv_budget if self.pool == "top" else 0.0

    @property
    def draws(self) -> int:
        """Number of keyed draws in a pool."""
        return self.candidates if self.pool == "sampled" else 0

    def pool_settings(self, key: bytes) -> PoolSettings:
        """How candidate blocks are chosen."""
        return PoolSettings(
            pool=self.pool,
            block_length=self.block_length,
            candidates=self.candidates,
            temperature=self.temperature,
            beam_width=self.candidates + 4,
            rows=POOL_ROWS,
            key=key,
        )


@dataclass(frozen=True)
class Limits:
    """How far the sender goes."""

    max_blocks: int = 512
    """Most blocks of L tokens for the message."""
    patience: int = 256
    """Give up when so many tokens in a row carried less than a bit."""
    ending: Ending = "sentence"
    """Where the text ends once the message is in: at the end of a sentence, or as soon as possible."""

    def check(self) -> None:
        """Raise ValueError for a number out of its range."""
        if self.max_blocks < 1 or self.patience < 1:
            raise ValueError("max_blocks and patience must be at least 1")


@dataclass(frozen=True)
class Channel:
    """A model with a prompt in front of it, and the settings; make one with `open_channel`."""

    source: ModelSource
    token_bytes: dict[int, bytes]
    prompt: bytes
    settings: Settings


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
        tv_bound: bound on the total variation between the law of the text and the model's own, for this message and a
            random key. 0: exact.
        law: everything but the key that a receiver needs.
        rejected: nonces before this one whose texts could not be sent. If a share q of all texts is rejected, the law
            of those that are sent is q away from the model's.
    """

    text: str
    tokens: Tokens
    nonce: int
    coded_tokens: int
    payload_bits: int
    frame_bits: int
    tv_bound: float
    law: TextLaw
    rejected: int = 0


@dataclass(frozen=True)
class Decoded:
    """What a text says to the owner of a key.

    Attributes:
        message: the message, None if there is none.
        nonce: its nonce, None if there is no message.
        p_value: probability that a text made without the key looks at least as much like one with a message.
        reason: why there is no message, empty if there is one.
    """

    message: Message | None
    nonce: int | None
    p_value: float
    reason: str = ""


class UnfitTextError(RuntimeError):
    """The text that this nonce gives cannot be sent; another nonce gives another one."""


def open_channel(lm: MaskedLM, prompt: str, settings: Settings, vocabulary: Vocabulary | None = None) -> Channel:
    """Put `prompt` in front of `lm`. Of a long prompt the model sees the last tokens.

    `vocabulary` is `open_vocabulary(lm)`, for those who open many channels.

    Raises:
        ValueError: a setting is out of range, the prompt contains a token that no text may contain, or blocks are
            longer than the model reads.
    """
    settings.check()
    if settings.block_length > lm.max_length:
        raise ValueError(f"block_length={settings.block_length}: {lm.name} reads at most {lm.max_length} tokens")
    source = ModelSource(
        lm=lm,
        vocabulary=open_vocabulary(lm) if vocabulary is None else vocabulary,
        prompt=tuple(lm.encode(prompt)),
        block_length=settings.block_length,
        temperature=settings.temperature,
        rows=settings.rows,
    )
    return Channel(source, token_bytes(lm.tokenizer), prompt.encode(), settings)


def embed(channel: Channel, message: Message, key: Key, nonce: int, limits: Limits | None = None) -> Embedded:
    """Write a text that carries `message`, and check that it decodes.

    Raises:
        MessageTooLongError: the message needs more than the allowed blocks; says how long it may be.
        NoEntropyError: the model leaves no choice for too long.
        UnfitTextError: the text is not UTF-8, or failed the check. Another nonce helps.
    """
    limits = limits or Limits()
    job = _Job(channel, message, MessageKeys(key, nonce, channel.settings.scheme), limits)
    if channel.settings.scheme == "stream":
        tokens, coded = drive(job.write_stream(), channel.source.law)
    else:
        coded_tokens = drive(job.write_blocks(), _pools(channel, job.keys).pool)
        tokens, coded = drive(job.write_end(coded_tokens, channel.source.vocabulary.root), channel.source.law)
    return job.finish(tokens, coded)


def embed_many(
    jobs: Sequence[tuple[Channel, Message, Key, int]], limits: Limits | None = None
) -> list[Embedded | Exception]:
    """Texts of the scheme stream for many messages with one model, written side by side; a failure is returned.

    With `Settings.rows` above 1 the texts share forward passes.
    """
    work = [
        _Job(channel, message, MessageKeys(key, nonce, "stream"), limits or Limits())
        for channel, message, key, nonce in jobs
    ]
    results = drive_many([(job.channel.source, job.write_stream()) for job in work])
    return [
        result if isinstance(result, Exception) else _attempt(job, *result)
        for job, result in zip(work, results, strict=True)
    ]


def _attempt(job: "_Job", tokens: Tokens, coded: int) -> Embedded | Exception:
    try:
        return job.finish(tokens, coded)
    except UnfitTextError as error:
        return error


@dataclass(frozen=True)
class _Job:
    """One message on its way into one text."""

    channel: Channel
    message: Message
    keys: MessageKeys
    limits: Limits
    laws: LawRecords = field(default_factory=dict)
    pools: PoolRecords = field(default_factory=dict)

    def sender(self) -> Sender:
        self.limits.check()
        most_tokens = self.limits.max_blocks * self.channel.settings.block_length
        return Sender(self.message, self.keys, most_tokens, self.limits.patience)

    def write_stream(self) -> Asking[TokenLaw, tuple[Tokens, int]]:
        """The tokens of the text, and how many of them the message took."""
        walk = stream.walk(self.channel.source.vocabulary, self.keys, self.sender())
        tokens, node = yield from record_laws(walk, self.laws)
        return (yield from self.write_end(tokens, node))

    def write_blocks(self) -> Asking[CandidatePool, Tokens]:
        """The tokens of the blocks that the message takes."""
        settings = self.channel.settings
        walk = block.walk(self.keys, self.sender(), settings.code_budget, settings.draws)
        return (yield from record_pools(walk, self.pools))

    def write_end(self, tokens: Tokens, node: Node) -> Asking[TokenLaw, tuple[Tokens, int]]:
        """The tokens of the text, and how many of them the message took."""
        vocabulary, draws = self.channel.source.vocabulary, self.keys.stream("tail")
        finished = yield from write_tail(vocabulary, tokens, node, draws, self.limits.ending)
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
                blocks = block.walk(self.keys, receiver, settings.code_budget, settings.draws)
                drive(record_pools(blocks, pools), partial(recorded_pool, self.pools))
        except NoMessageError as error:
            raise UnfitTextError(f"with nonce {self.keys.nonce} the text does not decode: {error}") from None
        if receiver.message != self.message:
            raise UnfitTextError(f"with nonce {self.keys.nonce} the text decodes to another message")
        about = {
            "settings": asdict(settings),
            "nonce": self.keys.nonce,
            "model": source.lm.fingerprint,
            "prompt": hashlib.sha256(self.channel.prompt).hexdigest(),
            "text": hashlib.sha256(raw).hexdigest(),
        }
        return Embedded(
            text=text,
            tokens=tokens,
            nonce=self.keys.nonce,
            coded_tokens=coded,
            payload_bits=payload_bits(self.message),
            frame_bits=self.sender().frame.length,
            tv_bound=_tv_bound(self.pools, settings),
            law=TextLaw(about, laws, pools, source.vocabulary if settings.scheme == "stream" else None),
        )


def embed_with_retries(
    channel: Channel, message: Message, key: Key, nonces: Iterable[int], limits: Limits | None = None
) -> Embedded:
    """`embed` with the first of the nonces whose text can be sent.

    Raises:
        MessageTooLongError: as `embed` does, at once.
        NoEntropyError, UnfitTextError: of the last nonce.
    """
    failure: RuntimeError = UnfitTextError("there is no nonce to try")
    for rejected, nonce in enumerate(nonces):
        try:
            return replace(embed(channel, message, key, nonce, limits), rejected=rejected)
        except (NoEntropyError, UnfitTextError) as error:
            failure = error
    raise failure


def decode(channel: Channel, text: bytes, key: Key, nonces: Iterable[int]) -> Decoded:
    """Look for a message of `key` in `text`, with one nonce after the other.

    The prompt in front of the text and CRLF line ends are recognised: every form that the text may have is tried.
    """
    law = lru_cache(maxsize=1024)(channel.source.law)

    def read(keys: MessageKeys, receiver: Receiver) -> None:
        if channel.settings.scheme == "stream":
            drive(stream.walk(channel.source.vocabulary, keys, receiver), law)
        else:
            settings = channel.settings
            drive(block.walk(keys, receiver, settings.code_budget, settings.draws), _pools(channel, keys).pool)

    return _search(read, _forms(text, channel.prompt), key, channel.settings.scheme, nonces)


def decode_many(jobs: Sequence[tuple[Channel, bytes, Key, int]]) -> list[Decoded]:
    """Read many texts of the scheme stream side by side, as they are, each with one key and nonce."""
    receivers, walks = [], []
    for channel, text, key, nonce in jobs:
        keys = MessageKeys(key, nonce, "stream")
        receivers.append(Receiver(text, keys))
        walks.append((channel.source, stream.walk(channel.source.vocabulary, keys, receivers[-1])))
    decoded = []
    for result, receiver, (_, _, _, nonce) in zip(drive_many(walks), receivers, jobs, strict=True):
        if isinstance(result, Exception) and not isinstance(result, NoMessageError):
            raise result
        decoded.append(
            _found(receiver, nonce, receiver.attempts) if receiver.done else Decoded(None, None, 1.0, str(result))
        )
    return decoded


def decode_with_law(text: bytes, key: Key, law: TextLaw, prompt: bytes = b"") -> Decoded:
    """Read a text without a model, with the law that `embed` recorded for it.

    `prompt` is only needed to recognise it in front of the text.
    """
    settings = Settings(**law.about["settings"])

    def read(keys: MessageKeys, receiver: Receiver) -> None:
        if law.vocabulary is not None:
            drive(stream.walk(law.vocabulary, keys, receiver), partial(recorded_law, law.laws))
        else:
            walk = block.walk(keys, receiver, settings.code_budget, settings.draws)
            drive(walk, partial(recorded_pool, law.pools))

    return _search(read, _forms(text, prompt), key, settings.scheme, [law.about["nonce"]])


def _search(
    read: Callable[[MessageKeys, Receiver], None], forms: Sequence[bytes], key: Key, scheme: str, nonces: Iterable[int]
) -> Decoded:
    """Read every form of the text with every nonce until there is a message."""
    walks = attempts = 0
    best, reason = 0.0, "there is no nonce to try"
    for nonce in nonces:
        keys = MessageKeys(key, nonce, scheme)
        for form in forms:
            receiver = Receiver(form, keys)
            walks += 1
            try:
                read(keys, receiver)
            except NoMessageError as error:
                reason = str(error)
            attempts += receiver.attempts
            if receiver.done:
                return _found(receiver, nonce, max(walks, attempts))
            best = min(best, receiver.log2_chance)
    return Decoded(None, None, min(1.0, walks * 2.0**best), reason)


def _found(receiver: Receiver, nonce: int, tries: int) -> Decoded:
    return Decoded(receiver.message, nonce, min(1.0, tries * 2.0 ** (receiver.log2_chance - CHECK_BITS)))


def _forms(text: bytes, prompt: bytes) -> list[bytes]:
    """What the sender may have written: without the prompt in front, with plain line ends, or just this."""
    forms = []
    for plain in (text, text.replace(b"\r\n", b"\n")):
        for front in (prompt, prompt.replace(b"\r\n", b"\n")):
            if front and plain.startswith(front):
                forms.append(plain.removeprefix(front))
        forms.append(plain)
    return list(dict.fromkeys(forms))


def _pools(channel: Channel, keys: MessageKeys) -> PoolSource:
    return PoolSource(channel.source, channel.token_bytes, channel.settings.pool_settings(keys.derive("pool")))


def _tv_bound(pools: PoolRecords, settings: Settings) -> float:
    """Sum over the blocks of what the code costs against the pool, and the pool against the model.

    The law of a sampled pool is the model's, given that a block is whole characters: the share of the draws that were
    not estimates how much that leaves out.
    """
    total = 0.0
    for pool in pools.values():
        assert isinstance(pool, Pool)
        outside = pool.dropped / settings.candidates
        if settings.pool == "top":
            outside = 1 - float(np.exp2(pool.log2_prob).sum())
        total += outside + block.make_code(pool, settings.code_budget).tv
    return min(1.0, max(0.0, total))

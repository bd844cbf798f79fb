"""Whole texts: one message in the text behind each of some prompts, by ours and by the schemes that send tokens.

All draw from the same laws: the embedded model's at tau = 1, quantised as `polar.text.sources` does it. SparSamp,
Discop and iMEC hand the receiver token ids, whereas `stream` and `block` hand it the bytes of the text.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from metering import clock_of
from peer_schemes import discop, imec, sparsamp
from peer_schemes.weights import quantise
from sharing import Tally, add
from torch import Tensor

from polar.text.arithmetic import ArithmeticReceiver, ArithmeticSender
from polar.text.channel import Channel, open_channel
from polar.text.keys.derivation import KeyStream, MessageKeys
from polar.text.keys.key import KEY_BYTES, Key
from polar.text.scheme import Tokens
from polar.text.schemes.block import Block
from polar.text.schemes.block import walk as block
from polar.text.schemes.block.coding import PoolSource
from polar.text.schemes.stream import Stream
from polar.text.schemes.stream import walk as stream
from polar.text.settings import LawSettings, Settings
from polar.text.sources import QuantisedLaw, open_vocabulary
from wm_env.information import entropy
from wm_env.lm.models.load import load_lm
from wm_env.lm.models.masked_lm import MaskedLM
from wm_env.lm.pools.candidates import Pool
from wm_env.lm.prompts import read_prompts

CHUNK_BITS = 8
"""iMEC couples a message as independent chunks of so many bits; its work grows with 2^bits."""
DOUBT = 0.1
"""iMEC stops when no chunk has more entropy than that, in bits."""
MOST_TOKENS = 2000


@dataclass(frozen=True)
class TimedLM(MaskedLM):
    """A model that counts its passes and canvases and the time they take by `clock`."""

    clock: Callable[[], float] = time.process_time
    spent: Tally = field(default_factory=dict)

    def log2_probs(self, canvas: Tensor, position: int, temperature: float) -> Tensor:
        """As in `MaskedLM`."""
        begin = self.clock()
        result = super().log2_probs(canvas, position, temperature)
        add(self.spent, {"seconds": self.clock() - begin, "passes": 1, "canvases": len(canvas)})
        return result


class Laws:
    """The laws of the tokens of one text, remembered, so that a receiver costs no passes."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._known: dict[Tokens, QuantisedLaw] = {}

    def after(self, tokens: Tokens) -> QuantisedLaw:
        """The law of the next token."""
        if tokens not in self._known:
            self._known[tokens] = self._channel.source.law(tokens)
        return self._known[tokens]

    def weights(self, tokens: Tokens) -> list[int]:
        """The same by rank as integers that sum to 2^48, which couplings need."""
        return quantise(np.diff(self.after(tokens).cumulative).astype(np.float64))

    def entropy(self, tokens: Tokens) -> float:
        """The entropy of the text's laws, summed over its tokens, in bits."""
        laws = [self.after(tokens[:place]).cumulative for place in range(len(tokens))]
        return sum(float(entropy(torch.from_numpy(np.diff(law) / law[-1]))) for law in laws)


@dataclass(frozen=True)
class Job:
    """A message to send behind a prompt."""

    channel: Channel
    laws: Laws
    message: bytes
    key: Key
    rng: np.random.Generator

    @property
    def ids(self) -> list[int]:
        """Token ids by rank."""
        ids: list[int] = self.channel.source.vocabulary.ids.tolist()
        return ids

    def draws(self, label: str) -> KeyStream:
        """Shared randomness, from the start."""
        return MessageKeys(self.key, 0, b"stream").stream(label)


@dataclass(frozen=True)
class Outcome:
    """What a sender did, and how its receiver fares: `read` gives the message or None."""

    tokens: Tokens
    bits: int
    read: Callable[[], bytes | None]


def send_stream(job: Job) -> Outcome:
    """Ours, token by token, read from the bytes of the text."""
    keys = MessageKeys(job.key, 0, b"stream")
    sender = ArithmeticSender(job.message, keys, MOST_TOKENS, MOST_TOKENS)
    vocabulary = job.channel.source.vocabulary
    tokens, node = stream.walk_tokens(vocabulary, keys, sender, job.laws.after)
    last = stream.finish_token(vocabulary, job.laws.after(tokens), node, keys.stream("tail"))

    def read() -> bytes | None:
        receiver = ArithmeticReceiver(vocabulary.text((*tokens, last)), keys)
        receiver.follow(lambda: stream.walk_tokens(vocabulary, keys, receiver, job.laws.after))
        return _payload(receiver)

    return Outcome((*tokens, last), sender.frame.length, read)


def send_block(job: Job) -> Outcome:
    """Ours with keyed pools of Q = 64 blocks of 8 tokens, read from the bytes of the text."""
    keys = MessageKeys(job.key, 0, b"block")
    sender = ArithmeticSender(job.message, keys, MOST_TOKENS, MOST_TOKENS)
    source = PoolSource(Block(), job.channel, keys)
    pools: dict[Tokens, Pool] = {}

    def pool(tokens: Tokens) -> Pool:
        if tokens not in pools:
            pools[tokens] = source.pool(tokens)
        return pools[tokens]

    tokens = block.walk_blocks(keys, sender, 0.0, pool)

    def read() -> bytes | None:
        receiver = ArithmeticReceiver(job.channel.source.vocabulary.text(tokens), keys)
        receiver.follow(lambda: block.walk_blocks(keys, receiver, 0.0, pool))
        return _payload(receiver)

    return Outcome(tokens, sender.frame.length, read)


def _payload(receiver: ArithmeticReceiver) -> bytes | None:
    return receiver.message if isinstance(receiver.message, bytes) else None


def send_sparsamp(job: Job) -> Outcome:
    """The whole message on one circle."""
    bits = 8 * len(job.message)
    message, count = int.from_bytes(job.message), 1 << bits
    angles, tokens = job.draws("angles"), Tokens()
    while count > 1 and len(tokens) < MOST_TOKENS:
        cumulative = job.laws.after(tokens).cumulative.tolist()
        angle = angles.below(1 << sparsamp.ANGLE_BITS)
        cell = sparsamp.choose(cumulative, count, message, angle)
        left = sparsamp.survivors((cumulative[cell], cumulative[cell + 1]), cumulative[-1], count, angle)
        message, count = (message - left.start) % count, left.count
        tokens += (job.ids[cell],)

    def read() -> bytes:
        angles, messages, behind = job.draws("angles"), 1 << bits, []
        for place, token in enumerate(tokens):
            cumulative = job.laws.after(tokens[:place]).cumulative.tolist()
            cell = job.ids.index(token)
            left = sparsamp.survivors(
                (cumulative[cell], cumulative[cell + 1]),
                cumulative[-1],
                messages,
                angles.below(1 << sparsamp.ANGLE_BITS),
            )
            behind.append((left.start, messages))
            messages = left.count
        found = 0
        for start, before in reversed(behind):
            found = (found + start) % before
        return found.to_bytes(len(job.message))

    return Outcome(tokens, bits, read)


def send_discop(job: Job) -> Outcome:
    """Bit by bit down the Huffman trees of the tokens."""
    bits = [byte >> place & 1 for byte in job.message for place in reversed(range(8))]
    pointers, tokens, used = job.draws("pointers"), Tokens(), 0
    while used < len(bits) and len(tokens) < MOST_TOKENS:
        root = discop.huffman_tree(job.laws.weights(tokens))
        rank, consumed = discop.send(root, bits[used:], lambda: pointers.below(1 << discop.POINTER_BITS))
        tokens, used = (*tokens, job.ids[rank]), used + consumed

    def read() -> bytes:
        pointers, found = job.draws("pointers"), []
        for place, token in enumerate(tokens):
            root = discop.huffman_tree(job.laws.weights(tokens[:place]))
            found += discop.receive(root, job.ids.index(token), lambda: pointers.below(1 << discop.POINTER_BITS))
        return bytes(np.packbits(np.array(found[: len(bits)], dtype=np.uint8)))

    return Outcome(tokens, len(bits), read)


def send_imec(job: Job) -> Outcome:
    """Chunks of 8 padded bits; every token is coupled with the chunk in most doubt."""
    pad = job.draws("pad").leading(8 * len(job.message)).to_bytes(len(job.message))
    wanted = bytes(a ^ b for a, b in zip(job.message, pad, strict=True))
    beliefs, tokens = imec.Beliefs(len(wanted), CHUNK_BITS), Tokens()
    while beliefs.doubt > DOUBT and len(tokens) < MOST_TOKENS:
        chunk = beliefs.next_chunk()
        joint = imec.greedy_coupling(beliefs.chunks[chunk], job.laws.weights(tokens))
        row = [(token, mass) for value, token, mass in joint if value == wanted[chunk]]
        masses = np.array([mass for _, mass in row], dtype=np.float64)
        rank = row[int(job.rng.choice(len(row), p=masses / masses.sum()))][0]
        beliefs.observe(chunk, joint, rank)
        tokens += (job.ids[rank],)

    def read() -> bytes:
        beliefs = imec.Beliefs(len(wanted), CHUNK_BITS)
        for place, token in enumerate(tokens):
            chunk = beliefs.next_chunk()
            joint = imec.greedy_coupling(beliefs.chunks[chunk], job.laws.weights(tokens[:place]))
            beliefs.observe(chunk, joint, job.ids.index(token))
        return bytes(value ^ mask for value, mask in zip(beliefs.decisions(), pad, strict=True))

    return Outcome(tokens, 8 * len(wanted), read)


SCHEMES: dict[str, tuple[Callable[[Job], Outcome], str]] = {
    "stream (ours)": (send_stream, "bytes"),
    "block, Q = 64 (ours)": (send_block, "bytes"),
    "SparSamp": (send_sparsamp, "token ids"),
    "Discop": (send_discop, "token ids"),
    "iMEC, chunks of 8 bits": (send_imec, "token ids"),
}

HEADER = (
    "| scheme | receiver reads | texts | wrong | re-tokenised otherwise | tokens | bits/token | payload/token | "
    "utilisation | passes/token | canvases/token | coding ms/token |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def compare_texts(texts: int, block_texts: int, message_bytes: int, seed: int, device: str) -> Iterator[str]:
    """The lines of a Markdown table: every scheme sends the same random messages behind the same prompts.

    The scheme block draws 64 candidates for each of its blocks, so it takes most of the time, and has a number of texts
    of its own. The model runs on `device`.
    """
    loaded = load_lm("mini", device=device)
    lm = TimedLM(**vars(loaded), clock=clock_of(loaded))
    vocabulary = open_vocabulary(lm)
    prompts = read_prompts("shipped")
    order = np.random.default_rng(seed).permutation(len(prompts))
    yield HEADER
    for name, (send, reads) in SCHEMES.items():
        total: Tally = {}
        law = LawSettings(temperature=1.0, form="any")
        settings = Settings(Block() if send is send_block else Stream(), law)
        count = block_texts if send is send_block else texts
        if not count:
            continue
        for number in range(count):
            channel = open_channel(lm, prompts[order[number % len(order)]], settings, vocabulary)
            rng = np.random.default_rng([seed, number])
            job = Job(channel, Laws(channel), rng.bytes(message_bytes), Key(rng.bytes(KEY_BYTES)), rng)
            add(total, _send_and_read(job, send, lm))
        yield _line(name, reads, total, 8 * message_bytes)


def _send_and_read(job: Job, send: Callable[[Job], Outcome], lm: TimedLM) -> Tally:
    lm.spent.clear()
    begin = lm.clock()
    outcome = send(job)
    seconds = lm.clock() - begin
    spent = dict(lm.spent)
    text = job.channel.source.vocabulary.text(outcome.tokens).decode("utf-8", errors="replace")
    return {
        "texts": 1,
        "wrong": outcome.read() != job.message,
        "other": tuple(lm.encode(text)) != outcome.tokens,
        "tokens": len(outcome.tokens),
        "bits": outcome.bits,
        "entropy": job.laws.entropy(outcome.tokens),
        "passes": spent["passes"],
        "canvases": spent["canvases"],
        "coding": seconds - spent["seconds"],
    }


def _line(name: str, reads: str, total: Tally, payload: int) -> str:
    tokens = total["tokens"]
    return (
        f"| {name} | {reads} | {total['texts']} | {total['wrong']} | {total['other']} | {tokens} | "
        f"{total['bits'] / tokens:.3f} | {payload * total['texts'] / tokens:.3f} | "
        f"{total['bits'] / total['entropy']:.1%} | {total['passes'] / tokens:.2f} | "
        f"{total['canvases'] / tokens:.1f} | {1e3 * total['coding'] / tokens:.2f} |"
    )

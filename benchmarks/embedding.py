"""Messages in texts of the embedded model: are they found, what do they cost, is the law the model's?

    python benchmarks/embedding.py round-trips --count 1000
    python benchmarks/embedding.py efficiency --count 40 --size 16
    python benchmarks/embedding.py form --count 100 --size 10 --temperature 0.7
    python benchmarks/embedding.py law --count 10000
    python benchmarks/embedding.py wrong-keys --count 10000
    python benchmarks/embedding.py plain-texts --count 10000
    python benchmarks/embedding.py edits --count 50
    python benchmarks/embedding.py blocks --count 20

Each prints its figures with the counts that they were measured on. With `--processes P` the items are spread over P
processes, each with one thread. On a CPU, times are processor times, so that they mean something on a busy machine.
"""

import math
import string
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal

from command import MANY, SEEDS, run_benchmark, within

from wm_env.common.command import quitting_on_interrupt

with quitting_on_interrupt(__name__):
    import numpy as np
    import torch
    import tyro
    from metering import measure
    from scipy.stats import chisquare
    from sharing import Share, Tally, add, run_shares

    from polar.text.arithmetic import ArithmeticReceiver, ArithmeticSender
    from polar.text.channel import Channel, open_channel
    from polar.text.decoding import decode
    from polar.text.embedding import Embedded, embed_with_retries
    from polar.text.framing import CHECK_BITS, Message
    from polar.text.keys.derivation import MessageKeys, message_keys, text_hash
    from polar.text.keys.key import KEY_BYTES, Key
    from polar.text.scheme import Scheme, Tokens, UnfitTextError
    from polar.text.schemes.block import Block
    from polar.text.schemes.block.answers import PoolAnswers
    from polar.text.schemes.block.walk import make_code
    from polar.text.schemes.stream import Stream
    from polar.text.schemes.stream.walk import TokenLaw, walk_tokens
    from polar.text.settings import LawSettings, Limits, Settings
    from polar.text.sources import open_vocabulary
    from polar.text.vocabulary import Vocabulary
    from wm_env.common.arguments import parse
    from wm_env.lm.models.load import load_lm
    from wm_env.lm.prompts import read_prompts

BRIEF = Limits(ending="none")

ATTEMPTS = 4
"""Nonces that are tried when a text cannot be sent."""

KEYS_PER_TEXT = 100
"""Wrong keys that are tried on one text."""

LETTERS = string.ascii_letters + string.digits + string.punctuation + " \n"
"""Characters that an edit can put in."""


@dataclass(frozen=True)
class Options:
    """What is measured, and on how much."""

    what: tyro.conf.Positional[
        Literal["round-trips", "efficiency", "form", "law", "wrong-keys", "plain-texts", "edits", "blocks"]
    ]
    """The measurement; see above."""
    count: int
    """Messages, texts or keys."""
    model: str = "mini"
    """"mini", a folder with a LLaDA checkpoint, or a hub id."""
    device: str = "cpu"
    """Where the model runs; cuda spreads the processes over all GPUs."""
    processes: int = 1
    """Processes that share the work."""
    temperature: float = 1.0
    """tau."""
    form: Literal["canonical", "any"] = "canonical"
    """Form of the texts; efficiency and law are measured with any."""
    size: int = 4
    """Bytes of a message, where all have the same size."""
    letters: int = 4
    """Different characters that edits put in at every place, at most 96."""
    words: int | None = None
    """Use only so many first words of the prompts: shorter canvases, less time."""
    minutes: float = 60.0
    """Stop early after so long."""
    seed: int = 0
    """Chooses messages, keys and prompts."""


class Bench:
    """A model with prompts."""

    def __init__(self, options: Options, device: str) -> None:
        self.options = options
        self.lm = load_lm(options.model, device=device)
        self.vocabulary = open_vocabulary(self.lm)
        self.prompts = [" ".join(prompt.split(" ")[: options.words]) for prompt in read_prompts("shipped")]
        self.order = np.random.default_rng(options.seed).permutation(len(self.prompts))
        self.marked = lru_cache(maxsize=1)(self._marked)

    def rng(self, number: int) -> np.random.Generator:
        """The random draws of one item."""
        return np.random.default_rng([self.options.seed, number])

    def channel(self, number: int, scheme: Scheme | None = None) -> Channel:
        """A channel behind one of the shipped prompts, taken in random order."""
        prompt = self.prompts[self.order[number % len(self.order)]]
        law = LawSettings(temperature=self.options.temperature, form=self.options.form)
        return open_channel(self.lm, prompt, Settings(scheme or Stream(), law), self.vocabulary)

    def _marked(self, number: int) -> tuple[Embedded, Key, bytes, "Reading"]:
        """A text with a random message, its key and message, and how to read it with laws that are remembered."""
        rng, channel = np.random.default_rng([self.options.seed, number, 1]), self.channel(number)
        message, key = rng.bytes(self.options.size), draw_key(rng)
        sent = embed_with_retries(channel, message, key, range(ATTEMPTS), BRIEF)
        return sent, key, message, Reading(channel, lru_cache(maxsize=4096)(channel.source.law))


@dataclass(frozen=True)
class Reading:
    """Reads texts on a channel, with laws that may be remembered from other texts."""

    channel: Channel
    law: Callable[[Tokens], TokenLaw]

    def message(self, text: str, key: Key, nonce: int) -> Message | None:
        """What the receiver finds."""
        keys = message_keys(key, nonce, self.channel.settings, text_hash(self.channel.prompt))
        receiver = ArithmeticReceiver(text.encode(), keys)
        return receiver.follow(partial(walk_tokens, self.channel.source.vocabulary, keys, receiver, self.law)).message


def draw_key(rng: np.random.Generator) -> Key:
    """A key for measurements; `polar.text.keys.key.new_key` makes real ones."""
    return Key(rng.bytes(KEY_BYTES))


def verdict(found: Message | None, message: bytes) -> str:
    """Whether what was found is the message."""
    if found is None:
        return "no message"
    return "exact" if found == message else "WRONG"


def round_trip(bench: Bench, number: int) -> Tally:
    """A random message of 1 to 64 bytes: embed, decode from the text with the model, compare."""
    rng, channel = bench.rng(number), bench.channel(number)
    message, key = rng.bytes(int(rng.integers(1, 65))), draw_key(rng)
    sent = embed_with_retries(channel, message, key, range(ATTEMPTS), BRIEF)
    found = decode(channel, sent.text.encode(), key, [sent.nonce])
    return {
        verdict(found.message, message): 1,
        "bytes": len(message),
        "frame": sent.sent_bits,
        "tokens": sent.coded_tokens,
        "rejected": sent.rejected,
    }


def report_round_trips(bench: Bench, tally: Tally) -> str:
    """Counts, and bits per token."""
    return (
        f"{outcomes(tally)}; {tally['bytes']} bytes, {tally['frame']} bits with the frame in {tally['tokens']} tokens "
        f"({tally['frame'] / tally['tokens']:.2f} bits per token); {tally['rejected']} nonces gave no text"
    )


def outcomes(tally: Tally) -> str:
    """How often there was which verdict."""
    counts = {name: tally.get(name, 0) for name in ("exact", "no message", "WRONG")}
    return f"{sum(counts.values())} texts read: " + ", ".join(f"{count} {name}" for name, count in counts.items())


def efficiency(bench: Bench, number: int) -> Tally:
    """A random message of `size` bytes in the scheme stream; see `metering.measure`."""
    rng = bench.rng(number)
    keys = MessageKeys(draw_key(rng), 0, b"stream")
    return measure(bench.channel(number), keys, ArithmeticSender(rng.bytes(bench.options.size), keys, 10**6, 10**6))


def report_efficiency(bench: Bench, tally: Tally) -> str:
    """Where bits and time went."""
    parts = ("frame", "overshoot", "rest", "shared")
    check = CHECK_BITS * tally["texts"] + tally["overshoot"]
    spent, tokens, passes = sum(tally[part] for part in parts), tally["tokens"], tally["passes"]
    payload = 8 * bench.options.size * tally["texts"]
    shares = ", ".join(f"{part} {tally[part] / spent:.2%}" for part in parts)
    a_pass, coding, sampling = (
        1e3 * tally["model_seconds"] / passes,
        1e3 * tally["coding_seconds"] / tokens,
        1e3 * tally["plain_seconds"] / passes,
    )
    return (
        f"{tally['texts']} messages of {bench.options.size} bytes in {tokens} tokens; bits per token: "
        f"entropy {tally['entropy'] / tokens:.3f}, surprisal {tally['surprisal'] / tokens:.3f}, "
        f"frame {tally['frame'] / tokens:.3f}, payload {payload / tokens:.3f}\n"
        f"of {spent / tally['texts']:.1f} bits per text: {shares}; payload {payload / spent:.2%}; "
        f"frame over all until it is in {tally['frame'] / (spent - tally['rest']):.2%}; "
        f"check value and overshoot, {check / tally['texts']:.1f} bits, {check / spent:.2%}\n"
        f"{passes / tokens:.3f} passes per token, of {a_pass:.2f} ms; coding {coding:.2f} ms per token, plain "
        f"sampling {sampling:.2f} ms: beyond passes {(coding - sampling) / (a_pass + sampling):.1%} slower than that"
    )


def form(bench: Bench, number: int) -> Tally:
    """What its form costs a text with a random message of `size` bytes, to the end of the sentence; see
    `VariationBound.variation`.
    """
    rng = bench.rng(number)
    sent = embed_with_retries(bench.channel(number), rng.bytes(bench.options.size), draw_key(rng), range(ATTEMPTS))
    return {"texts": 1, "tokens": len(sent.tokens), "cost": sent.cost.variation, "square": sent.cost.variation**2}


def report_form(bench: Bench, tally: Tally) -> str:
    """The mean, which bounds the total variation, with its standard error."""
    texts, mean = tally["texts"], tally["cost"] / tally["texts"]
    error = math.sqrt(max(0.0, tally["square"] / texts - mean**2) / max(1, texts - 1))
    return (
        f"{texts} texts of {tally['tokens'] / texts:.0f} tokens, temperature {bench.options.temperature:g}, form "
        f"{bench.options.form}: TV to the model's law at most {mean:.3f}, standard error {error:.3f}"
    )


class BriefSender(ArithmeticSender):
    """Is done after so many bytes that two tokens have ended, however long they are."""

    def __init__(self, vocabulary: Vocabulary, keys: MessageKeys) -> None:
        super().__init__(b"one message", keys, 10**6, 10**6)
        self.bytes_left = 2 * max(map(len, vocabulary.strings)) + 1

    @property
    def done(self) -> bool:
        """As in `Side`."""
        return self.bytes_left == 0

    def put(self, text: bytes) -> None:
        """As in `Side`."""
        self.bytes_left -= len(text)


def law(bench: Bench, number: int) -> Tally:
    """The first two tokens of a text behind one prompt with a random key."""
    keys = MessageKeys(draw_key(bench.rng(number)), 0, b"stream")
    tokens, _ = walk_tokens(bench.vocabulary, keys, BriefSender(bench.vocabulary, keys), bench.marked(0)[-1].law)
    return {tokens[:2]: 1}


def report_law(bench: Bench, tally: Tally) -> str:
    """Chi-square of the first token, and of the second one after the likeliest first one, against the model."""
    source = bench.channel(0).source
    ids = source.vocabulary.ids.tolist()
    first = np.diff(source.law(()).cumulative) / source.law(()).cumulative[-1]
    heavy = ids[first.argmax()]
    after = source.law((heavy,))
    second = np.diff(after.cumulative) / after.cumulative[-1]
    firsts, seconds = Counter[int](), Counter[int]()
    for tokens, number in tally.items():
        firsts[tokens[0]] += int(number)
        seconds[tokens[1]] += int(number) * (tokens[0] == heavy)
    return "\n".join(
        f"{name} token of {counts.total()} texts: {chi_square(np.array([counts[token] for token in ids]), probs)}"
        for name, counts, probs in (("first", firsts, first), ("second", seconds, second))
    )


def chi_square(observed: Any, probs: Any) -> str:
    """Of counts against a law; outcomes that are expected fewer than 5 times count as one."""
    count = observed.sum()
    common = probs * count >= 5
    wanted = np.append(probs[common], probs[~common].sum()) * count
    seen = np.append(observed[common], observed[~common].sum())
    result = chisquare(seen, wanted)
    return f"chi-square {result.statistic:.1f} on {len(wanted) - 1} degrees of freedom, p = {result.pvalue:.3f}"


def wrong_key(bench: Bench, number: int) -> Tally:
    """A marked text and a key that did not make it."""
    sent, _, _, reading = bench.marked(number // KEYS_PER_TEXT)
    return {"read": 1, "alarms": reading.message(sent.text, draw_key(bench.rng(number)), sent.nonce) is not None}


def plain_text(bench: Bench, number: int) -> Tally:
    """Human text and a key: every news opening from every tenth character on, behind every prompt in turn."""
    prompt, start = divmod(number, 20)
    text = bench.prompts[prompt % len(bench.prompts)][10 * start :]
    channel = bench.channel(prompt // len(bench.prompts) + prompt)
    found = Reading(channel, channel.source.law).message(text, draw_key(bench.rng(number)), 0)
    return {"read": 1, "alarms": found is not None}


def report_alarms(bench: Bench, tally: Tally) -> str:
    """How often there was a message where none is."""
    return f"{tally['read']} {bench.options.what.replace('-', ' ')}: {tally['alarms']} false messages"


def edits(bench: Bench, number: int) -> Tally:
    """Every character of a text left out or replaced, and others put in everywhere: the exact message or none."""
    (sent, key, message, reading), rng = bench.marked(number), bench.rng(number)
    text, tally = sent.text, Tally()
    add(tally, {"texts": 1})
    for place in range(len(text) + 1):
        letters = rng.permutation(list(LETTERS))[: bench.options.letters]
        before, here, after = text[:place], text[place : place + 1], text[place + 1 :]
        edited = {before + letter + here + after for letter in letters} | {before + after}
        edited |= {before + letter + after for letter in letters if here}
        for other in sorted(edited - {text}):
            add(tally, {verdict(reading.message(other, key, sent.nonce), message): 1})
    return tally


def report_edits(bench: Bench, tally: Tally) -> str:
    """Counts."""
    return f"{tally['texts']} texts; {outcomes(tally)}"


def blocks(bench: Bench, number: int) -> Tally:
    """A message in the scheme block at Q = 64: bits per block, and whether it comes back."""
    rng, channel = bench.rng(number), bench.channel(number, Block())
    message, key = rng.bytes(bench.options.size), draw_key(rng)
    try:
        sent = embed_with_retries(channel, message, key, range(ATTEMPTS), BRIEF)
    except UnfitTextError:
        return {"unfit": 1}
    found = decode(channel, sent.text.encode(), key, [sent.nonce])
    assert sent.record is not None
    assert isinstance(sent.record.answers, PoolAnswers)
    pools = sent.record.answers.pools.values()
    return {
        verdict(found.message, message): 1,
        "blocks": len(pools),
        "bits": sum(make_code(pool, 0.0).bits for pool in pools),
        "dropped": sum(getattr(pool, "dropped", 0) for pool in pools),
        "rejected": sent.rejected,
    }


def report_blocks(bench: Bench, tally: Tally) -> str:
    """Counts, and bits per block against log2 Q."""
    scheme, length = Block(), LawSettings().block_length
    bits = tally["bits"] / tally["blocks"]
    return (
        f"{outcomes(tally)}; {bits:.3f} bits per block of {tally['blocks']} "
        f"({bits / math.log2(scheme.candidates):.1%} of log2 Q, {bits / length:.3f} bits per token); "
        f"draws that were no text {tally['dropped'] / tally['blocks'] / scheme.candidates:.2e}; "
        f"{tally['rejected']} nonces gave no text"
    )


@dataclass(frozen=True)
class Measurement:
    """What is done for each item, and how the sum of the tallies reads."""

    item: Callable[[Bench, int], Tally]
    report: Callable[[Bench, Tally], str]


MEASUREMENTS = {
    "round-trips": Measurement(round_trip, report_round_trips),
    "efficiency": Measurement(efficiency, report_efficiency),
    "form": Measurement(form, report_form),
    "law": Measurement(law, report_law),
    "wrong-keys": Measurement(wrong_key, report_alarms),
    "plain-texts": Measurement(plain_text, report_alarms),
    "edits": Measurement(edits, report_edits),
    "blocks": Measurement(blocks, report_blocks),
}


def work(options: Options, share: Share) -> Tally:
    """Measure the items of one share, on one thread."""
    torch.set_num_threads(1)
    bench, total = Bench(options, share.device(options.device)), Tally()
    for number in share.numbers():
        add(total, MEASUREMENTS[options.what].item(bench, number))
    return total


def main() -> None:
    """Measure and print."""
    options = parse(Options, description=__doc__)
    within(options, count=MANY, processes=(1, 1024), size=(0, 4096), letters=(1, len(LETTERS)), words=MANY)
    within(options, minutes=(0, 10**6), seed=SEEDS)
    tally = run_shares(partial(work, options), options.count, options.processes, options.minutes)
    print(MEASUREMENTS[options.what].report(Bench(options, options.device), tally), flush=True)


if __name__ == "__main__":
    run_benchmark(main)

"""Messages in texts of the embedded model: are they found, what do they cost, is the law the model's?

    python benchmarks/embedding.py round-trips --count 1000
    python benchmarks/embedding.py efficiency --count 40
    python benchmarks/embedding.py law --count 10000
    python benchmarks/embedding.py wrong-keys --count 10000
    python benchmarks/embedding.py plain-texts --count 10000
    python benchmarks/embedding.py edits --count 50
    python benchmarks/embedding.py blocks --count 20

Every command prints its figures with the counts that they were measured on, and after interim counts too. Times are
processor times of this process, so that they mean something on a busy machine; use one thread.
"""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
import tyro
from scipy.stats import chisquare

from polar import stream
from polar.arithmetic import NoMessageError, Receiver, Sender
from polar.block import make_code
from polar.channel import Channel, Settings, open_channel
from polar.decoding import decode, decode_many
from polar.embedding import Embedded, Limits, UnfitTextError, embed, embed_many
from polar.framing import Message
from polar.secrets import Key, KeyStream, MessageKeys, new_key
from polar.sources import QuantisedLaw, drive, open_vocabulary, quantise
from polar.stream import Tokens
from polar.vocabulary import Vocabulary
from wm_env.lm.llada import load_lm
from wm_env.lm.prompts import read_prompts

BRIEF = Limits(ending="none")


@dataclass(frozen=True)
class Options:
    """What is measured, and on how much."""

    what: tyro.conf.Positional[
        Literal["round-trips", "efficiency", "law", "wrong-keys", "plain-texts", "edits", "blocks"]
    ]
    """The measurement; see above."""
    count: int
    """Messages, texts or keys."""
    model: str = "mini"
    """"mini", a folder with a LLaDA checkpoint, or a hub id."""
    device: str = "cpu"
    """Where the model runs."""
    temperature: float = 1.0
    """tau."""
    rows: int = 8
    """Canvases in a forward pass, where texts are made side by side."""
    batch: int = 40
    """Texts that are made side by side."""
    size: int = 4
    """Bytes of a message, where all have the same size."""
    words: int | None = None
    """Use only so many first words of the prompts: shorter canvases, less time."""
    minutes: float = 60.0
    """Stop early after so long."""
    seed: int = 0
    """Chooses messages and prompts."""


class Bench:
    """A model with prompts, and a clock."""

    def __init__(self, options: Options) -> None:
        torch.set_num_threads(1)
        self.options = options
        self.lm = load_lm(options.model, device=options.device)
        self.vocabulary = open_vocabulary(self.lm)
        self.prompts = [" ".join(prompt.split(" ")[: options.words]) for prompt in read_prompts("shipped")]
        self.rng = np.random.default_rng(options.seed)
        self.order = self.rng.permutation(len(self.prompts))
        self.end = time.monotonic() + 60 * options.minutes

    def channel(self, number: int, **settings: Any) -> Channel:
        """A channel behind one of the shipped prompts, taken in random order."""
        prompt = self.prompts[self.order[number % len(self.order)]]
        settings.setdefault("temperature", self.options.temperature)
        return open_channel(self.lm, prompt, Settings(**settings), self.vocabulary)

    @property
    def late(self) -> bool:
        """Whether it is time to stop."""
        return time.monotonic() > self.end


def round_trips(bench: Bench) -> None:
    """Random messages of 1 to 64 bytes: embed, decode from the text with the model, compare."""
    options, key = bench.options, new_key()
    seen: Counter[str] = Counter()
    bits = tokens = done = 0
    while done < options.count and not bench.late:
        numbers = range(done, min(done + options.batch, options.count))
        messages = {n: bench.rng.bytes(int(bench.rng.integers(1, 65))) for n in numbers}
        channels = {n: bench.channel(n, rows=options.rows) for n in numbers}
        sent = embed_many([(channels[n], messages[n], key, n) for n in numbers], BRIEF)
        texts = {n: text for n, text in zip(numbers, sent, strict=True) if isinstance(text, Embedded)}
        seen.update(str(failure) for failure in sent if not isinstance(failure, Embedded))
        found = decode_many([(channels[n], text.text.encode(), key, n) for n, text in texts.items()])
        seen.update("exact" if f.message == messages[n] else "WRONG" for n, f in zip(texts, found, strict=True))
        bits += sum(text.frame_bits for text in texts.values())
        tokens += sum(text.coded_tokens for text in texts.values())
        done += len(numbers)
        print(f"{done} messages: {dict(seen)}; {bits} frame bits in {tokens} tokens", flush=True)


class Meter:
    """The stream of token ends, which adds up the entropy of what it decides, in bits."""

    def __init__(self, draws: KeyStream) -> None:
        self.draws = draws
        self.bits = 0.0

    def below(self, bound: int) -> "_Metered":
        """A draw that is compared with a limit."""
        return _Metered(self, bound)


@dataclass(frozen=True)
class _Metered:
    meter: Meter
    bound: int

    def __lt__(self, limit: int) -> bool:
        shares = limit / self.bound, 1 - limit / self.bound
        self.meter.bits -= sum(share * math.log2(share) for share in shares if share > 0)
        return self.meter.draws.below(self.bound) < limit


@dataclass(frozen=True)
class _MeteredKeys:
    keys: MessageKeys
    meter: Meter

    def stream(self, label: str) -> Any:
        """The metered stream for token ends, else the plain one."""
        return self.meter if label == "token ends" else self.keys.stream(label)


def efficiency(bench: Bench) -> None:
    """Where the model's entropy and the time go in the scheme stream, for messages of 128 and 512 bits."""
    for size in (16, 64):
        totals: defaultdict[str, float] = defaultdict(float)
        for number in range(bench.options.count):
            if bench.late:
                break
            channel = bench.channel(number)
            keys = MessageKeys(new_key(), number, "stream")
            sender = Sender(bench.rng.bytes(size), keys, 10**6, 10**6)
            totals["payload"] += 8 * size
            for name, value in _measure(channel, keys, sender).items():
                totals[name] += value
        tokens, entropy = totals["tokens"], totals["entropy"]
        # The expected entropy of a text up to a stop is its expected surprisal, which varies much less.
        print(
            f"{size} bytes, {totals['texts']:.0f} texts, {tokens:.0f} tokens: "
            f"entropy {entropy / tokens:.3f} bits per token, frame {totals['frame'] / tokens:.3f}, "
            f"payload {totals['payload'] / tokens:.3f}; frame over entropy {totals['frame'] / entropy:.1%}, "
            f"over surprisal {totals['frame'] / totals['surprisal']:.1%}, "
            f"payload over surprisal {totals['payload'] / totals['surprisal']:.1%}; "
            f"decided by shared randomness {totals['shared'] / entropy:.1%} of the entropy\n"
            f"  {totals['calls'] / tokens:.2f} forward passes per token of "
            f"{1e3 * totals['model'] / totals['calls']:.2f} ms, "
            f"coding {1e3 * totals['coding'] / tokens:.2f} ms per token; "
            f"plain sampling: 1 pass and {1e3 * totals['plain'] / tokens:.2f} ms per token",
            flush=True,
        )


def _measure(channel: Channel, keys: MessageKeys, sender: Sender) -> dict[str, float]:
    meter = Meter(keys.stream("token ends"))
    entropies: dict[Tokens, float] = {}
    laws: dict[Tokens, QuantisedLaw] = {}
    spent: defaultdict[str, float] = defaultdict(float)

    def law(tokens: Tokens) -> QuantisedLaw:
        begin = time.process_time()
        canvas, position = channel.source.canvas(tokens)
        log2_probs = channel.source.lm.log2_probs(torch.tensor([canvas]), position, channel.source.temperature)
        scores = log2_probs[0].cpu().numpy()[channel.source.vocabulary.ids]
        middle = time.process_time()
        answer = quantise(scores)
        spent["model"] += middle - begin
        end = time.process_time()
        probs = np.exp2(scores)
        np.searchsorted(np.cumsum(probs), 0.5)
        spent["plain call"] += time.process_time() - end
        laws[tokens] = answer
        entropies[tokens] = -float((probs * np.maximum(scores, -1e4)).sum())
        spent["outside"] += time.process_time() - end
        return answer

    begin = time.process_time()
    vocabulary = channel.source.vocabulary
    tokens, node = drive(stream.walk(vocabulary, _MeteredKeys(keys, meter), sender), law)  # type: ignore[arg-type]
    spent["all"] = time.process_time() - begin
    tokens += (stream.finish_token(vocabulary, laws[tokens], node, keys.stream("tail")),)
    steps = len(tokens)
    return {
        "texts": 1.0,
        "tokens": steps,
        "surprisal": sum(_surprisal(laws[tokens[:place]], vocabulary, tokens[place]) for place in range(steps)),
        "entropy": sum(entropies[tokens[:place]] for place in range(steps)),
        "frame": sender.frame.length,
        "shared": meter.bits,
        "calls": len(entropies),
        "model": spent["model"],
        "coding": spent["all"] - spent["model"] - spent["outside"],
        "plain": spent["plain call"] * steps / len(entropies),
    }


def _surprisal(law: QuantisedLaw, vocabulary: Vocabulary, token: int) -> float:
    rank = vocabulary.ids.tolist().index(token)
    return -math.log2(int(law.cumulative[rank + 1] - law.cumulative[rank]) / int(law.cumulative[-1]))


def law(bench: Bench) -> None:
    """Chi-square of the first two tokens of texts with random keys, one prompt, against the model."""
    source = bench.channel(0).source
    answer = lru_cache(maxsize=None)(source.law)
    first = np.diff(answer(()).cumulative) / answer(()).cumulative[-1]
    counts: Counter[Tokens] = Counter()
    for _ in range(bench.options.count):
        keys = MessageKeys(new_key(), 0, "stream")
        steps = stream.walk(source.vocabulary, keys, Sender(b"one message", keys, 10**6, 10**6))
        question = next(steps)
        # A question of n tokens may look ahead of n - 1 that are settled.
        while len(question) < 3:
            question = steps.send(answer(question))
        counts[question[:2]] += 1
        if bench.late:
            break
    done = counts.total()
    rank = {int(token): place for place, token in enumerate(source.vocabulary.ids)}
    observed = np.zeros(len(first))
    for tokens, number in counts.items():
        observed[rank[tokens[0]]] += number
    print(f"{done} texts, first token: {_chi_square(observed, first, done)}")
    heavy = int(source.vocabulary.ids[first.argmax()])
    second = np.diff(answer((heavy,)).cumulative) / answer((heavy,)).cumulative[-1]
    observed = np.zeros(len(second))
    for tokens, number in counts.items():
        if tokens[0] == heavy:
            observed[rank[tokens[1]]] += number
    print(f"second token after the likeliest first: {_chi_square(observed, second, int(observed.sum()))}")


def _chi_square(observed: Any, law: Any, count: int) -> str:
    common = law * count >= 5
    wanted = np.append(law[common], law[~common].sum()) * count
    seen = np.append(observed[common], observed[~common].sum())
    result = chisquare(seen, wanted)
    return f"chi-square {result.statistic:.1f} on {len(wanted) - 1} degrees of freedom, p = {result.pvalue:.3f}"


def wrong_keys(bench: Bench) -> None:
    """One marked text and keys that did not make it."""
    channel = bench.channel(0)
    sent = embed(channel, b"user 4711", new_key(), 0)
    remembered = lru_cache(maxsize=4096)(channel.source.law)
    _count_alarms(bench, lambda number: _message(channel, remembered, sent.text.encode(), new_key(), 0), "wrong keys")


def plain_texts(bench: Bench) -> None:
    """Human text and a key: every news opening from every tenth character on, behind every prompt in turn."""

    def read(number: int) -> Message | None:
        prompt, start = divmod(number, 20)
        text = bench.prompts[prompt % len(bench.prompts)][10 * start :]
        channel = bench.channel(prompt // len(bench.prompts) + prompt)
        return _message(channel, channel.source.law, text.encode(), new_key(), 0)

    _count_alarms(bench, read, "plain texts")


def _message(
    channel: Channel, law: Callable[[Tokens], QuantisedLaw], text: bytes, key: Key, nonce: int
) -> Message | None:
    """What the receiver finds with laws that may be remembered from other texts."""
    keys = MessageKeys(key, nonce, "stream")
    receiver = Receiver(text, keys)
    try:
        drive(stream.walk(channel.source.vocabulary, keys, receiver), law)
    except NoMessageError:
        return None
    return receiver.message


def _count_alarms(bench: Bench, read: Callable[[int], Message | None], name: str) -> None:
    alarms = done = 0
    while done < bench.options.count and not bench.late:
        alarms += read(done) is not None
        done += 1
        if done % 500 == 0:
            print(f"{done} {name}: {alarms} false messages", flush=True)
    print(f"{done} {name}: {alarms} false messages")


def edits(bench: Bench) -> None:
    """Every character of a text replaced, deleted, and doubled: the exact message or none."""
    key = new_key()
    seen: Counter[str] = Counter()
    texts = 0
    while texts < bench.options.count and not bench.late:
        channel = bench.channel(texts)
        message = bench.rng.bytes(bench.options.size)
        try:
            text = embed(channel, message, key, texts, BRIEF).text
        except UnfitTextError:
            continue
        remembered = lru_cache(maxsize=4096)(channel.source.law)
        for place, letter in enumerate(text):
            for new in ("a" if letter == "e" else "e", "", 2 * letter):
                edited = text[:place] + new + text[place + 1 :]
                seen[_verdict(_message(channel, remembered, edited.encode(), key, texts), message)] += 1
        texts += 1
        print(f"{texts} texts, {seen.total()} edits: {dict(seen)}", flush=True)


def _verdict(found: Message | None, message: bytes) -> str:
    if found is None:
        return "no message"
    return "exact" if found == message else "WRONG"


def blocks(bench: Bench) -> None:
    """The scheme block at Q = 64: bits per block against log2 Q, round trips, time."""
    key = new_key()
    seen: Counter[str] = Counter()
    bits = blocks_made = dropped = 0
    begin = time.process_time()
    for number in range(bench.options.count):
        if bench.late:
            break
        channel = bench.channel(number, scheme="block")
        message = bench.rng.bytes(bench.options.size)
        try:
            sent = embed(channel, message, key, number, BRIEF)
        except UnfitTextError as error:
            seen[str(error)] += 1
            continue
        bits += sum(make_code(pool, 0.0).bits for pool in sent.law.pools.values())
        blocks_made += len(sent.law.pools)
        dropped += sum(pool.dropped for pool in sent.law.pools.values())  # type: ignore[attr-defined]
        seen[_verdict(decode(channel, sent.text.encode(), key, [number]).message, message)] += 1
        length, most = channel.settings.block_length, math.log2(channel.settings.candidates)
        print(
            f"{number + 1} texts: {dict(seen)}; {bits / blocks_made:.3f} bits per block "
            f"({bits / blocks_made / most:.1%} of log2 Q, {bits / blocks_made / length:.3f} bits per token), "
            f"draws that were no text {dropped / blocks_made / channel.settings.candidates:.2e}; "
            f"{(time.process_time() - begin) / blocks_made:.2f} s per block, decoding included",
            flush=True,
        )


MEASUREMENTS = {
    "round-trips": round_trips,
    "efficiency": efficiency,
    "law": law,
    "wrong-keys": wrong_keys,
    "plain-texts": plain_texts,
    "edits": edits,
    "blocks": blocks,
}


if __name__ == "__main__":
    options = tyro.cli(Options, description=__doc__)
    MEASUREMENTS[options.what](Bench(options))

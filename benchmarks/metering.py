"""Where the entropy of a text of the scheme stream goes, and the time of its sender."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from sharing import add

from polar.text.arithmetic import ArithmeticSender
from polar.text.channel import Channel
from polar.text.keys.derivation import KeyStream, MessageKeys
from polar.text.scheme import Tokens
from polar.text.schemes.stream.walk import finish_token, walk_tokens
from polar.text.sources import QuantisedLaw, integer_masses, restrict
from wm_env.lm.models.masked_lm import MaskedLM


def clock_of(lm: MaskedLM) -> Callable[[], float]:
    """Seconds for the work of a model: of this process on a CPU; on a GPU of the wall, with all that was begun done."""
    device = lm.banned.device
    if device.type == "cpu":
        return time.process_time

    def settled() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return settled


class Meter:
    """The stream that decides about readings, which adds up the entropy of what it decides, in bits."""

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

    def stream(self, label: str, about: bytes = b"") -> Any:
        """The metered stream for token ends, else the plain one."""
        return self.meter if label == "token ends" else self.keys.stream(label, about)


@dataclass
class _WatchedModel:
    """The laws of a channel, with the time that the model takes and what plain sampling adds to it."""

    channel: Channel
    clock: Callable[[], float]
    laws: dict[Tokens, QuantisedLaw] = field(default_factory=dict)
    entropy: dict[Tokens, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def law(self, tokens: Tokens) -> QuantisedLaw:
        """As `ModelSource.law` does it."""
        begin = self.clock()
        source = self.channel.source
        canvas, position = source.canvas(tokens)
        log2_probs = source.lm.log2_probs(torch.tensor([canvas]), position, source.settings.temperature)
        scores = log2_probs[0].cpu().numpy()[source.vocabulary.ids]
        told = self.clock()
        self.laws[tokens] = restrict(integer_masses(scores), source.vocabulary.ids, 1.0, None)
        coded = self.clock()
        np.searchsorted(np.cumsum(np.exp2(scores)), 0.5)
        sampled = self.clock()
        self.entropy[tokens] = -float((np.exp2(scores) * np.maximum(scores, -1e4)).sum())
        add(self.seconds, {"model": told - begin, "plain": sampled - coded, "watching": self.clock() - coded})
        return self.laws[tokens]


def measure(channel: Channel, keys: MessageKeys, sender: ArithmeticSender) -> dict[str, float]:
    """Send a message in any form at top-p 1, and add up tokens, passes, seconds, and where the bits of surprisal went.

    frame: what was sent. overshoot: the last choice was finer than the frame needed, which checks the frame like so
    many more bits of its check value. rest: the end of the last token. shared: what shared randomness decided, as its
    entropy. In expectation they add up to surprisal, and this is
    entropy, the sum of the entropies of the laws of the tokens.
    """
    clock = clock_of(channel.source.lm)
    model = _WatchedModel(channel, clock)
    meter = Meter(keys.stream("token ends"))
    vocabulary = channel.source.vocabulary
    begin = clock()
    tokens, node = walk_tokens(vocabulary, _MeteredKeys(keys, meter), sender, model.law)  # type: ignore[arg-type]
    everything = clock() - begin
    passes = len(model.laws)
    last = finish_token(vocabulary, model.laws[tokens], node, keys.stream("tail"))
    marks = model.laws[tokens].at(node.bounds)
    text = (*tokens, last)
    surprisals = [_surprisal(model.laws[text[:place]], channel, text[place]) for place in range(len(text))]
    return {
        "texts": 1,
        "tokens": len(text),
        "passes": passes,
        "frame": sender.frame.length,
        "overshoot": sender.interval.precision - math.log2(sender.interval.width) - sender.frame.length,
        "rest": surprisals[-1] + math.log2((marks[-1] - marks[0]) / model.laws[tokens].at(vocabulary.root.bounds)[-1]),
        "shared": meter.bits,
        "surprisal": sum(surprisals),
        "entropy": sum(model.entropy[text[:place]] for place in range(len(text))),
        "model_seconds": model.seconds["model"],
        "coding_seconds": everything - model.seconds["model"] - model.seconds["watching"],
        "plain_seconds": model.seconds["plain"],
    }


def _surprisal(law: QuantisedLaw, channel: Channel, token: int) -> float:
    rank = int(np.flatnonzero(channel.source.vocabulary.ids == token)[0])
    start, end = law.at(np.array([rank, rank + 1]))
    return -math.log2((end - start) / int(law.cumulative[-1]))

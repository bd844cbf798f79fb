"""Texts that nobody marked, read as `decode` reads them: is there ever a message, and do the p-values hold?

    python benchmarks/foreign.py --scheme stream --count 10000 --words 4 --processes 16 --device cuda
    python benchmarks/foreign.py --scheme block --count 10000 --words 4 --processes 16 --device cuda
    python benchmarks/foreign.py --scheme parallel --count 10000 --processes 16
    python benchmarks/foreign.py --scheme robust --count 10000 --processes 16

Each text is a news opening from some letter on, all different; it is read with 128 nonces and in every form that a copy
may have. `stream` and `block` read it behind the first words of another opening. Neighbours form a group with one
prompt; in the scheme `block`, whose pools depend on the key, they have one key too, elsewhere each has its own. The
texts of a group are read side by side where that lets the model answer several in one pass.

The p-value holds if at most a share x of the texts gets x or less, for every x. The test against that is the one-sided
statistic of Kolmogorov and Smirnov, D+ = max(F(x) - x), with its probability for uniform p-values.
"""

import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from threading import Lock
from typing import Any, Literal

from command import MANY, SEEDS, run_benchmark, within

from wm_env.common.command import quitting_on_interrupt

with quitting_on_interrupt(__name__):
    import numpy as np
    import torch
    from scipy.stats import kstest
    from sharing import Share, Tally, add, run_shares
    from torch import Tensor

    from polar.text.channel import open_channel
    from polar.text.decoding import Decoded, Search, decode_with_tokenizer, text_forms
    from polar.text.keys.derivation import text_hash
    from polar.text.keys.key import KEY_BYTES, Key
    from polar.text.schemes import load_schemes
    from polar.text.settings import Settings
    from polar.text.sources import open_vocabulary
    from wm_env.common.arguments import parse
    from wm_env.common.threads import set_own_threads
    from wm_env.lm.models.exact.network import ExactNetwork
    from wm_env.lm.models.folder import find_model
    from wm_env.lm.models.load import load_lm
    from wm_env.lm.models.masked_lm import MaskedLM
    from wm_env.lm.prompts import read_prompts
    from wm_env.lm.tokenizer import read_text_tokenizer

STARTS, STEP = 40, 5
"""Texts of one opening, and letters between their beginnings."""

TOGETHER = 32
"""Texts that are read side by side."""


@dataclass(frozen=True)
class Options:
    """What is read."""

    scheme: Literal["stream", "block", "parallel", "robust"] = "stream"
    """Whose receiver: stream, block, parallel or robust, with its default settings."""
    count: int = 10000
    """Texts."""
    model: str = "mini"
    """"mini", or a folder with a LLaDA checkpoint."""
    device: str = "cpu"
    """Where the model computes."""
    words: int = 8
    """Words of a prompt: few make short canvases."""
    group: int = 500
    """Neighbouring texts with one prompt."""
    nonces: int = 128
    """Nonces that are tried."""
    first: int = 0
    """Number of the first text, to go on where another run has ended."""
    processes: int = 1
    """Processes that share the work."""
    minutes: float = 60.0
    """Stop early after so long."""
    seed: int = 0
    """Chooses keys and prompts."""


class Meeting:
    """Several threads ask one exact model, each for one row; they wait for each other, and one pass answers all."""

    def __init__(self, members: int) -> None:
        self._members = members
        self._lock = Lock()
        self._waiting: list[tuple[Tensor, int, Future[Tensor]]] = []

    def logits_at(self, network: Any, canvas: Tensor, position: int) -> Tensor:
        """As `MaskedLM.logits_at`, for a canvas of one row."""
        answer: Future[Tensor] = Future()
        with self._lock:
            self._waiting.append((canvas, position, answer))
            asked = self._all_here()
        self._answer(network, asked)
        return answer.result()

    def leave(self, network: Any) -> None:
        """One thread less asks from now on."""
        with self._lock:
            self._members -= 1
            asked = self._all_here()
        self._answer(network, asked)

    def _all_here(self) -> list[tuple[Tensor, int, Future[Tensor]]]:
        if len(self._waiting) < self._members:
            return []
        asked, self._waiting = self._waiting, []
        return asked

    @staticmethod
    def _answer(network: ExactNetwork, asked: list[tuple[Tensor, int, Future[Tensor]]]) -> None:
        """Rows of one length go through the network together; what it raises, all threads raise."""
        try:
            for length in {canvas.shape[1] for canvas, _, _ in asked}:
                rows = [row for row in asked if row[0].shape[1] == length]
                places = sorted({position for _, position, _ in rows})
                logits = network.logits(torch.cat([canvas for canvas, _, _ in rows]), places)
                for number, (_, position, answer) in enumerate(rows):
                    answer.set_result(logits[number, places.index(position)][None])
        except Exception as error:
            for _, _, answer in asked:
                if not answer.done():
                    answer.set_exception(error)


class Bench:
    """The texts, the receivers and their keys."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.openings = read_prompts("shipped")
        self.settings = Settings(load_schemes()[options.scheme])
        self.nonces = range(options.nonces)
        if self.settings.scheme.needs_model:
            self.lm = load_lm(options.model, device=options.device, arithmetic="exact")
            self.vocabulary = open_vocabulary(self.lm)
        else:
            self.tokenizer = read_text_tokenizer(find_model(options.model, ["*.json"]))

    def text(self, number: int) -> bytes:
        """Text `number`: an opening from one of its first letters on."""
        opening, start = divmod(number, STARTS)
        return self.openings[opening % len(self.openings)][STEP * start :].encode()

    def key(self, number: int) -> Key:
        """The key that reads text `number`."""
        owner = number // self.options.group if self.settings.scheme.has_evidence else number
        return Key(np.random.default_rng([self.options.seed, owner]).bytes(KEY_BYTES))

    def prompt(self, number: int) -> str:
        """The prompt of text `number`: not the opening that the text is of."""
        group = number // self.options.group
        opening = number // STARTS + 1 + group % (len(self.openings) - 1)
        return " ".join(self.openings[opening % len(self.openings)].split()[: self.options.words])

    def read(self, numbers: Sequence[int], end: float = math.inf) -> list[Decoded]:
        """What the receivers of a group find in its texts, as far as there is time until `end`."""
        waiting = takewhile(lambda _: time.time() < end, numbers)
        if not self.settings.scheme.needs_model:
            return [self._with_tokenizer(number) for number in waiting]
        prompt = self.prompt(numbers[0])
        if self.settings.scheme.has_evidence:
            return self._with_model(self.lm, prompt, waiting)
        threads = min(TOGETHER, len(numbers))
        meeting = Meeting(threads)
        lm = replace(self.lm, logits_at=meeting.logits_at)

        def some() -> list[Decoded]:
            try:
                return self._with_model(lm, prompt, waiting)
            finally:
                meeting.leave(lm.network)

        with ThreadPoolExecutor(threads, initializer=set_own_threads, initargs=(1,)) as pool:
            futures = [pool.submit(some) for _ in range(threads)]
            return [found for future in futures for found in future.result()]

    def _with_tokenizer(self, number: int) -> Decoded:
        return decode_with_tokenizer(self.tokenizer, self.text(number), self.key(number), self.nonces, self.settings)

    def _with_model(self, lm: MaskedLM, prompt: str, numbers: Iterator[int]) -> list[Decoded]:
        """As `decode`, with pools that the texts of a group share."""
        channel = open_channel(lm, prompt, self.settings, self.vocabulary)
        readers = self.settings.scheme.readers(channel)
        found = []
        for number in numbers:
            search = Search(readers, self.settings, self.key(number), text_hash(channel.prompt))
            found.append(search.decode(text_forms(self.text(number), channel.prompt, self.settings), self.nonces))
        return found


def work(options: Options, share: Share) -> Tally:
    """Read the groups of one share."""
    torch.set_num_threads(1)
    bench, tally = Bench(options), Tally()
    end = options.first + options.count
    for group in share.numbers():
        first = options.first + group * options.group
        for found in bench.read(range(first, min(first + options.group, end))):
            add(tally, {"texts": 1, "messages": found.message is not None, ("p-value", found.p_value): 1})
    return tally


def report(options: Options, tally: Tally) -> str:
    """Counts, and how the p-values are distributed."""
    counts = {name[1]: int(count) for name, count in tally.items() if isinstance(name, tuple)}
    p_values = np.repeat(list(counts), list(counts.values()))
    test = kstest(p_values, "uniform", alternative="greater")
    small = ", ".join(f"{(p_values <= share).sum()} at most {share:g}" for share in (0.1, 0.01, 0.001))
    return (
        f"{options.scheme}: {tally['texts']:.0f} foreign texts, {options.nonces} nonces and all forms each: "
        f"{tally['messages']:.0f} messages; p-values: {small}; D+ = {test.statistic:.2g}, p = {test.pvalue:.3g}"
    )


def main() -> None:
    """Read and print."""
    options = parse(Options, description=__doc__)
    within(options, count=MANY, group=MANY, processes=(1, 1024), nonces=(1, 10**6), words=MANY, first=(0, 10**9))
    within(options, minutes=(0, 10**6), seed=SEEDS)
    groups = -(-options.count // options.group)
    tally = run_shares(partial(work, options), groups, min(options.processes, groups), options.minutes)
    print(report(options, tally), flush=True)


if __name__ == "__main__":
    run_benchmark(main)

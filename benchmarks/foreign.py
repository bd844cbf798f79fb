"""Texts that nobody marked, read as `decode` reads them: is there ever a message, and do the p-values hold?

    python benchmarks/foreign.py --scheme stream --count 10000 --words 4 --processes 32 --device cuda
    python benchmarks/foreign.py --scheme block --count 10000 --words 4 --processes 20 --device cuda
    python benchmarks/foreign.py --scheme parallel --count 10000 --processes 16
    python benchmarks/foreign.py --scheme robust --count 10000 --processes 16

Each text is a news opening from some letter on, all different; it is read with 128 nonces and in every form that a copy
may have. `stream` and `block` read it behind the first words of another opening. Neighbours form a group with one
prompt, and share what the model said behind it; in the scheme `block`, whose pools depend on the key, they have one key
too, elsewhere each has its own.

The readings of 50 neighbours are kept in a file of the folder. Whoever starts again, after a kill or after `--minutes`,
goes on with the texts that are missing there. Machines that read different texts (`--first`) put their files together;
the figures printed at the end are of all that the folder holds of these settings, whichever texts this run was to read.
With `--device cuda` the processes take the GPUs in turn. A group of the scheme `block` costs its 128 pools before its
first text is read, in every process that reads of it: 20 processes take the 20 groups of 10,000 texts one each.

The p-value holds if at most a share x of the texts gets x or less, for every x. The test against that is the one-sided
statistic of Kolmogorov and Smirnov, D+ = max(F(x) - x), with its probability for uniform p-values.
"""

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

from command import MANY, SEEDS, run_benchmark, within

from wm_env.common.command import quitting_on_interrupt

with quitting_on_interrupt(__name__):
    import numpy as np
    import torch
    from results import Results
    from scipy.stats import kstest
    from sharing import Share, Tally, run_shares

    from polar.text.channel import Channel, open_channel
    from polar.text.decoding import Decoded, Search, decode_with_tokenizer, text_forms
    from polar.text.keys.derivation import text_hash
    from polar.text.keys.key import KEY_BYTES, Key
    from polar.text.scheme import Readers
    from polar.text.schemes import load_schemes
    from polar.text.settings import Settings
    from polar.text.sources import open_vocabulary
    from wm_env.common.arguments import parse
    from wm_env.common.files import fingerprint
    from wm_env.common.progress import Report
    from wm_env.lm.models.folder import find_model
    from wm_env.lm.models.load import load_lm
    from wm_env.lm.prompts import read_prompts
    from wm_env.lm.tokenizer import read_text_tokenizer

STARTS, STEP = 40, 5
"""Texts of one opening, and letters between their beginnings."""

PIECE = 50
"""Neighbours of a group whose readings are in one file."""


@dataclass(frozen=True)
class Options:
    """What is read."""

    scheme: Literal["stream", "block", "parallel", "robust"] = "stream"
    """Whose receiver: stream, block, parallel or robust, with its default settings."""
    count: int = 10000
    """Texts."""
    model: str = "mini"
    """"mini", or a folder with a LLaDA checkpoint."""
    folder: Path = Path("runs/foreign")
    """Where the readings are kept."""
    device: str = "cpu"
    """Where the model computes; "cuda": the processes take the GPUs in turn."""
    words: int = 8
    """Words of a prompt: few make short canvases."""
    group: int = 500
    """Neighbouring texts with one prompt."""
    nonces: int = 128
    """Nonces that are tried."""
    first: int = 0
    """Number of the first text, for a machine that reads others than the first ones."""
    processes: int = 1
    """Processes that share the work."""
    minutes: float = 60.0
    """Stop early after so long; texts that are half read then are read again by the next run."""
    seed: int = 0
    """Chooses keys and prompts."""

    @property
    def settings(self) -> Settings:
        """Of the receivers."""
        return Settings(load_schemes()[self.scheme])

    def about(self) -> dict[str, Any]:
        """All that a reading depends on besides the number of its text."""
        names = ("model", "words", "group", "nonces", "seed")
        return {"receiver": self.settings.to_json()} | {name: getattr(self, name) for name in names}

    def prefix(self) -> str:
        """How the names of the files of these settings begin."""
        return f"{self.scheme}-{fingerprint({}, self.about())[:12]}-"


@dataclass(frozen=True)
class Reading:
    """What a receiver found in a text: whether there is a message, and the p-value."""

    text: int
    message: bool
    p_value: float


@dataclass(frozen=True)
class Piece:
    """The readings of neighbours in a group, as far as there are any yet; `about` as in `Options`."""

    about: dict[str, Any]
    readings: tuple[Reading, ...]


class TimeUpError(Exception):
    """The time of the run is over."""


class Bench:
    """The texts, the receivers and their keys."""

    def __init__(self, options: Options, device: str) -> None:
        self.options = options
        self.openings = read_prompts("shipped")
        self.settings = options.settings
        self.nonces = range(options.nonces)
        if self.settings.scheme.needs_model:
            self.lm = load_lm(options.model, device=device, arithmetic="exact")
            self.vocabulary = open_vocabulary(self.lm)
        else:
            self.tokenizer = read_text_tokenizer(find_model(options.model, ["*.json"]))
        self.group_readers = lru_cache(maxsize=1)(self._group_readers)

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

    def read(self, numbers: Sequence[int], end: float = math.inf) -> list[Reading]:
        """What the receivers of a group find in its texts, as far as there is time until `end`."""
        waiting = takewhile(lambda _: time.time() < end, numbers)
        if not self.settings.scheme.needs_model:
            return [_reading(number, self._with_tokenizer(number)) for number in waiting]
        # What the model says behind a group's prompt is kept from one piece of the group to the next.
        channel, readers = self.group_readers(numbers[0] // self.options.group)
        return self._with_model(channel, readers, waiting, partial(_check_time, end))

    def _with_tokenizer(self, number: int) -> Decoded:
        return decode_with_tokenizer(self.tokenizer, self.text(number), self.key(number), self.nonces, self.settings)

    def _group_readers(self, group: int) -> tuple[Channel, Readers]:
        prompt = self.prompt(group * self.options.group)
        channel = open_channel(self.lm, prompt, self.settings, self.vocabulary)
        return channel, self.settings.scheme.readers(channel)

    def _with_model(self, channel: Channel, readers: Readers, numbers: Iterator[int], report: Report) -> list[Reading]:
        """As `decode`, with what the texts share."""
        found = []
        for number in numbers:
            search = Search(readers, self.settings, self.key(number), text_hash(channel.prompt), report)
            forms = text_forms(self.text(number), channel.prompt, self.settings)
            try:
                found.append(_reading(number, search.decode(forms, self.nonces)))
            except TimeUpError:
                break
        return found


def _check_time(end: float, *_: object) -> None:
    """A report, which the model's readers call before every pass, that ends them."""
    if time.time() > end:
        raise TimeUpError


def _reading(number: int, found: Decoded) -> Reading:
    return Reading(number, found.message is not None, found.p_value)


def pieces_of(options: Options) -> dict[str, range]:
    """The texts of this run by the file that keeps them: neighbours of one group, whatever `first` and `count`."""
    end, size = options.first + options.count, options.group
    pieces: dict[str, range] = {}
    for group in range(options.first // size, -(-end // size)):
        for start in range(group * size, (group + 1) * size, PIECE):
            texts = range(max(start, options.first), min(start + PIECE, (group + 1) * size, end))
            if texts:
                pieces[f"{options.prefix()}{start}"] = texts
    return pieces


def stored(options: Options) -> dict[str, Piece]:
    """What the folder holds of these settings, by file.

    Raises:
        ValueError: a file has other settings than its name says.
    """
    pieces = Results(options.folder, Piece).read_all(options.prefix())
    for name, piece in pieces.items():
        if piece.about != options.about():
            raise ValueError(f"{options.folder / name}.json has other settings than its name says: remove it")
    return pieces


def complete(bench: Bench, name: str, texts: Sequence[int], end: float) -> int:
    """Read what the file of a piece lacks of these texts, until `end`; how many that were."""
    results = Results(bench.options.folder, Piece)
    kept = results.read(name)
    before = () if kept is None else kept.readings
    known = {reading.text for reading in before}
    lacking = [number for number in texts if number not in known]
    found = bench.read(lacking, end) if lacking else []
    if found:
        readings = sorted((*before, *found), key=lambda reading: reading.text)
        results.write(name, Piece(bench.options.about(), tuple(readings)))
    return len(found)


def work(options: Options, pieces: Sequence[tuple[str, range]], share: Share) -> Tally:
    """Complete the pieces of one share."""
    torch.set_num_threads(1)
    bench = Bench(options, share.device(options.device))
    read = [complete(bench, *pieces[index], share.end) for index in share.numbers()]
    return {"read": sum(read)}


def report(options: Options, readings: Iterable[Reading]) -> str:
    """Counts, and how the p-values are distributed."""
    found = {reading.text: reading for reading in readings}
    p_values = np.array([reading.p_value for reading in found.values()])
    messages = sum(reading.message for reading in found.values())
    test = kstest(p_values, "uniform", alternative="greater")
    small = ", ".join(f"{(p_values <= share).sum()} at most {share:g}" for share in (0.1, 0.01, 0.001))
    return (
        f"{options.scheme}: {len(found)} foreign texts, {options.nonces} nonces and all forms each: "
        f"{messages} messages; p-values: {small}; D+ = {test.statistic:.2g}, p = {test.pvalue:.3g}"
    )


def main() -> None:
    """Read and print."""
    options = parse(Options, description=__doc__)
    within(options, count=MANY, group=MANY, processes=(1, 1024), nonces=(1, 10**6), words=MANY, first=(0, 10**9))
    within(options, minutes=(0, 10**6), seed=SEEDS)
    Results(options.folder, Piece).check()
    kept = stored(options)
    pieces = pieces_of(options)
    missing = [
        (name, texts)
        for name, texts in pieces.items()
        if name not in kept or not set(texts) <= {reading.text for reading in kept[name].readings}
    ]
    if missing:
        run_shares(partial(work, options, missing), len(missing), min(options.processes, len(missing)), options.minutes)
    readings = [reading for piece in stored(options).values() for reading in piece.readings]
    if not readings:
        raise ValueError(f"no text was read in {options.minutes:g} minutes: allow more")
    print(report(options, readings), flush=True)


if __name__ == "__main__":
    run_benchmark(main)

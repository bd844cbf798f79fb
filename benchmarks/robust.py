"""The scheme `robust` after edits: how many messages of 32 bits come back exactly.

    python benchmarks/robust.py --folder runs/robust

Texts continue openings of the shipped prompts 50 to 249 (the tables of likelihoods were made of texts after prompts 0
to 49), one text a prompt, each with a payload and a nonce of its own. Every row edits and reads the same texts. Words
are edited in the text, before it is tokenised again: one is replaced by a draw from the distinct words of the prompts.
Both the texts and each row's result are kept in the folder, so an interrupted run goes on where it stopped.
"""

import json
import re
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
from command import run_benchmark

from polar.text.keys.key import Key
from polar.text.schemes.robust.reader import Receiver
from polar.text.schemes.robust.settings import RobustSettings
from polar.text.schemes.robust.words import as_letters
from wm_env.common.arguments import parse
from wm_env.common.progress import ProgressBar
from wm_env.lm.models.folder import EMBEDDED
from wm_env.lm.tokenizer import TextTokenizer, read_text_tokenizer

ROOT = Path(__file__).parents[1]
CONTEXT, LENGTH, FIRST_PROMPT, PER_KEY = 24, 300, 50, 100
SETTINGS = RobustSettings()


@dataclass(frozen=True)
class Options:
    """What is measured."""

    folder: Path
    """Where texts and results are kept."""
    texts: int = 200
    """Texts a row."""
    device: str = "cpu"
    """Where the model writes."""
    workers: int = 1
    """Processes that read."""


@dataclass(frozen=True)
class Row:
    """A row of the table: tokens, temperature, and shares of words edited."""

    tokens: int
    temperature: float
    replaced: float = 0.0
    deleted: float = 0.0
    added: float = 0.0
    inside: int = 0

    @property
    def name(self) -> str:
        return "-".join(str(value) for value in asdict(self).values())


ROWS = [
    Row(100, 1.0),
    *(
        Row(tokens, temperature, **edit)
        for temperature in (1.0, 0.7)
        for tokens, edit in (
            (200, {}),
            (200, {"replaced": 0.1}),
            (300, {"replaced": 0.2}),
            (300, {"replaced": 0.4}),
            (300, {"deleted": 0.1, "added": 0.1}),
            (300, {"inside": 2000}),
        )
    ),
]


def payload_of(number: int) -> list[int]:
    payload: list[int] = np.random.default_rng([number, 32]).integers(0, 2, SETTINGS.payload_bits).tolist()
    return payload


def key_of(number: int) -> Key:
    return Key(bytes([number // PER_KEY + 1]) * 32)


def prompts() -> list[str]:
    return (ROOT / "wm_env/data/prompts.txt").read_text().splitlines()


def write_texts(options: Options, temperature: float) -> np.ndarray:
    """The tokens of the texts at one temperature, shape (texts, LENGTH)."""
    path = options.folder / f"texts-{temperature}-{options.texts}.npy"
    if path.exists():
        stored: np.ndarray = np.load(path)
        return stored
    import torch

    from polar.text.schemes.robust.sampling import Sampling, write_forward
    from polar.text.schemes.robust.writer import Writer
    from wm_env.lm.models.load import load_lm

    lm = load_lm("mini", device=options.device)
    letters = as_letters(tokenizer().strings)
    parts = []
    with ProgressBar(options.texts, "text") as bar, torch.no_grad():
        for start in range(0, options.texts, 50):
            numbers = range(start, min(start + 50, options.texts))
            contexts = np.array([lm.encode(prompts()[FIRST_PROMPT + number % 200])[:CONTEXT] for number in numbers])
            writers = [
                Writer(key_of(number), payload_of(number), number % PER_KEY, SETTINGS, letters) for number in numbers
            ]
            parts.append(write_forward(lm, contexts, writers, LENGTH, Sampling(temperature)))
            bar.update(numbers.stop, counted=f"temperature {temperature}")
    tokens = np.concatenate(parts)
    np.save(path, tokens)
    return tokens


@cache
def word_list() -> list[str]:
    return sorted(set(re.findall("[A-Za-z]+", "\n".join(prompts()))))


def edited(text: str, row: Row, rng: np.random.Generator) -> str:
    """A text with words replaced, deleted and added."""
    parts = []
    for word in re.findall(r"\s*\S+|\s+$", text):
        chance = rng.random()
        if rng.random() < row.added:
            parts.append(f" {rng.choice(word_list())}")
        if chance < row.deleted:
            continue
        blank = word[: len(word) - len(word.lstrip())]
        parts.append(blank + rng.choice(word_list()) if chance < row.deleted + row.replaced else word)
    return "".join(parts)


def surrounded(text: str, row: Row, rng: np.random.Generator) -> tuple[str, range]:
    """The text somewhere inside `row.inside` tokens of the shipped prompts, which people wrote; and where it stands."""
    order = rng.permutation(len(prompts()))
    words = " ".join(prompts()[number] for number in order).split()
    words = words[: round(row.inside / tokens_per_word())]
    cut = int(rng.integers(0, len(words)))
    before, behind = " ".join(words[:cut]), " ".join(words[cut:])
    start = len(before) + 1
    text = text.strip()
    return f"{before} {text} {behind}", range(start, start + len(text))


@cache
def tokenizer() -> TextTokenizer:
    return read_text_tokenizer(EMBEDDED)


@cache
def tokens_per_word() -> float:
    text = "\n".join(prompts())
    return len(tokenizer().encode(text)) / len(text.split())


@cache
def receiver_of(number: int) -> Receiver:
    return Receiver(key_of(number), tokenizer(), SETTINGS, range(PER_KEY))


def read_one(row: Row, number: int, text: str) -> dict[str, float]:
    """Edit and read one text."""
    rng = np.random.default_rng([number, 7])
    text = edited(text, row, rng)
    span = range(0)
    if row.inside:
        text, span = surrounded(text, row, rng)
    receiver = receiver_of(number // PER_KEY * PER_KEY)
    seconds = time.process_time()
    found = receiver.decode(text)
    seconds = time.process_time() - seconds
    overlap = 0.0
    if row.inside:
        parts = found.parts()
        common = sum(max(0, min(end, span.stop) - max(start, span.start)) for start, end in parts)
        overlap = common / (len(span) + sum(end - start for start, end in parts) - common)
    right = found.payload == tuple(payload_of(number))
    return {
        "right": float(right),
        "wrong": float(found.payload is not None and not right),
        "seconds": seconds,
        "check": found.check_log2,
        "score": found.score,
        "overlap": overlap,
        "attempts": found.attempts,
    }


def measure(options: Options, row: Row, tokens: np.ndarray, pool: ProcessPoolExecutor) -> dict[str, Sequence[float]]:
    path = options.folder / f"row-{row.name}-{options.texts}.json"
    if not path.exists():
        strings = tokenizer().strings
        texts = [b"".join(strings[token] for token in line[: row.tokens].tolist()).decode() for line in tokens]
        rows = list(pool.map(partial(read_one, row), range(len(texts)), texts, chunksize=4))
        path.write_text(json.dumps({name: [each[name] for each in rows] for name in rows[0]}))
    found: dict[str, Sequence[float]] = json.loads(path.read_text())
    return found


def work(options: Options) -> None:
    options.folder.mkdir(parents=True, exist_ok=True)
    count = 2 * options.texts * LENGTH
    print(
        f"{count} passes of the model (about 0.05 s each on one core of a CPU) where texts are missing", file=sys.stderr
    )
    names = ["tokens", "temperature", "replaced", "deleted", "added", "inside", "exact", "wrong"]
    names += ["CPU ms, median", "mean", "overlap"]
    print("| " + " | ".join(names) + " |\n" + "| --- " * len(names) + "|")
    texts = {temperature: write_texts(options, temperature) for temperature in (1.0, 0.7)}
    with ProcessPoolExecutor(options.workers) as pool:
        for row in ROWS:
            found = measure(options, row, texts[row.temperature], pool)
            exact, wrong = np.mean(found["right"]), int(np.sum(found["wrong"]))
            times = 1e3 * np.array(found["seconds"])
            overlap = f"{np.median(found['overlap']):.2f}" if row.inside else ""
            cells = [
                row.tokens,
                row.temperature,
                row.replaced,
                row.deleted,
                row.added,
                row.inside,
                f"{exact:.3f}",
                wrong,
            ]
            cells += [f"{np.median(times):.0f}", f"{np.mean(times):.0f}", overlap]
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def main() -> None:
    work(parse(Options, description=__doc__))


if __name__ == "__main__":
    run_benchmark(main)

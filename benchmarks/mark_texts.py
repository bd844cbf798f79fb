"""Texts of the marks: written in batches with the embedded model, in float arithmetic, and kept in a folder.

All marks write behind the same prompts with the same payloads: `mark_schemes/prompts.txt`, openings of news articles
that no table of likelihoods, share of places or threshold was ever tuned on. A text of 300 tokens serves for 100 and
200 as well (a prefix of it is the mark's text of that length), unless the mark must know its length.
"""

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from mark_schemes.door import Mark, payload_of
from mark_schemes.registry import make_marks
from transformers import PreTrainedModel

from polar.text.schemes.robust.sampling import Chooser, Sampling, write_forward
from wm_env.common.arrays import Floats, Ints
from wm_env.common.files import write_atomically
from wm_env.lm.models.folder import EMBEDDED
from wm_env.lm.models.load import load_lm
from wm_env.lm.models.masked_lm import MaskedLM
from wm_env.lm.prompts import read_prompt_file
from wm_env.lm.tokenizer import TextTokenizer, read_text_tokenizer

CONTEXT, PER_KEY = 24, 100
LENGTHS, PARAPHRASED = (100, 200, 300), 200
SHARE, PASSES = 0.3, 8
"""Tokens that the paraphrase masks, and the passes in which it fills them in again."""


@dataclass(frozen=True)
class MarkText:
    """One text, as it is kept.

    Attributes:
        mark: name of the mark.
        temperature: of the law that was sampled from.
        length: number of tokens.
        number: names prompt, payload, key and nonce.
        tokens: ids.
        log2_mass: log2 of the model's probability of each token under that law.
        entropy: of each token's law in bits; empty but for plain texts.
        variation: mean total variation of a token's law for one key, where the law is bent.
        paraphrase: ids after the paraphrase by the model; empty if there is none.
    """

    mark: str
    temperature: float
    length: int
    number: int
    tokens: list[int]
    log2_mass: list[float]
    entropy: list[float]
    variation: float
    paraphrase: list[int]

    @property
    def key(self) -> int:
        """Number of the key."""
        return 1 + self.number // PER_KEY

    @property
    def nonce(self) -> int:
        """Number of the text under its key."""
        return self.number % PER_KEY

    def first(self, length: int) -> "MarkText":
        """The text of its first tokens."""
        return replace(
            self,
            length=length,
            tokens=self.tokens[:length],
            log2_mass=self.log2_mass[:length],
            entropy=self.entropy[:length],
        )


class Recorder:
    """A chooser that notes what its tokens were worth to the model."""

    def __init__(self, chooser: Chooser, entropies: bool) -> None:
        self.chooser, self._entropies = chooser, entropies
        self.log2_mass: list[float] = []
        self.entropy: list[float] = []

    def choose(self, law: Floats) -> int:
        token = self.chooser.choose(law)
        total = float(law.sum())
        self.log2_mass.append(round(float(np.log2(law[token] / total)), 3))
        if self._entropies:
            positive = law[law > 0] / total
            self.entropy.append(round(float(-(positive * np.log2(positive)).sum()), 3))
        return token


@cache
def tokenizer() -> TextTokenizer:
    """Of the embedded model."""
    return read_text_tokenizer(EMBEDDED)


@cache
def marks() -> dict[str, Mark]:
    """Every mark by its name."""
    return make_marks(tokenizer())


def held_out_prompts() -> tuple[str, ...]:
    """Prompts that nothing was tuned on."""
    return read_prompt_file(Path(__file__).parent / "mark_schemes/prompts.txt")


def text_of(tokens: Sequence[int]) -> str:
    """The text of token ids; a character that was cut off at the end is left out."""
    strings = tokenizer().strings
    return b"".join(strings[token] for token in tokens).decode("utf-8", "ignore")


def write_batch(
    lm: MaskedLM, mark: Mark, temperature: float, length: int, numbers: Sequence[int], prompts: Sequence[str]
) -> list[MarkText]:
    """The mark's texts with these numbers, of `length` tokens each, behind prompts that are taken in turn."""
    contexts = np.array([lm.encode(prompts[number % len(prompts)])[:CONTEXT] for number in numbers])
    recorders = []
    for number in numbers:
        chooser = mark.chooser(1 + number // PER_KEY, number % PER_KEY, payload_of(number), length)
        recorders.append(Recorder(chooser, mark.name == "plain"))
    with torch.no_grad():
        tokens = write_forward(lm, contexts, recorders, length, Sampling(temperature))
        paraphrased = paraphrase(lm, contexts, tokens, temperature, numbers[0])
    return [
        MarkText(
            mark.name,
            temperature,
            length,
            number,
            tokens[row].tolist(),
            recorder.log2_mass,
            recorder.entropy,
            float(np.mean(getattr(recorder.chooser, "variations", None) or [0.0])),
            paraphrased[row].tolist(),
        )
        for row, (number, recorder) in enumerate(zip(numbers, recorders, strict=True))
    ]


def paraphrase(lm: MaskedLM, contexts: Ints, tokens: Ints, temperature: float, seed: int) -> Ints:
    """The first `PARAPHRASED` tokens with `SHARE` of them masked and filled in again by the model, shape (N, ...).

    The places are filled in in a random order, an eighth of them at a time, each by a draw from its own law.
    Nothing is done to texts that are shorter: shape (N, 0).
    """
    if tokens.shape[1] < PARAPHRASED:
        return np.zeros((len(tokens), 0), dtype=np.int64)
    rng = np.random.default_rng([seed, 13])
    rows, masked = len(tokens), round(SHARE * PARAPHRASED)
    canvas = np.concatenate([contexts, tokens[:, :PARAPHRASED]], axis=1)
    order = np.argsort(rng.random((rows, PARAPHRASED)), axis=1)[:, :masked] + contexts.shape[1]
    np.put_along_axis(canvas, order, lm.mask_id, axis=1)
    for places in np.array_split(order, PASSES, axis=1):
        for start in range(0, rows, 50):
            part = slice(start, start + 50)
            laws = _laws_at(lm, canvas[part], places[part], temperature)
            sums = laws.cumsum(axis=-1)
            points = rng.random((*sums.shape[:-1], 1)) * sums[..., -1:]
            canvas[np.arange(rows)[part, None], places[part]] = (sums < points).sum(axis=-1)
    return canvas[:, contexts.shape[1] :]


def _laws_at(lm: MaskedLM, canvas: Ints, places: Ints, temperature: float) -> Floats:
    """The laws of some places of each row, shape (N, places, V); for networks in floats."""
    assert isinstance(lm.network, PreTrainedModel)
    hidden = lm.network.model(torch.from_numpy(canvas).to(lm.banned.device), use_cache=False).last_hidden_state
    rows = torch.arange(len(canvas), device=hidden.device)[:, None]
    logits = lm.network.lm_head(hidden[rows, torch.from_numpy(places).to(hidden.device)])
    laws: Floats = lm.log2_law(logits.flatten(0, 1), temperature).exp2().cpu().numpy()
    return laws.reshape(*places.shape, -1)


def file_of(folder: Path, name: str, temperature: float, length: int) -> Path:
    """Where texts are kept."""
    return folder / f"{name.replace(' ', '-').replace(',', '')}-{temperature}-{length}.jsonl.gz"


def write_texts(
    folder: Path,
    names: Sequence[str],
    temperatures: Sequence[float],
    texts: int,
    device: str,
    prompts: Sequence[str],
) -> None:
    """Write what is missing in the folder."""
    if device.startswith("cuda"):
        torch.set_float32_matmul_precision("high")
    lm = load_lm("mini", device=device, arithmetic="float")
    for name in names:
        for temperature in temperatures:
            mark = marks()[name]
            for length in LENGTHS if mark.needs_length else LENGTHS[-1:]:
                path = file_of(folder, name, temperature, length)
                if not path.exists():
                    written = write_batch(lm, mark, temperature, length, range(texts), prompts)
                    lines = "".join(json.dumps(asdict(text)) + "\n" for text in written)
                    content = gzip.compress(lines.encode())
                    write_atomically(path, partial(_put, content))


def _put(content: bytes, path: Path) -> None:
    path.write_bytes(content)


def read_texts(folder: Path, name: str, temperature: float, length: int) -> Iterator[MarkText]:
    """The texts of a mark, by number."""
    own = length if marks()[name].needs_length else LENGTHS[-1]
    for line in gzip.decompress(file_of(folder, name, temperature, own).read_bytes()).decode().splitlines():
        yield MarkText(**json.loads(line)).first(length)

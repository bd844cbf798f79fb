"""Make the tables of likelihoods that come with the scheme `robust`.

    python benchmarks/robust_likelihood.py polar/text/schemes/robust/reading/likelihood.npz --samples runs/samples.npz

Plain texts of the embedded model after the shipped prompts 0 to 49, several a prompt, say which probabilities p(x) the
tokens of each kind have that are sampled. A mixture of exponentials with rates 1/p is fitted to numbers s = p(x) e, e
exponential with rate 1, by expectation and maximisation; kinds with few tokens lean on all kinds together. The texts
are kept in the file of samples, and not made again if it is there.
"""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from command import run_benchmark
from numpy.typing import NDArray

from polar.text.schemes.robust.words import KINDS, as_letters, split_text
from wm_env.common.arguments import parse
from wm_env.common.arrays import Floats, Ints
from wm_env.common.files import check_output, write_atomically
from wm_env.lm.models.folder import EMBEDDED
from wm_env.lm.models.load import load_lm
from wm_env.lm.models.masked_lm import MaskedLM
from wm_env.lm.prompts import read_prompts
from wm_env.lm.tokenizer import read_text_tokenizer

TEMPERATURES = (1.0, 0.7)
PROMPTS, CONTEXT, BLOCK = 50, 24, 8
MASSES = np.logspace(-6, 0, 25)
LEAN, BLEND, STEPS = 30, 0.02, 60


@dataclass(frozen=True)
class Options:
    """How much is sampled."""

    output: tyro.conf.Positional[Path]
    """The file (*.npz)."""
    samples: Path = Path("runs/robust-samples.npz")
    """Where the texts are kept."""
    texts: int = 8
    """Texts after each prompt."""
    length: int = 304
    """Tokens of a text."""
    device: str = "cpu"
    """Where the model runs."""
    seed: int = 1
    """Of the draws."""


def sample(
    lm: MaskedLM, contexts: Ints, temperature: float, length: int, rng: np.random.Generator
) -> tuple[Ints, Floats]:
    """Plain texts from left to right in blocks, and the probability of each token, shape (N, length) both."""
    tokens, masses = np.empty((len(contexts), 0), dtype=np.int64), []
    for number in range(length):
        masks = np.full((len(contexts), BLOCK - number % BLOCK), lm.mask_id)
        seen = np.concatenate([contexts, tokens], axis=1)
        canvas = torch.from_numpy(np.concatenate([seen, masks], axis=1))
        laws = [
            lm.log2_probs(part, seen.shape[1], temperature).exp2().cpu().numpy()
            for part in canvas.split(50)  # type: ignore[no-untyped-call]
        ]
        law = np.concatenate(laws)
        sums = law.cumsum(axis=1)
        chosen = (sums < rng.random((len(law), 1)) * sums[:, -1:]).sum(axis=1)
        masses.append(law[np.arange(len(law)), chosen])
        tokens = np.concatenate([tokens, chosen[:, None]], axis=1)
    return tokens, np.stack(masses, axis=1)


def fit(times: Floats, start: Floats, lean: float) -> Floats:
    """Weights of `MASSES` for numbers s, leaning on `start` as on so many more numbers."""
    density = np.exp(-times[:, None] / MASSES) / MASSES
    weights = start
    for _ in range(STEPS):
        share = density * weights
        share /= share.sum(axis=1, keepdims=True)
        weights = (share.sum(axis=0) + lean * start) / (len(times) + lean)
    return weights


def write_samples(options: Options) -> None:
    """Sample the texts of every temperature, and keep them."""
    lm = load_lm("mini", device=options.device, arithmetic="float")
    prompts = [lm.encode(prompt)[:CONTEXT] for prompt in read_prompts("shipped")[:PROMPTS]]
    contexts = np.repeat(np.array(prompts), options.texts, axis=0)
    passes = len(TEMPERATURES) * len(contexts) * options.length
    print(f"{passes} passes of the model, about 0.05 s each on a core of a CPU", file=sys.stderr)
    rng = np.random.default_rng(options.seed)
    tokens, masses = [], []
    for temperature in TEMPERATURES:
        start = time.perf_counter()
        said, mass = sample(lm, contexts, temperature, options.length, rng)
        tokens.append(said.astype(np.int32))
        masses.append(mass.astype(np.float32))
        print(f"temperature {temperature}: {time.perf_counter() - start:.0f} s", file=sys.stderr)
    stored = {"tokens": np.stack(tokens), "masses": np.stack(masses)}
    write_atomically(options.samples, lambda path: _save(path, stored))


def _save(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    with path.open("wb") as stream:
        np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]


def work(options: Options) -> None:
    check_output(options.output, "name another --output", "weights.npy")
    if not options.samples.exists():
        write_samples(options)
    letters = as_letters(read_text_tokenizer(EMBEDDED).strings)
    rng = np.random.default_rng(options.seed)
    tables = []
    with np.load(options.samples, allow_pickle=False) as stored:
        for tokens, masses in zip(stored["tokens"], stored["masses"], strict=True):
            kinds = np.concatenate([split_text(row.tolist(), letters).kind for row in tokens])
            times = masses.reshape(-1).astype(np.float64) * rng.exponential(size=masses.size)
            whole = fit(times, np.full(len(MASSES), 1 / len(MASSES)), 0)
            table = np.stack([fit(times[kinds == kind], whole, LEAN) for kind in range(KINDS)])
            tables.append((1 - BLEND) * table + BLEND * whole)
    weights = np.round(np.stack(tables), 7)
    write_atomically(options.output, lambda path: _save(path, {"masses": MASSES, "weights": weights}))


def main() -> None:
    work(parse(Options, description=__doc__))


if __name__ == "__main__":
    run_benchmark(main)

"""p-values and false messages of the scheme `robust` on windows of text that people wrote, under one fixed key.

    python benchmarks/robust_windows.py news.txt.xz more.txt.xz --count 100000 --decoded 1000

A p-value p is a bound: at most a share p of texts without a mark gets p or less. So the test is one-sided: the
Kolmogorov-Smirnov statistic of how far the share of small p-values lies above the uniform law.
"""

import json
import re
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from pathlib import Path

import numpy as np
import tyro
from command import MANY, run_benchmark, within
from scipy import stats

from polar.text.keys.key import Key
from polar.text.schemes.robust.reader import Receiver
from wm_env.common.arguments import parse
from wm_env.common.files import write_atomically
from wm_env.lm.models.folder import EMBEDDED
from wm_env.lm.text_files import read_lines
from wm_env.lm.tokenizer import read_text_tokenizer

KEY = Key(bytes(range(1, 33)))
LEVELS = (0.5, 0.1, 0.05, 0.01, 0.001, 0.0001)


@dataclass(frozen=True)
class Options:
    """What is read."""

    files: tyro.conf.Positional[tuple[Path, ...]]
    """Texts (.gz and .xz may be compressed)."""
    count: int = 100_000
    """Windows that are looked at by `detect`."""
    decoded: int = 1000
    """Windows, the first ones, that `decode` looks for messages in as well."""
    words: int = 40
    """Words of a window."""
    nonces: int = 16
    """Nonces that are looked for."""
    workers: int = 1
    """Processes."""
    out: Path = Path("runs/robust-windows.json")
    """Where p-values are kept; what is there is not measured again, so it must be of the same files and options."""


def windows(files: tuple[Path, ...], words: int) -> Iterator[str]:
    """Windows of so many words, one behind the other."""
    kept: list[str] = []
    for path in files:
        for line in read_lines(path):
            kept += re.findall(r"\s*\S+", " " + line)
            while len(kept) >= words:
                yield "".join(kept[:words])
                kept = kept[words:]


@cache
def receiver(nonces: int) -> Receiver:
    """Under the fixed key."""
    return Receiver(KEY, read_text_tokenizer(EMBEDDED), None, range(nonces))


def detect(nonces: int, window: str) -> float:
    """The p-value of `detect`."""
    return receiver(nonces).detect(window).p_value


def decode(nonces: int, window: str) -> tuple[float, int, bool]:
    """The p-value of `decode`, the attempts, and whether there is a message."""
    found = receiver(nonces).decode(window)
    return found.p_value, found.attempts, found.payload is not None


def _write(content: str, path: Path) -> None:
    path.write_text(content)


def work(options: Options) -> None:
    within(options, count=MANY, decoded=MANY, words=(1, 500), nonces=(1, 128), workers=(1, 256))
    kept: dict[str, list[float]] = json.loads(options.out.read_text()) if options.out.exists() else {}
    p_values = kept.get("p_values", [])[: options.count]
    start, before = time.perf_counter(), len(p_values)
    with ProcessPoolExecutor(options.workers) as pool:
        source = islice(windows(options.files, options.words), before, None)
        while batch := list(islice(source, min(2000, options.count - len(p_values)))):
            p_values += pool.map(partial(detect, options.nonces), batch, chunksize=50)
            write_atomically(options.out, partial(_write, json.dumps({"p_values": p_values})))
            spent = time.perf_counter() - start
            left = spent / (len(p_values) - before) * (options.count - len(p_values))
            print(f"{len(p_values)} windows in {spent:.0f} s, {left:.0f} s left", file=sys.stderr, flush=True)
        first = list(islice(windows(options.files, options.words), options.decoded))
        decoded = list(pool.map(partial(decode, options.nonces), first, chunksize=10))
    values = np.array(p_values)
    print("| level | share of windows with that p-value or less |\n| --- | --- |")
    for level in LEVELS:
        print(f"| {level:g} | {(values <= level).mean():.5f} |")
    test = stats.kstest(values, "uniform", alternative="greater")
    print(f"{len(values)} windows: Kolmogorov-Smirnov, one-sided: D = {test.statistic:.5f}, p = {test.pvalue:.3f}")
    attempts, messages = sum(row[1] for row in decoded), sum(row[2] for row in decoded)
    print(
        f"{len(decoded)} windows decoded: {messages} messages in {attempts} attempts, of which the check promises at "
        f"most {attempts * 2.0**-32:.4f}; smallest p-value {min(row[0] for row in decoded):.3g}"
    )


def main() -> None:
    work(parse(Options, description=__doc__))


if __name__ == "__main__":
    run_benchmark(main)

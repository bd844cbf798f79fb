"""What exact arithmetic costs the writer of a message: python benchmarks/arithmetic.py --messages 10 --threads 2.

Random messages of four bytes are put into texts of the embedded model by the scheme stream, with every other setting as
`python -m polar embed` has it, in exact arithmetic and in float32, in turn in one process. The laws of the two differ a
little, and so do their texts; hence the ratio is printed per text and per token.
"""

import time
from dataclasses import dataclass
from typing import Literal

from command import MANY, SEEDS, run_benchmark, within

from wm_env.common.command import quitting_on_interrupt

with quitting_on_interrupt(__name__):
    import numpy as np
    import torch

    from polar.text.channel import open_channel
    from polar.text.embedding import embed_with_retries
    from polar.text.keys.key import KEY_BYTES, Key
    from polar.text.schemes.stream import Stream
    from polar.text.settings import Settings
    from wm_env.common.arguments import parse
    from wm_env.lm.models.exact.network import VERSION
    from wm_env.lm.models.load import load_lm
    from wm_env.lm.models.masked_lm import MaskedLM
    from wm_env.lm.models.stack import device_name
    from wm_env.lm.prompts import read_prompts


@dataclass(frozen=True)
class Options:
    """What is written, and with how much help."""

    messages: int = 10
    """Messages, each behind a prompt of its own."""
    threads: int = 2
    """Threads of torch."""
    seed: int = 0
    """Chooses messages and keys."""


@dataclass
class Spent:
    """Wall-clock seconds and tokens of the texts so far."""

    seconds: float = 0.0
    tokens: int = 0

    def write(self, lm: MaskedLM, prompt: str, message: bytes, key: Key) -> None:
        """Put one message into a text."""
        start = time.perf_counter()
        sent = embed_with_retries(open_channel(lm, prompt, Settings(Stream())), message, key, range(4))
        self.seconds += time.perf_counter() - start
        self.tokens += len(sent.tokens)


def main() -> None:
    """Write and print."""
    options = parse(Options, description=__doc__)
    within(options, messages=MANY, threads=(1, 1024), seed=SEEDS)
    torch.set_num_threads(options.threads)
    kinds: tuple[Literal["exact", "float"], ...] = ("exact", "float")
    models = {kind: load_lm("mini", arithmetic=kind) for kind in kinds}
    spent = {kind: Spent() for kind in kinds}
    rng = np.random.default_rng(options.seed)
    prompts = read_prompts("shipped")
    for kind in kinds:
        Spent().write(models[kind], prompts[-1], b"warm", Key(rng.bytes(KEY_BYTES)))
    for number in range(options.messages):
        message, key = rng.bytes(4), Key(rng.bytes(KEY_BYTES))
        for kind in kinds if number % 2 else reversed(kinds):
            spent[kind].write(models[kind], prompts[number % len(prompts)], message, key)
    print(f"{device_name(torch.device('cpu'))}, torch {torch.__version__}, {options.threads} thread(s)")
    for kind, name in zip(kinds, (VERSION, "float32"), strict=True):
        took = spent[kind]
        print(f"{name}: {took.seconds / options.messages:.2f} s and {took.tokens / options.messages:.0f} tokens a text")
    exact, plain = spent["exact"], spent["float"]
    by_text, by_token = exact.seconds / plain.seconds, exact.seconds / exact.tokens / (plain.seconds / plain.tokens)
    print(f"{VERSION} takes {by_text:.2f} times as long by text, {by_token:.2f} by token", flush=True)


if __name__ == "__main__":
    run_benchmark(main)

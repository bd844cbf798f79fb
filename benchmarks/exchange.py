"""Messages between machines: texts that one of them writes and the other reads.

    python benchmarks/exchange.py write --count 100 --file gpu.json --device cuda
    python benchmarks/exchange.py read --file gpu.json --device cpu

Exact arithmetic promises that every message comes back. The file holds texts, prompts, keys and messages of the
measurement, and the machine that wrote them.
"""

import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from command import MANY, SEEDS, run_benchmark, within

from wm_env.common.command import quitting_on_interrupt

with quitting_on_interrupt(__name__):
    import numpy as np
    import torch
    import tyro
    from sharing import Share, Tally, add, run_shares

    from polar.text.channel import Channel, open_channel
    from polar.text.decoding import decode
    from polar.text.embedding import embed_with_retries
    from polar.text.keys.key import KEY_BYTES, Key
    from polar.text.schemes.block import Block
    from polar.text.settings import LawSettings, Limits, Settings
    from polar.text.sources import open_vocabulary
    from polar.text.vocabulary import Vocabulary
    from wm_env.common.arguments import parse
    from wm_env.common.files import check_output, read_json, write_json
    from wm_env.common.json_values import read_as
    from wm_env.lm.models.load import load_lm
    from wm_env.lm.models.masked_lm import MaskedLM
    from wm_env.lm.models.stack import device_name
    from wm_env.lm.prompts import read_prompts

MESSAGE_BYTES = 4
NONCES = 4
"""Nonces that are tried when a text cannot be sent, and read."""
_SMALL = Settings(Block(candidates=16), LawSettings(block_length=2))
_SCHEMES = {"stream": Settings(), "block": Settings(Block()), "small block": _SMALL}


@dataclass(frozen=True)
class Options:
    """Write texts with messages, or read those that another machine wrote."""

    what: tyro.conf.Positional[Literal["write", "read"]]
    """The side."""
    file: Path
    """Texts that are written or read, JSON."""
    count: int = 100
    """Texts to write."""
    scheme: Literal["stream", "block", "small block"] = "stream"
    """Scheme of the texts to write; a small block has 2 tokens and 16 candidates."""
    device: str = "cpu"
    """Where the model runs."""
    processes: int = 1
    """Processes that share the work, each with one thread."""
    minutes: float = 60.0
    """Stop early after so long."""
    seed: int = 0
    """Chooses messages, keys and prompts."""


@dataclass(frozen=True)
class Letter:
    """A text with a message, and what its receiver needs."""

    prompt: str
    key: str
    message: str
    text: str


def open_model(device: str) -> tuple[MaskedLM, Vocabulary]:
    """The embedded model, computing with one thread."""
    torch.set_num_threads(1)
    lm = load_lm("mini", device=device)
    return lm, open_vocabulary(lm)


def open_letter(lm: MaskedLM, vocabulary: Vocabulary, prompt: str, scheme: str) -> Channel:
    """The channel of a text behind a prompt."""
    return open_channel(lm, prompt, _SCHEMES[scheme], vocabulary)


def write(options: Options, share: Share) -> Tally:
    """Texts with random messages, as JSON values."""
    (lm, vocabulary), prompts = open_model(options.device), read_prompts("shipped")
    letters: Tally = {}
    for number in share.numbers():
        rng = np.random.default_rng([options.seed, number])
        prompt, key, message = prompts[number % len(prompts)], rng.bytes(KEY_BYTES), rng.bytes(MESSAGE_BYTES)
        channel = open_letter(lm, vocabulary, prompt, options.scheme)
        sent = embed_with_retries(channel, message, Key(key), range(NONCES), Limits(ending="none"))
        letters[Letter(prompt, key.hex(), message.hex(), sent.text)] = 1
    return letters


def read(options: Options, letters: list[Letter], scheme: str, share: Share) -> Tally:
    """How many of the texts hold their message."""
    lm, vocabulary = open_model(options.device)
    tally: Tally = {}
    for number in share.numbers():
        letter = letters[number]
        channel = open_letter(lm, vocabulary, letter.prompt, scheme)
        found = decode(channel, letter.text.encode(), Key(bytes.fromhex(letter.key)), range(NONCES)).message
        exact = found == bytes.fromhex(letter.message)
        add(tally, {"exact" if exact else "nothing" if found is None else "WRONG": 1})
    return tally


def machine(device: str) -> dict[str, Any]:
    """What computes."""
    name, capability = device_name(torch.device(device)), torch.backends.cpu.get_cpu_capability()
    return {"device": name, "torch": torch.__version__, "cpu": capability}


def run(options: Options) -> None:
    """Write or read, and print the figures."""
    within(options, count=MANY, processes=(1, 1024), minutes=(0, 10**6), seed=SEEDS)
    start, here = time.perf_counter(), machine(options.device)
    if options.what == "write":
        check_output(options.file, "name another file", '"letters"')
        written = run_shares(partial(write, options), options.count, options.processes, options.minutes)
        letters = [asdict(letter) for letter in written]
        write_json(options.file, {"scheme": options.scheme, "machine": here, "letters": letters})
        print(f"{len(letters)} texts of {options.scheme} written on {here}, {time.perf_counter() - start:.0f} s")
        return
    values = read_json(options.file)
    stored = [read_as(Letter, value, options.file, "letters") for value in values["letters"]]
    work = partial(read, options, stored, values["scheme"])
    tally = run_shares(work, len(stored), options.processes, options.minutes)
    found = ", ".join(f"{int(count)} {name}" for name, count in tally.items())
    print(
        f"{len(stored)} texts of {values['scheme']} written on {values['machine']}, read on {here}: {found}, "
        f"{time.perf_counter() - start:.0f} s"
    )


def main() -> None:
    """Command line."""
    run(parse(Options, description=__doc__))


if __name__ == "__main__":
    run_benchmark(main)

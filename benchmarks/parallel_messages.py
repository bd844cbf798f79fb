"""Messages of 32 bits in texts of the scheme parallel, read back where there is no model.

    python benchmarks/parallel_messages.py write --count 1000 --out texts.jsonl
    python benchmarks/parallel_messages.py read texts.jsonl

`read` copies the tokenizer alone into an empty folder and reads every text with that. Times are processor times.
"""

import json
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

from command import MANY, SEEDS, run_benchmark, within

from wm_env.common.command import quitting_on_interrupt

with quitting_on_interrupt(__name__):
    import numpy as np
    import torch
    import tyro

    from polar.text.channel import open_channel
    from polar.text.decoding import decode_with_tokenizer
    from polar.text.embedding import embed_with_retries
    from polar.text.framing import BitString
    from polar.text.keys.key import KEY_BYTES, Key
    from polar.text.schemes.parallel import Parallel
    from polar.text.settings import LawSettings, Settings
    from polar.text.sources import open_vocabulary
    from wm_env.common.arguments import parse
    from wm_env.common.files import check_output, read_text
    from wm_env.common.json_values import parse_json, read_as
    from wm_env.lm.models.folder import EMBEDDED
    from wm_env.lm.models.load import load_lm
    from wm_env.lm.prompts import read_prompts
    from wm_env.lm.tokenizer import read_text_tokenizer

MESSAGE_BITS = 32

ATTEMPTS = 4
"""Nonces that are tried when a text cannot be sent."""


@dataclass(frozen=True)
class Write:
    """Hide random messages, each under a key of its own."""

    count: int = 1000
    """Messages."""
    out: Path = Path("texts.jsonl")
    """Texts, keys and messages."""
    seed: int = 0
    """Chooses keys and messages."""
    scheme: tyro.conf.OmitArgPrefixes[Parallel] = field(default_factory=Parallel)
    temperature: float = 1.0
    """tau."""
    device: str = "cpu"
    """Where the model computes; the texts are the same."""

    @property
    def settings(self) -> Settings:
        """Of the texts."""
        return Settings(self.scheme, LawSettings(temperature=self.temperature))


@dataclass(frozen=True)
class Read:
    """Read them back, and with a wrong key."""

    texts: tyro.conf.Positional[Path]
    scheme: tyro.conf.OmitArgPrefixes[Parallel] = field(default_factory=Parallel)
    temperature: float = 1.0
    """tau."""

    @property
    def settings(self) -> Settings:
        """Of the texts."""
        return Settings(self.scheme, LawSettings(temperature=self.temperature))


@dataclass(frozen=True)
class Line:
    """What `write` writes for a message: its key in hexadecimal digits, its nonce, itself and its text."""

    key: str
    nonce: int
    message: int
    text: str


def write(options: Write) -> None:
    within(options, count=MANY, seed=SEEDS)
    check_output(options.out, "name another --out", '"nonce": ')
    lm = load_lm("mini", device=options.device)
    vocabulary, prompts = open_vocabulary(lm), read_prompts("shipped")
    tokens = rejected = 0
    start = time.process_time()
    with options.out.open("w", encoding="utf-8") as file:
        for number in range(options.count):
            rng = np.random.default_rng([options.seed, number])
            key, message = Key(rng.bytes(KEY_BYTES)), int(rng.integers(1 << MESSAGE_BITS))
            channel = open_channel(lm, prompts[number % len(prompts)], options.settings, vocabulary)
            sent = embed_with_retries(channel, BitString(message, MESSAGE_BITS), key, range(ATTEMPTS))
            tokens, rejected = tokens + len(sent.tokens), rejected + sent.rejected
            file.write(json.dumps(asdict(Line(key.secret.hex(), sent.nonce, message, sent.text))) + "\n")
    seconds = (time.process_time() - start) / options.count
    print(
        f"{options.count} messages of {MESSAGE_BITS} bits: {tokens / options.count:.1f} tokens each "
        f"({MESSAGE_BITS * options.count / tokens:.3f} message bits per token), {rejected} texts rejected, "
        f"{seconds:.3f} s a text"
    )


def read(options: Read) -> None:
    right = silent = 0
    seconds = 0.0
    lines = [
        read_as(Line, parse_json(line, options.texts), options.texts) for line in read_text(options.texts).splitlines()
    ]
    if not lines:
        raise ValueError(f"{options.texts} has no texts")
    with tempfile.TemporaryDirectory() as folder:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(EMBEDDED / name, folder)
        tokenizer = read_text_tokenizer(Path(folder))
        for line in lines:
            key, text, wanted = bytes.fromhex(line.key), line.text.encode(), BitString(line.message, MESSAGE_BITS)
            start = time.process_time()
            found = decode_with_tokenizer(tokenizer, text, Key(key), [line.nonce], options.settings)
            seconds += time.process_time() - start
            right += found.message == wanted
            wrong_key = Key(key[1:] + key[:1])
            silent += decode_with_tokenizer(tokenizer, text, wrong_key, [line.nonce], options.settings).message is None
    print(
        f"no model loaded: {right} of {len(lines)} messages exact, {seconds / len(lines) * 1000:.1f} ms a text; "
        f"with a wrong key no message in {silent} of {len(lines)}"
    )


def main() -> None:
    torch.set_num_threads(1)
    options = parse(
        Annotated[Write, tyro.conf.subcommand("write")] | Annotated[Read, tyro.conf.subcommand("read")],
        description=__doc__,
    )
    options.settings.check()
    if isinstance(options, Write):
        write(options)
    else:
        read(options)


if __name__ == "__main__":
    run_benchmark(main)

"""Does this machine compute the published numbers? Hashes of exact arithmetic, compared with those of the repository.

    python -m wm_env.lm.verify
    python -m wm_env.lm.verify --device cuda

The embedded model is asked for laws of fixed canvases, in every way of multiplying that is exact here; for the scores
of candidates of the shipped tree; for a quantised law; and for a text of every scheme whose receiver needs the model,
written with a fixed key. A text of the scheme `parallel`, whose receiver needs none, is read. Then sender and receiver
may be this machine and any other that says the same.
"""

import hashlib
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from wm_env.common.command import exit_code, quitting_on_interrupt, run_command, say

with quitting_on_interrupt(__name__):
    import torch
    from torch import Tensor

    from polar.text.channel import open_channel
    from polar.text.decoding import decode_with_tokenizer
    from polar.text.embedding import embed_with_retries
    from polar.text.framing import BitString
    from polar.text.keys.key import Key
    from polar.text.schemes import load_schemes
    from polar.text.schemes.block import Block
    from polar.text.settings import LawSettings, Limits, Settings
    from wm_env.common.arguments import parse
    from wm_env.common.files import check_output, read_json, write_json
    from wm_env.common.help import paragraph_help
    from wm_env.lm.models.exact.checkpoint import open_source, stored_form
    from wm_env.lm.models.exact.law import TICK_BITS, log2_ticks
    from wm_env.lm.models.exact.network import VERSION, ExactNetwork
    from wm_env.lm.models.exact.products import Kind, exact_kinds
    from wm_env.lm.models.exact.quantise import W8, W24, Form
    from wm_env.lm.models.folder import EMBEDDED
    from wm_env.lm.models.llada import exact_shape
    from wm_env.lm.models.llada_config import LLaDAConfig, tensor_names
    from wm_env.lm.models.load import load_lm
    from wm_env.lm.models.masked_lm import MaskedLM
    from wm_env.lm.models.stack import device_name
    from wm_env.lm.tokenizer import read_text_tokenizer
    from wm_env.tree import StateTree, shipped_tree

PUBLISHED = Path(__file__).parents[1] / "data" / "published.json"
"""What machines that compute exactly agree on."""

CANVASES = 16
"""Canvases whose laws are hashed."""
CANDIDATES = 4
"""Candidates of the shipped tree whose scores are computed again."""
_PROMPT = "The mayor said on Monday"
_KEY = Key(bytes(range(32)))
_MESSAGE = BitString(0b10110011, 8)
_SMALL_BLOCKS = Settings(Block(candidates=16), LawSettings(block_length=2))
_LIMITS = Limits(ending="none")

OTHER_NUMBERS = 1
"""Exit code where a number differs."""


@paragraph_help
@dataclass(frozen=True)
class Options:
    """Compute the published numbers on this machine, and compare."""

    device: str = "cpu"
    """Where the model runs, such as cpu or cuda:0."""
    threads: int = 1
    """Threads of torch on a CPU; the numbers do not depend on it."""
    write: Path | None = None
    """Write the numbers of this machine to a file instead, for a new embedded model or tree."""


@dataclass(frozen=True)
class Number:
    """A published number, and how this machine computes it.

    Attributes:
        name: what it is.
        how: the way in which it is computed, where there are several.
        compute: gives its hash, or its text.
    """

    name: str
    how: str
    compute: Callable[[], str]


def fixed_canvases(vocabulary: int, mask_id: int, count: int = CANVASES) -> Iterator[tuple[Tensor, int]]:
    """(1, T) canvases of 24 to 256 ids by a linear congruential generator, 1 to 8 masks at the end; the first mask."""
    state = 12345
    for number in range(count):
        length = 256 if number % 16 == 15 else (24, 56, 64, 128)[number % 4]
        row = []
        for _ in range(length):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            row.append((state >> 33) % vocabulary)
        masks = 1 + number % 8
        row[length - masks :] = [mask_id] * masks
        yield torch.tensor([row]), length - masks


def digest(parts: Iterable[Tensor]) -> str:
    """SHA-256 of integers as int64, little endian."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(part.cpu().contiguous().numpy().astype("<i8").tobytes())
    return sha.hexdigest()


def numbers(lm: MaskedLM, tree: StateTree, published: Mapping[str, str]) -> Iterator[Number]:
    """Every number; texts whose receiver needs no model are read, where they are published."""
    yield Number("model", "", lambda: lm.fingerprint)
    yield Number("tokenizer", "", lambda: lm.tokenizer_fingerprint)
    yield Number("tree", "", lambda: tree.fingerprint)
    yield from _canvas_numbers(lm)
    yield Number("scores of the tree", "", lambda: _scores(lm, tree))
    law = open_channel(lm, _PROMPT, Settings()).source.law(())
    yield Number("law", "", lambda: digest([torch.from_numpy(law.cumulative)]))
    for name, scheme in load_schemes().items():
        settings = _SMALL_BLOCKS if name == "block" else Settings(scheme)
        title = f"text of the scheme {name}"
        if scheme.finds_nonces:
            continue  # its receiver computes nothing with the model, and its texts are long
        if scheme.needs_model or title not in published:
            yield Number(title, "written", partial(_written, lm, settings))
        else:
            yield Number(title, "read", partial(_read, settings, published[title]))


def _canvas_numbers(lm: MaskedLM) -> Iterator[Number]:
    for form, kind, network in embedded_networks(lm.banned.device):
        how = f"{kind}, fused" if network.fusion == "fused" else f"{kind} products"
        yield Number(f"canvases, {form.name}", how, partial(canvas_digest, network, lm))


def embedded_networks(device: torch.device) -> Iterator[tuple[Form, Kind, ExactNetwork]]:
    """The embedded model in every number format that it has, and every product that is exact on the device."""
    values = read_json(EMBEDDED / "config.json")
    config, stored = LLaDAConfig.from_json(values), stored_form(values)
    for form in (W24, W8) if stored is None else (stored,):
        source, _ = open_source(EMBEDDED, values, exact_shape(config), tensor_names(config), form)
        for kind in exact_kinds(form, device, (config.d_model, config.mlp_hidden_size)):
            yield form, kind, ExactNetwork(source, device, kind)


def canvas_digest(network: ExactNetwork, lm: MaskedLM) -> str:
    """Hash of the laws of the fixed canvases, nothing banned, at temperature 1."""
    canvases = fixed_canvases(network.shape.vocabulary, lm.mask_id)
    return digest(log2_ticks(network.logits(canvas, [position])[:, 0], 1.0) for canvas, position in canvases)


def _scores(lm: MaskedLM, tree: StateTree) -> str:
    """Hash of the scores of the first candidates of the first state, checked against those in an exact tree.

    ValueError if the tree has others.
    """
    block, context = tree.blocks[0], lm.encode(tree.prompts[0])
    tokens = torch.from_numpy(block.tokens[0, :CANDIDATES])
    total = torch.zeros(len(tokens), dtype=torch.float64, device=lm.banned.device)
    for step in range(tree.block_length):
        canvas = torch.full((len(tokens), len(context) + tree.block_length), lm.mask_id)
        canvas[:, : len(context)] = torch.tensor(context)
        canvas[:, len(context) : len(context) + step] = tokens[:, :step]
        law = lm.log2_probs(canvas, len(context) + step, tree.meta.temperature)
        total += law.gather(1, tokens[:, step, None].to(law.device))[:, 0]
    if tree.meta.dtype == lm.number_format and total.tolist() != block.log2_prob[0, :CANDIDATES].tolist():
        raise ValueError("the shipped tree has other scores than the embedded model gives: build it again")
    return digest([total.mul(2.0**TICK_BITS).to(torch.int64)])


def _written(lm: MaskedLM, settings: Settings) -> str:
    channel = open_channel(lm, _PROMPT, settings)
    return embed_with_retries(channel, _MESSAGE, _KEY, range(4), _LIMITS).text


def _read(settings: Settings, text: str) -> str:
    """The text if it holds the message, else what was found."""
    tokenizer = read_text_tokenizer(EMBEDDED)
    found = decode_with_tokenizer(tokenizer, text.encode(), _KEY, range(4), settings, _PROMPT)
    return text if found.message == _MESSAGE else f"read as {found.message!r}"


def stored_numbers() -> dict[str, str]:
    """The published numbers, by name.

    Raises:
        ValueError: they are of another version of the arithmetic.
        OSError: there are none.
    """
    values = read_json(PUBLISHED)
    if values.get("arithmetic") != VERSION:
        raise ValueError(f"{PUBLISHED} holds numbers of {values.get('arithmetic')!r}, not {VERSION!r}: --write anew")
    return {name: str(value) for name, value in values.items()}


def verify_numbers(options: Options) -> bool:
    """Compute, print a line for every number, and compare; True if all agree, or were written.

    Raises:
        ValueError: the device or a setting of the process would give other numbers, or an option is out of range.
        OSError: a file cannot be read or written.
    """
    if options.threads < 1:
        raise ValueError(f"--threads {options.threads}: at least one is needed")
    torch.set_num_threads(options.threads)
    if options.write is not None:
        check_output(options.write, "name another file", VERSION)
    published = {} if options.write is not None else stored_numbers()
    lm = load_lm("mini", device=options.device)
    say(
        f"{VERSION} on {device_name(lm.banned.device)}, torch {torch.__version__}, {options.threads} thread(s), "
        f"{platform.machine()}"
    )
    found: dict[str, str] = {}
    differing: list[str] = []
    begin = time.perf_counter()
    for number in numbers(lm, shipped_tree(), published):
        start = time.perf_counter()
        value = number.compute()
        seconds = time.perf_counter() - start
        if options.write is not None and found.get(number.name, value) != value:
            raise ValueError(f"{number.name}: {number.how} give another number than the way before: do not publish")
        found[number.name] = value
        same = published.get(number.name) == value
        differing += [] if same else [number.name]
        verdict = "written" if options.write is not None else "as published" if same else "DIFFERS"
        short = value[:16] if len(value) == 64 else repr(value if len(value) < 60 else value[:57] + "...")
        say(f"{number.name:27} {number.how:17} {seconds:6.2f} s  {short}  {verdict}")
    if options.write is not None:
        write_json(options.write, {"arithmetic": VERSION, **found})
        return True
    if differing:
        say(f"this machine does not compute the published numbers: {', '.join(dict.fromkeys(differing))}")
        return False
    say(f"this machine computes the published numbers ({time.perf_counter() - begin:.1f} s)")
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line: exit code 0 if all numbers agree, 1 if one differs, 2 for bad options, 130 after Ctrl-C."""
    with quitting_on_interrupt(__name__):
        options = parse(Options, prog="python -m wm_env.lm.verify", description=__doc__, args=arguments)
    return exit_code(lambda: 0 if verify_numbers(options) else OTHER_NUMBERS)


if __name__ == "__main__":
    run_command(main)

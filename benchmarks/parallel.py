"""What parallel steps carry and cost on the embedded model, beside a keyed-colour watermark; and what edits do.

    python benchmarks/parallel.py table --count 6
    python benchmarks/parallel.py edits --count 12

Every text carries 32 bits behind one of the shipped prompts. Exact or bounded total variations are per step.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from command import MANY, SEEDS, run_benchmark, within

from wm_env.common.command import quitting_on_interrupt

with quitting_on_interrupt(__name__):
    import numpy as np
    import torch
    import tyro
    from colours import MESSAGE_BITS, Colours

    from polar.code.index_sets import Bools, bit_levels
    from polar.code.successive import conditional_llrs
    from polar.code.transform import polar_transform
    from polar.text.channel import Channel, open_channel
    from polar.text.framing import BitString, make_frame
    from polar.text.keys import KEY_BYTES, Key, MessageKeys
    from polar.text.schemes.parallel import scheme as parallel
    from polar.text.schemes.parallel.outer_code import decode_frames, encode_frame, open_bytes
    from polar.text.schemes.parallel.step import draw_tokens, label_masses, read_bits, vocabulary_labels
    from polar.text.schemes.stream import Tokens
    from polar.text.settings import Settings
    from polar.text.sources import open_vocabulary
    from wm_env.common.arrays import Floats, Ints
    from wm_env.lm.models.load import load_lm
    from wm_env.lm.models.masked_lm import MaskedLM
    from wm_env.lm.prompts import read_prompts

POSITIONS = (8, 16, 32, 64)

DELTA = 2.0
"""The bias that MPAC recommends."""

LONGEST_ENUMERATION = 16
"""Bits of V that an exact total variation enumerates."""

EDITS_PER_TEXT = 10


@dataclass(frozen=True)
class Options:
    what: tyro.conf.Positional[Literal["table", "edits"]]
    count: int
    """Texts of every setting."""
    effective_tokens: float = 32.0
    """The design."""
    bit_error: float = 0.02
    """The design."""
    hash_bits: int = 4
    """Edits: b."""
    seed: int = 0
    """Chooses keys and messages."""


@dataclass
class Tally:
    """Sums over steps and texts; of the three kinds of text the bits of surprise a token, text by text."""

    steps: int = 0
    tokens: int = 0
    coded: int = 0
    lost: int = 0
    forced_bound: float = 0.0
    forced_exact: float = 0.0
    unfit: int = 0
    colour_variation: float = 0.0
    colour_wrong: int = 0
    frames: int = 0
    whole: int = 0
    marked: list[float] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)
    coloured: list[float] = field(default_factory=list)


class Bench:
    """Texts of the embedded model."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.lm: MaskedLM = load_lm("mini")
        self.vocabulary = open_vocabulary(self.lm)
        self.prompts = read_prompts("shipped")

    def channel(self, number: int, settings: Settings) -> Channel:
        return open_channel(self.lm, self.prompts[number % len(self.prompts)], settings, self.vocabulary)

    def settings(self, positions: int, hash_bits: int, parity: int = 8) -> Settings:
        design = self.options.effective_tokens, self.options.bit_error
        return replace(
            Settings(scheme="parallel", positions=positions, hash_bits=hash_bits, parity=parity),
            effective_tokens=design[0],
            bit_error=design[1],
        )


def sample(
    channel: Channel, steps: int, bend: Callable[[Floats, int], Floats], rng: np.random.Generator, check: bool
) -> tuple[Tokens, float]:
    """Tokens drawn from bent marginals, and their surprise under the marginals themselves, bits."""
    tokens: Tokens = ()
    bits = 0.0
    anything = np.zeros(len(channel.source.lm.banned), dtype=np.int64)
    for _ in range(steps):
        laws = parallel.step_marginals(channel, tokens)
        accept = (lambda added, so_far=tokens: parallel.retokenises(channel, so_far + added)) if check else _anything
        bent = bend(laws, len(tokens))
        step = draw_tokens(bent, anything, np.zeros(len(laws), dtype=np.int64), accept, rng.random)
        bits += surprise(laws, step.tokens)
        tokens += step.tokens
    return tokens, bits


def _anything(added: Tokens) -> Callable[[int], bool]:
    return lambda token: True


def surprise(laws: Floats, tokens: Tokens) -> float:
    return float(-np.log2(laws[np.arange(len(tokens)), list(tokens)]).sum())


def forcing_losses(masses: Floats, labels: Ints, message: Bools) -> float:
    """Sum over the message positions of |P(V_i = 1 | V^{i-1}, S^n) - 1/2| along the labels of a step."""
    total, prefix = 0.0, np.zeros(len(masses), dtype=np.int64)
    for number, level in enumerate(bit_levels(masses)):
        word = labels >> (len(message) - 1 - number) & 1
        llr = level.llr[np.arange(len(masses)), prefix]
        leaves = conditional_llrs(llr[None], polar_transform(word)[None])[0]
        total += float(np.abs(np.tanh(leaves[message[number]] / 2)).sum() / 2)
        prefix = 2 * prefix + word
    return total


def forced_variation(masses: Floats, message: Bools) -> float:
    """Total variation between the labels' law and that of an encoder that forces the message bits, by enumeration."""
    levels, positions = message.shape
    law = masses[0]
    for row in masses[1:]:
        law = (law[:, None] * row[None]).reshape(-1)
    places = np.arange(positions - 1, -1, -1) * levels
    labels = np.arange(len(law))[:, None] >> places & (2**levels - 1)
    words = read_bits(labels, np.ones_like(message))
    cover = np.zeros(len(law))
    cover[words @ (1 << np.arange(message.size)[::-1])] = law
    forced = np.ones(1)
    for number, is_message in enumerate(message.reshape(-1)):
        before, after = (cover.reshape(2 ** (number + more), -1).sum(1) for more in (0, 1))
        whole = np.repeat(before, 2)
        drawn = np.divide(after, whole, out=np.full_like(after, 0.5), where=whole > 0)
        forced = np.repeat(forced, 2) * (0.5 if is_message else drawn)
    return float(np.abs(forced - cover).sum() / 2)


def run_text(bench: Bench, settings: Settings, number: int, tally: Tally) -> None:
    """One text of each kind: with a message, plain, and coloured; all of the same number of steps."""
    rng = np.random.default_rng([bench.options.seed, settings.positions, settings.hash_bits, number])
    plain = rng.spawn(1)[0]
    channel, keys = bench.channel(number, settings), MessageKeys(Key(rng.bytes(KEY_BYTES)), number, "parallel")
    message = int(rng.integers(1 << MESSAGE_BITS))
    positions, uniform = parallel.message_mask(settings), parallel.uniforms(keys.stream("choices"))
    labels = vocabulary_labels(channel.token_bytes, len(bench.lm.banned), keys.derive("labels"), settings.hash_bits)
    codeword = encode_frame(make_frame(BitString(message, MESSAGE_BITS), keys.check), settings.parity)
    rows = parallel.coded_bits(codeword, keys, int(positions.sum()))
    tokens: Tokens = ()
    bits = 0.0
    for wanted in rows:
        laws = parallel.step_marginals(channel, tokens)
        step = parallel.encode_step(channel, laws, labels, wanted, positions, tokens, uniform)
        tally.unfit += parallel.unfit_draws(laws, tokens, channel, plain)
        masses, word = label_masses(laws, labels, settings.hash_bits), labels[list(step.tokens)]
        tally.forced_bound += forcing_losses(masses, word, positions)
        if positions.size <= LONGEST_ENUMERATION:
            tally.forced_exact += forced_variation(masses, positions)
        tally.lost += int((read_bits(word[None], positions)[0] != wanted).sum())
        tally.coded += len(wanted)
        bits += surprise(laws, step.tokens)
        tokens += step.tokens
    tally.steps, tally.tokens, tally.frames = tally.steps + len(rows), tally.tokens + len(tokens), tally.frames + 1
    received = parallel.received_bits(channel.token_bytes, list(tokens), keys, settings)
    tally.whole += parallel.read(received, keys, settings.parity)[0] == BitString(message, MESSAGE_BITS)
    tally.marked.append(bits / len(tokens))
    tally.plain.append(sample(channel, len(rows), lambda laws, start: laws, rng, check=False)[1] / len(tokens))
    digits = np.array([message >> place & 1 for place in range(MESSAGE_BITS)])
    colours = Colours(digits, settings.hash_bits, labels, number, DELTA)

    def bend(laws: Floats, start: int) -> Floats:
        tally.colour_variation += colours.variation(label_masses(laws, labels, settings.hash_bits))
        return colours.bias(laws, start)

    coloured, bits = sample(channel, len(rows), bend, rng, check=True)
    tally.coloured.append(bits / len(coloured))
    tally.colour_wrong += colours.wrong_bits(labels[list(coloured)])


def table(bench: Bench) -> None:
    """One row a setting; surprise is -log2 of a token's marginal, bits a token, with the standard error of the mean."""
    print("  n  b | message bits: a step, a token | lost | forced, TV: bound, exact | does not re-tokenise", end=" | ")
    print("surprise: plain, marked, coloured | coloured: bit error, TV | exact messages, tokens")
    for positions in POSITIONS:
        for hash_bits in (1, 2, 3, 4):
            settings, tally = bench.settings(positions, hash_bits), Tally()
            for number in range(bench.options.count):
                run_text(bench, settings, number, tally)
            print(f"{positions:3} {hash_bits:2} | {row_of(tally, positions * hash_bits)}", flush=True)


def row_of(tally: Tally, word_bits: int) -> str:
    """One line of the table."""
    exact = f"{tally.forced_exact / tally.steps:.4f}" if word_bits <= LONGEST_ENUMERATION else "-"
    surprises = " ".join(
        f"{np.mean(kind):.2f}+-{np.std(kind, ddof=1) / np.sqrt(len(kind)):.2f}"
        for kind in (tally.plain, tally.marked, tally.coloured)
    )
    colour = f"{tally.colour_wrong / (MESSAGE_BITS * tally.frames):.4f} {tally.colour_variation / tally.steps:.3f}"
    return (
        f"{tally.coded / tally.steps:3.0f} {tally.coded / tally.tokens:.2f} | "
        f"{tally.lost / tally.coded:.4f} of {tally.coded} | {tally.forced_bound / tally.steps:.4f} {exact} | "
        f"{tally.unfit / (parallel.PLAIN_DRAWS * tally.steps):.3f} | {surprises} | {colour} | "
        f"{tally.whole} of {tally.frames}, {tally.tokens / tally.frames:.0f}"
    )


def edits(bench: Bench) -> None:
    """Random substitution of tokens in the text; the receiver tokenises what results."""
    print("  n parity | tokens | edited: bit error before the code, messages exact, texts with another token count")
    for positions in POSITIONS:
        for parity in (0, 8, 32):
            settings = bench.settings(positions, bench.options.hash_bits, parity)
            cells: dict[float, list[float]] = {}
            length = 0
            for number in range(bench.options.count):
                length += edit_text(bench, settings, number, cells)
            texts = bench.options.count * EDITS_PER_TEXT
            shown = "; ".join(
                f"{share:.0%}: {wrong / (texts * bits):.4f}, {found / texts:.3f}, {shifted / texts:.3f}"
                for share, (wrong, bits, found, shifted) in cells.items()
            )
            print(f"{positions:3} {parity:6} | {length / bench.options.count:.0f} | {shown}", flush=True)


def edit_text(bench: Bench, settings: Settings, number: int, cells: dict[float, list[float]]) -> int:
    """Write one text, and substitute a share of its tokens, several times over; its length in tokens."""
    rng = np.random.default_rng([bench.options.seed, settings.positions, settings.parity, number])
    channel, keys = bench.channel(number, settings), MessageKeys(Key(rng.bytes(KEY_BYTES)), number, "parallel")
    message = BitString(int(rng.integers(1 << MESSAGE_BITS)), MESSAGE_BITS)
    codeword = encode_frame(make_frame(message, keys.check), settings.parity)
    tokens = np.array(parallel.write(channel, message, keys, 10_000).tokens)
    allowed = np.flatnonzero(~bench.lm.banned.numpy())
    for share in (0.0, 0.01, 0.05, 0.1):
        cell = cells.setdefault(share, [0, 8 * len(codeword), 0, 0])
        for _ in range(EDITS_PER_TEXT):
            edited = np.where(rng.random(len(tokens)) < share, rng.choice(allowed, len(tokens)), tokens)
            text = bench.vocabulary.text(tuple(edited.tolist())).decode("utf-8", "replace")
            read = parallel.tokenise(bench.lm.tokenizer, text)
            received = parallel.received_bits(channel.token_bytes, read, keys, settings)
            bits = received.then(BitString(0, max(0, 8 * len(codeword) - received.length))).first(8 * len(codeword))
            cell[0] += (bits.value ^ int.from_bytes(codeword, "big")).bit_count()
            cell[2] += finds(received, keys, settings.parity, len(codeword), message)
            cell[3] += len(read) != len(tokens)
    return len(tokens)


def finds(received: BitString, keys: MessageKeys, parity: int, length: int, message: BitString) -> bool:
    """Whether the receiver finds the message; other lengths than that of the message are not tried, to save time."""
    whole = received.first(min(received.length, 8 * length)).to_bytes()
    return any(
        open_bytes(data, keys.check)[0] == message
        for data in decode_frames(whole, parity)
        if len(data) == length - parity
    )


def main() -> None:
    torch.set_num_threads(1)
    options = tyro.cli(Options, description=__doc__)
    within(options, count=MANY, seed=SEEDS)
    bench = Bench(options)
    (table if options.what == "table" else edits)(bench)


if __name__ == "__main__":
    run_benchmark(main)

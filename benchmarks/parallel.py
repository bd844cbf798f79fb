"""What parallel steps carry and cost on the embedded model, beside a keyed-colour watermark; and what edits do.

    python benchmarks/parallel.py table --count 6
    python benchmarks/parallel.py edits --count 12
    python benchmarks/parallel.py counts --count 400

Every text carries 32 bits behind one of the shipped prompts. Exact or bounded total variations are per step.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from command import MANY, SEEDS, run_benchmark, within

from wm_env.common.command import quitting_on_interrupt

with quitting_on_interrupt(__name__):
    import numpy as np
    import torch
    import tyro
    from colours import MESSAGE_BITS, Colours
    from scipy.stats import chisquare, ks_2samp

    from polar.code.index_sets import Bools, bit_levels
    from polar.code.successive import conditional_llrs
    from polar.code.transform import polar_transform
    from polar.text.channel import Channel, open_channel
    from polar.text.decoding import decode_with_tokenizer
    from polar.text.framing import BitString, make_frame
    from polar.text.keys.derivation import message_keys
    from polar.text.keys.key import KEY_BYTES, Key
    from polar.text.scheme import Tokens, Writing
    from polar.text.schemes.parallel import Parallel
    from polar.text.schemes.parallel import writing as parallel
    from polar.text.schemes.parallel.labels import read_bits, vocabulary_labels
    from polar.text.schemes.parallel.outer_code import encode_frame
    from polar.text.schemes.parallel.reading import message_mask
    from polar.text.schemes.parallel.step import draw_labels, draw_tokens, label_masses, place_points
    from polar.text.settings import LawSettings, Limits, Settings
    from polar.text.sources import open_vocabulary
    from wm_env.common.arguments import parse
    from wm_env.common.arrays import Floats, Ints
    from wm_env.lm.models.load import load_lm
    from wm_env.lm.models.masked_lm import MaskedLM
    from wm_env.lm.prompts import read_prompts

DELTA = 2.0
"""The bias that MPAC recommends."""

LONGEST_ENUMERATION = 16
"""Bits of V that an exact total variation enumerates."""

EDITS_PER_TEXT = 10


@dataclass(frozen=True)
class Options:
    what: tyro.conf.Positional[Literal["table", "edits", "counts"]]
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
    positions: tuple[int, ...] = (8, 16, 32, 64)
    """n of the settings."""
    device: str = "cpu"
    """Where the model computes; the figures are the same."""


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
        self.lm: MaskedLM = load_lm("mini", device=options.device)
        self.vocabulary = open_vocabulary(self.lm)
        self.prompts = read_prompts("shipped")

    def channel(self, number: int, settings: Settings) -> Channel:
        return open_channel(self.lm, self.prompts[number % len(self.prompts)], settings, self.vocabulary)

    def settings(self, positions: int, hash_bits: int, parity: int = 8) -> Settings:
        scheme = Parallel(positions, hash_bits, self.options.effective_tokens, self.options.bit_error, parity)
        return Settings(scheme, LawSettings(temperature=1.0))


def writing_on(channel: Channel, key: Key, number: int, message: BitString) -> Writing:
    """What a text is written from."""
    return Writing(channel, message, message_keys(key, number, channel.settings, ""), Limits(max_blocks=10_000))


def sample(
    writing: Writing, steps: int, bend: Callable[[Floats, int], Floats], rng: np.random.Generator, check: bool
) -> tuple[Tokens, float]:
    """Tokens drawn from bent marginals, and their surprise under the marginals themselves, bits."""
    tokens: Tokens = ()
    bits = 0.0
    scheme = scheme_of(writing.channel.settings)
    anything = np.zeros(len(writing.channel.source.lm.banned), dtype=np.int64)
    for _ in range(steps):
        laws = parallel.step_marginals(writing, scheme, tokens)
        accept = parallel.Fitness(writing, tokens).after if check else _anything
        bent = bend(laws, len(tokens))
        drawn = draw_tokens(bent, anything, np.zeros(len(laws), dtype=np.int64), accept, rng.random)
        bits += surprise(laws, drawn)
        tokens += drawn
    return tokens, bits


def scheme_of(settings: Settings) -> Parallel:
    """The settings of the steps."""
    assert isinstance(settings.scheme, Parallel)
    return settings.scheme


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
    scheme = scheme_of(settings)
    rng = np.random.default_rng([bench.options.seed, scheme.positions, scheme.hash_bits, number])
    plain, key = rng.spawn(1)[0], Key(rng.bytes(KEY_BYTES))
    message = int(rng.integers(1 << MESSAGE_BITS))
    writing = writing_on(bench.channel(number, settings), key, number, BitString(message, MESSAGE_BITS))
    channel, keys = writing.channel, writing.keys
    positions, uniform = message_mask(scheme), parallel.uniforms(keys.stream("choices"))
    labels = vocabulary_labels(channel.strings, len(bench.lm.banned), keys.derive("labels"), scheme.hash_bits)
    rows = parallel.coded_bits(encode_frame(make_frame(writing.message, keys), scheme.parity), writing, scheme)
    tokens: Tokens = ()
    bits = 0.0
    for wanted in rows:
        laws, fits = parallel.step_marginals(writing, scheme, tokens), parallel.Fitness(writing, tokens)
        masses = label_masses(laws, labels, scheme.hash_bits)
        drawn = draw_tokens(
            laws, labels, draw_labels(masses, place_points(wanted, positions, uniform)), fits.after, uniform
        )
        tally.unfit += parallel.unfit_draws(laws, fits, plain)
        word = labels[list(drawn)]
        tally.forced_bound += forcing_losses(masses, word, positions)
        if positions.size <= LONGEST_ENUMERATION:
            tally.forced_exact += forced_variation(masses, positions)
        tally.lost += int((read_bits(word[None], positions)[0] != wanted).sum())
        tally.coded += len(wanted)
        bits += surprise(laws, drawn)
        tokens += drawn
    tally.steps, tally.tokens, tally.frames = tally.steps + len(rows), tally.tokens + len(tokens), tally.frames + 1
    text = channel.source.vocabulary.text(tokens)
    found = decode_with_tokenizer(bench.lm.text_tokenizer, text, key, [number], settings)
    tally.whole += found.message == writing.message
    tally.marked.append(bits / len(tokens))
    tally.plain.append(sample(writing, len(rows), lambda laws, start: laws, rng, check=False)[1] / len(tokens))
    digits = np.array([message >> place & 1 for place in range(MESSAGE_BITS)])
    colours = Colours(digits, scheme.hash_bits, labels, number, DELTA)

    def bend(laws: Floats, start: int) -> Floats:
        tally.colour_variation += colours.variation(label_masses(laws, labels, scheme.hash_bits))
        return colours.bias(laws, start)

    coloured, bits = sample(writing, len(rows), bend, rng, check=True)
    tally.coloured.append(bits / len(coloured))
    tally.colour_wrong += colours.wrong_bits(labels[list(coloured)])


def table(bench: Bench) -> None:
    """One row a setting; surprise is -log2 of a token's marginal, bits a token, with the standard error of the mean."""
    print("  n  b | message bits: a step, a token | lost | forced, TV: bound, exact | does not re-tokenise", end=" | ")
    print("surprise: plain, marked, coloured | coloured: bit error, TV | exact messages, tokens")
    for positions in bench.options.positions:
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
    """Words of the text are replaced, left out or put in; the receiver tokenises what results."""
    print("  n parity | tokens | share of words edited: messages exact, texts with another token count")
    for positions in bench.options.positions:
        for parity in (0, 8, 32):
            settings = bench.settings(positions, bench.options.hash_bits, parity)
            cells: dict[str, list[int]] = {}
            length = sum(edit_text(bench, settings, number, cells) for number in range(bench.options.count))
            texts = bench.options.count * EDITS_PER_TEXT
            shown = "; ".join(
                f"{share}: {found / texts:.2f}, {shifted / texts:.2f}" for share, (found, shifted) in cells.items()
            )
            print(f"{positions:3} {parity:6} | {length / bench.options.count:.0f} | {shown}", flush=True)


def edit_text(bench: Bench, settings: Settings, number: int, cells: dict[str, list[int]]) -> int:
    """Write one text, and edit words of it, several times over; its length in tokens."""
    scheme = scheme_of(settings)
    rng = np.random.default_rng([bench.options.seed, scheme.positions, scheme.parity, number])
    channel, key = bench.channel(number, settings), Key(rng.bytes(KEY_BYTES))
    message = BitString(int(rng.integers(1 << MESSAGE_BITS)), MESSAGE_BITS)
    sent = scheme.write(writing_on(channel, key, number, message))
    words = channel.source.vocabulary.text(sent.tokens).decode("utf-8").split(" ")
    others = " ".join(bench.prompts).split(" ")
    tokenizer = bench.lm.text_tokenizer
    for share in ("one word", "two words", "1 %", "5 %", "10 %"):
        cell = cells.setdefault(share, [0, 0])
        for _ in range(EDITS_PER_TEXT):
            known = {"one word": 1, "two words": 2}
            count = known[share] if share in known else rng.binomial(len(words), float(share[:-2]) / 100)
            edited = list(words)
            for place in sorted(rng.choice(len(words), count, replace=False).tolist(), reverse=True):
                kind, other = rng.integers(3), others[rng.integers(len(others))]
                edited[place : place + 1] = ([other], [], [edited[place], other])[kind]
            text = " ".join(edited)
            found = decode_with_tokenizer(tokenizer, text.encode(), key, [number], settings)
            cell[0] += found.message == message
            cell[1] += len(tokenizer.encode(text)) != len(sent.tokens)
    return len(sent.tokens)


def counts(bench: Bench) -> None:
    """The number of tokens modulo n, of marked texts and of human ones, against a uniform one."""
    encode = bench.lm.text_tokenizer.encode
    for positions in bench.options.positions:
        settings = bench.settings(positions, bench.options.hash_bits)
        scheme, marked = scheme_of(settings), []
        for number in range(bench.options.count):
            rng = np.random.default_rng([bench.options.seed, positions, number])
            channel, key = bench.channel(number, settings), Key(rng.bytes(KEY_BYTES))
            message = BitString(int(rng.integers(1 << MESSAGE_BITS)), MESSAGE_BITS)
            marked.append(len(scheme.write(writing_on(channel, key, number, message)).tokens))
        human = [len(encode(prompt)) for prompt in bench.prompts]
        tests = []
        for name, lengths in (("marked", marked), ("human", human)):
            seen = np.bincount(np.array(lengths) % positions, minlength=positions)
            tests.append(
                f"{len(lengths)} {name} texts: chi-square p = {chisquare(seen).pvalue:.3f}, {seen[0]} multiples"
            )
        same = ks_2samp(np.array(marked) % positions, np.array(human) % positions).pvalue
        print(f"n = {positions}: {'; '.join(tests)}; alike (Kolmogorov-Smirnov): p = {same:.3f}", flush=True)


def main() -> None:
    torch.set_num_threads(1)
    options = parse(Options, description=__doc__)
    within(options, count=MANY, seed=SEEDS, positions=(1, 1 << 10))
    bench = Bench(options)
    {"table": table, "edits": edits, "counts": counts}[options.what](bench)


if __name__ == "__main__":
    run_benchmark(main)

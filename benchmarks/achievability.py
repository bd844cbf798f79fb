"""The thresholds of the achievability proof, computed exactly for random codebooks at small n.

python benchmarks/achievability.py --out docs/figures/achievability.png

Numbers of words, keys and messages are whole, so points lie at the rates that these have: log2 of the number over n.
Dashed: the thresholds as R_0 tends to I(U;S). Dotted: the same at the R_0 of the panel, slack above I(U;S).
"""

import math
from dataclasses import dataclass
from pathlib import Path

from command import SEEDS, run_benchmark, within

from wm_env.common.command import quitting_on_interrupt

with quitting_on_interrupt(__name__):
    import matplotlib.pyplot as plt
    import torch

    from wm_env.common.arguments import parse
    from wm_env.common.figures import FIGURE_MARK, figure_format, save_figure
    from wm_env.common.files import check_output
    from wm_env.common.progress import ProgressBar
    from wm_env.information import measure
    from wm_env.law import BlockLaw
    from wm_env.theory.achievability import (
        Letter,
        decoding_error,
        letter,
        message_variation,
        random_codebook,
        size_of,
        state_variation,
    )


@dataclass(frozen=True)
class Options:
    """Sizes of the experiment."""

    lengths: tuple[int, ...] = (4, 6, 8, 10)
    """Letters n per word in the second and third panel; cost grows as 4^n."""
    state_lengths: tuple[int, ...] = (4, 8, 12, 16)
    """Letters n per word in the first panel; cost grows as 2^n."""
    messages: int = 8
    """Messages of every codebook whose variation is computed."""
    slack: float = 0.15
    """R_0 - I(U;S) in the second and third panel, bits per letter."""
    seed: int = 0
    """Seed of the codebooks."""
    out: Path = Path("docs/figures/achievability.png")
    """Figure file."""


def example_law() -> BlockLaw:
    """A fair state bit, U equal to it with probability 3/4, X equal to U with probability 9/10."""
    label = torch.tensor([[0.75, 0.25], [0.25, 0.75]], dtype=torch.float64)
    token = torch.tensor([[0.9, 0.1], [0.1, 0.9]], dtype=torch.float64).expand(2, 2, 2)
    state = torch.tensor([0.5, 0.5], dtype=torch.float64)
    return BlockLaw(state, label @ token[0], torch.arange(2).expand(2, 2), label, token)


def state_curve(law: Letter, n: int, rates: list[float], generator: torch.Generator) -> list[float]:
    """Mean over 64 bins of V(P_S^n, mixture of the bin's words) against R_0."""
    books = (random_codebook(law, n, 8, 8, size_of(rate, n), generator) for rate in rates)
    return [float(state_variation(law, book).mean()) for book in books]


def key_curves(
    law: Letter, n: int, bins: int, rates: list[float], options: Options, generator: torch.Generator
) -> tuple[list[float], list[float]]:
    """Mean and maximum over the messages of V(P~^m, P_XS) against R_K."""
    means, worst = [], []
    with ProgressBar(len(rates)) as bar:
        for done, rate in enumerate(rates, start=1):
            book = random_codebook(law, n, options.messages, size_of(rate, n), bins, generator)
            variation = message_variation(law, book)
            means.append(float(variation.mean()))
            worst.append(float(variation.max()))
            bar.update(done, counted=f"n = {n}")
    return means, worst


def error_curve(law: Letter, n: int, bins: int, rates: list[float], generator: torch.Generator) -> list[float]:
    """Error probability of the best decoder against R, mean over 4 keys."""
    books = (random_codebook(law, n, size_of(rate, n), 4, bins, generator) for rate in rates)
    return [decoding_error(law, book) for book in books]


def real_rates(rates: list[float], n: int) -> list[float]:
    """The rates of the whole numbers that stand for `rates`, bits per letter."""
    return [math.log2(size_of(rate, n)) / n for rate in rates]


def row(n: int, name: str, rates: list[float], values: list[float]) -> str:
    """One curve in one line, rate:value."""
    return f"n = {n:<3}{name:<10}" + "  ".join(f"{r:.3f}:{v:.4f}" for r, v in zip(rates, values, strict=True))


def main() -> None:
    options = parse(Options, description=__doc__)
    within(options, lengths=(1, 12), state_lengths=(1, 20), messages=(1, 1024), slack=(0, 1), seed=SEEDS)
    check_output(options.out, "name another --out", FIGURE_MARK)
    figure_format(options.out)
    torch.set_num_threads(1)
    block = example_law()
    information, law = measure(block), letter(block)
    i_us, i_ux, i_key = (float(x) for x in (information.i_us, information.i_ux, information.i_ux_given_s))
    generator = torch.Generator().manual_seed(options.seed)
    bin_rates = [i_us * share for share in (0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4)]
    key_rates = [i_key * share for share in (0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2)]
    message_rates = [(i_ux - i_us) * share for share in (0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75)]
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4))
    print(f"I(U;S) = {i_us:.4f}, I(U;X|S) = {i_key:.4f}, I(U;X) = {i_ux:.4f} bits per letter")
    for n, colour in zip(options.state_lengths, ("C0", "C1", "C2", "C3", "C4"), strict=False):
        values = state_curve(law, n, bin_rates, generator)
        left.plot(real_rates(bin_rates, n), values, "o-", color=colour, label=f"n = {n}")
        print(row(n, "R_0", real_rates(bin_rates, n), values))
    for n, colour in zip(options.lengths, ("C0", "C1", "C2", "C3", "C4"), strict=False):
        bins = size_of(i_us + options.slack, n)
        means, worst = key_curves(law, n, bins, key_rates, options, generator)
        errors = error_curve(law, n, bins, message_rates, generator)
        keys, sent = real_rates(key_rates, n), real_rates(message_rates, n)
        middle.plot(keys, means, "o-", color=colour, label=f"n = {n}, mean over messages")
        middle.plot(keys, worst, "v:", color=colour, label=f"n = {n}, worst message")
        right.plot(sent, errors, "o-", color=colour, label=f"n = {n}, J = {bins}: $R_0$ = {math.log2(bins) / n:.3f}")
        print(row(n, "R_K mean", keys, means))
        print(row(n, "R_K worst", keys, worst))
        print(row(n, "R error", sent, errors))
    left.axvline(i_us, color="grey", linestyle="--")
    left.set(
        xlabel="$R_0$, bits per letter", ylabel=r"$V(P_S^n,\ \frac{1}{J}\sum_j P(s^n|u^n_j))$", title="$R_0 > I(U;S)$"
    )
    middle.axvline(i_key, color="grey", linestyle="--")
    middle.axvline(i_key - options.slack, color="grey", linestyle=":")
    middle.set(xlabel="$R_K$, bits per letter", ylabel=r"$V(\tilde P^m_{X^nS^n},\ P_{XS}^n)$", title="$R_K > I(U;X|S)$")
    right.axvline(i_ux - i_us, color="grey", linestyle="--")
    right.axvline(i_ux - i_us - options.slack, color="grey", linestyle=":")
    right.set(xlabel="$R$, bits per letter", ylabel="error probability", title="$R < I(U;X) - I(U;S)$")
    for axes in (left, middle, right):
        axes.set_ylim(0, 1)
        axes.legend(fontsize=7)
    figure.tight_layout()
    save_figure(figure, options.out)
    print(f"wrote {options.out}")


if __name__ == "__main__":
    run_benchmark(main)

"""The paper's two figures: bit error rate against rate, and total variation against the number of keys."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from polar.code.decoders import KNOWLEDGE, decoder_named
from polar.evaluation.points import AdaptivePoint, CodeFigures, OperatingPoint
from polar.evaluation.report import variation_curves
from wm_env.common.figures import COLOURS, new_figure
from wm_env.theory.limits import Limit

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_LARGEST_MARKER = 6.0
"""Of the first decoder's filled markers, in points."""

_SMALLER = 0.75
"""By which factor the markers of each decoder are smaller than those of the one before, which so can be seen below."""

_RING = 6
"""What an open marker is larger than a filled one, in points, so that neither hides the other."""

_OWN_LIMIT = {
    "color": "black",
    "marker": "_",
    "markersize": 22,
    "markeredgewidth": 2,
    "linewidth": 1,
    "label": "limit of all codes of one block at this TV",
}
_ZERO_LIMIT = {"color": "grey", "linestyle": ":", "linewidth": 1.5, "label": "limit at TV 0"}

_LEAST_ERROR = 1e-3
"""The error axis reaches at least so far: rounding errors of an exact zero are not to fill it."""

_BESIDE = 0.1
"""Message bits between decoders that stand side by side."""

_BARS = 0.03
"""Message bits between the intervals of decoders whose markers share a place."""


def ber_figure(
    points: Sequence[OperatingPoint],
    limits: Mapping[int, Limit],
    block_length: int,
    adapted: AdaptivePoint | None = None,
    title: str = "",
) -> Figure:
    """Bit error rate against bits per token with a key as long as the message, one curve per decoder and knowledge.

    Where that key is missing other points are shown, see `one_key_points`. The limit is phi, below which
    no code of fixed length can be, at the total variation that the code of each message length spends, and at none. A
    star marks messages whose length follows the state, which neither limit is about. With one message length there are
    no curves, and the decoders stand side by side. Vertical bars are the intervals of the measured rates.
    """
    figure, (axes,) = new_figure(title)
    shown = one_key_points(points)
    spent = {point.message_bits: point.tv_mean for point in shown}
    _plot_limit(axes, block_length, {bits: limits[bits].bit_error(tv) for bits, tv in spent.items()}, _OWN_LIMIT)
    _plot_limit(axes, block_length, {bits: limits[bits].bit_error(0.0) for bits in spent}, _ZERO_LIMIT)
    decoders = list(dict.fromkeys(point.decoder for point in shown))
    known = list(dict.fromkeys(point.state_knowledge for point in shown))
    alone = len(spent) == 1
    measured = 0
    for number, decoder in enumerate(decoders):
        for knowledge in known:
            curve = [p for p in shown if p.decoder == decoder and p.state_knowledge == knowledge]
            place = (len(known) * number + known.index(knowledge) - (len(decoders) * len(known) - 1) / 2) / block_length
            shift = place * _BESIDE if alone else 0.0
            rates, colour = [p.rate_bits_per_token + shift for p in curve], COLOURS[number % len(COLOURS)]
            beside = 0.0 if alone else place * _BARS
            measured += _plot_intervals(axes, [rate + beside for rate in rates], curve, colour)
            axes.plot(
                rates,
                [p.ber for p in curve],
                color=colour,
                marker=decoder_named(decoder).marker,
                markersize=_LARGEST_MARKER * _SMALLER**number + (0 if knowledge == "path" else _RING),
                linestyle="-" if knowledge == "path" else "--",
                fillstyle="full" if knowledge == "path" else "none",
                clip_on=False,
                label=f"{decoder_named(decoder).title}, state {KNOWLEDGE[knowledge]}",
            )
    if adapted is not None:
        rate = adapted.mean_bits / block_length
        label = f"length follows the state, TV {adapted.tv_mean:.3f}"
        colour = COLOURS[len(decoders) % len(COLOURS)]
        measured += _plot_intervals(axes, [rate], [adapted], colour)
        axes.plot([rate], [adapted.ber], "*", color=colour, markersize=12, clip_on=False, label=label)
    if measured:
        axes.vlines([], 0, 0, color="grey", linewidth=2, label="95 % interval of the measured rate")
    axes.set_xticks([bits / block_length for bits in spent], [_rate_tick(bits, block_length, spent) for bits in spent])
    axes.set_xlabel("rate, message bits per token; below it message bits and total variation (TV), per block")
    axes.set_ylabel("bit error rate (fraction of message bits)")
    axes.margins(x=0.1)
    axes.set_xlim(left=0, right=(max(spent) + 1) / block_length if alone else None)
    axes.set_ylim(0, max(axes.get_ylim()[1], _LEAST_ERROR))
    _legend(axes)
    return figure


def _plot_limit(axes: Axes, block_length: int, limit: Mapping[int, float], style: Mapping[str, Any]) -> None:
    """A limit by message bits per block; a single one is no line, and gets a mark."""
    marked: dict[str, Any] = {"marker": "_", "markersize": 12} if len(limit) == 1 else {}
    axes.plot([bits / block_length for bits in limit], list(limit.values()), clip_on=False, **{**marked, **style})


def _plot_intervals(axes: Axes, rates: Sequence[float], points: Sequence[CodeFigures], colour: str) -> int:
    """A vertical bar for the measured interval of every point that has one; how many have."""
    bars = [(rate, *point.ber_mc_ci95) for rate, point in zip(rates, points, strict=True) if point.ber_mc_ci95]
    for rate, low, high in bars:
        axes.vlines(rate, low, high, color=colour, alpha=0.5, linewidth=2)
    return len(bars)


def _rate_tick(bits: int, block_length: int, variation: Mapping[int, float]) -> str:
    return f"{bits / block_length:.3f}\n{bits} bit{'s' if bits > 1 else ''}\nTV {variation[bits]:.3f}"


def variation_figure(points: Sequence[OperatingPoint], block_length: int, title: str = "") -> Figure:
    """Mean total variation against the number of keys, one colour per message length, by use of the surplus key."""
    figure, (axes,) = new_figure(title)
    lengths = sorted({point.message_bits for point in points})
    for bits, way, by_keys in variation_curves(points):
        number = lengths.index(bits) % len(COLOURS)
        keys = sorted(by_keys)
        axes.plot(
            keys,
            [by_keys[k] for k in keys],
            color=COLOURS[number],
            marker=_MARKERS[number],
            markersize=_LARGEST_MARKER + (_RING if way == "dither" else 0),
            clip_on=False,
            linestyle="--" if way == "dither" else "-",
            fillstyle="none" if way == "dither" else "full",
            label=f"{bits / block_length:.3f} bits/token" + ("" if way == "none" else f", {way}"),
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted({point.keys for point in points}))
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_xlabel("keys per block (number)")
    axes.set_ylabel("total variation per block (mean over messages)")
    axes.set_ylim(bottom=0)
    _legend(axes, "key bits beyond the message: frozen, they fix positions of V; dither, they shift the draw")
    return figure


def one_key_points(points: Sequence[OperatingPoint]) -> list[OperatingPoint]:
    """Of every message length the points with the longest key that only pads.

    Where there is none, those with the shortest key, with frozen bits if both ways to spend it are there.
    """
    keys: dict[int, set[tuple[int, str]]] = {}
    for point in points:
        keys.setdefault(point.message_bits, set()).add((point.keys, point.surplus_key))
    chosen = {
        bits: max(
            (each for each in choice if each[1] == "none"),
            default=min(choice, key=lambda key: (key[0], key[1] != "frozen")),
        )
        for bits, choice in keys.items()
    }
    return [point for point in points if (point.keys, point.surplus_key) == chosen[point.message_bits]]


def _legend(axes: Axes, title: str | None = None) -> None:
    """Above the axes, where it hides no curve."""
    axes.legend(
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=2,
        fontsize=8,
        frameon=False,
        title=title,
        title_fontsize=8,
    )

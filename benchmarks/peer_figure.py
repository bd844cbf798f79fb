"""The figure of the comparison block by block."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from peer_blocks import Figures

from wm_env.common.figures import COLOURS, new_figure, save_figure

_STYLES = {
    "coded plan + polar": (0, "o", "-"),
    "coded plan + polar, 4 dither bits": (0, "s", "--"),
    "GP plan + polar": (7, "*", "-"),
    "iMEC": (1, "^", "-"),
    "OD-Stega + iMEC": (1, "v", "--"),
    "SparSamp": (2, "D", "-"),
    "Discop": (3, "P", "-"),
    "keyed colours": (4, "X", "-"),
}


@dataclass(frozen=True)
class Row:
    """A line of the tables.

    Attributes:
        name: of the scheme.
        bits: l.
        knowledge: of the receiver.
        overlap: of a synthetic tree.
        figures: what was measured.
    """

    name: str
    bits: int
    knowledge: str
    overlap: float
    figures: Figures


def draw(exact: Sequence[Row], budgets: Sequence[Row], overlaps: Sequence[Row], path: Path) -> None:
    """Block error against message length at TV 0, against TV, and against the overlap of candidate sets."""
    figure, axes = new_figure("", 3)
    by_length = [row for row in exact if row.knowledge == "state" and row.figures.tv < 1e-9]
    _curves(axes[0], by_length, [row.bits for row in by_length])
    axes[0].set_xticks(sorted({row.bits for row in by_length}))
    axes[0].set_xlabel("message bits per block of 8 tokens")
    axes[0].set_title("shipped tree, state known, TV 0", fontsize=10)
    _curves(axes[1], budgets, [row.figures.tv for row in budgets])
    axes[1].set_xlabel("total variation per block, exact")
    axes[1].set_title("shipped tree, state known, 3 bits", fontsize=10)
    _curves(axes[2], overlaps, [row.overlap for row in overlaps])
    axes[2].set_xlabel("share of candidates common to all states")
    axes[2].set_title("synthetic, state unknown, 3 bits, TV 0", fontsize=10)
    for each in axes:
        each.set_ylabel("block error rate")
        each.set_ylim(bottom=0)
    labels = {label: handle for each in axes for handle, label in zip(*each.get_legend_handles_labels(), strict=True)}
    figure.legend(labels.values(), labels.keys(), loc="outside upper center", ncols=4, fontsize=9, frameon=False)
    save_figure(figure, path)


def _curves(axes: Axes, rows: Sequence[Row], places: Sequence[float]) -> None:
    for name in dict.fromkeys(row.name.split(", delta")[0] for row in rows):
        colour, marker, line = _STYLES[name]
        points = sorted(
            (place, row.figures.bler)
            for row, place in zip(rows, places, strict=True)
            if row.name.split(", delta")[0] == name
        )
        axes.plot(*zip(*points, strict=True), color=COLOURS[colour], marker=marker, linestyle=line, label=name)

"""Figures without a window: colours, plain axes, files in the format that their name ends with, and pixels.

Matplotlib refuses to be imported if MPLBACKEND names a backend that it cannot find, as it does in processes that a
notebook of another environment has started. Figures that go to files and arrays need no backend: import Matplotlib's
classes from here.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wm_env.common.files import write_atomically
from wm_env.common.foreign.visible import spelt, visible


@contextmanager
def _without_backend() -> Iterator[None]:
    named = os.environ.pop("MPLBACKEND", None)
    try:
        yield
    finally:
        if named is not None:
            os.environ["MPLBACKEND"] = named


with _without_backend():
    from matplotlib import rc_context
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontProperties, findfont, get_font
    from matplotlib.ticker import MaxNLocator

__all__ = [
    "COLOURS",
    "FIGURE_MARK",
    "FORMATS",
    "Axes",
    "Figure",
    "MaxNLocator",
    "figure_format",
    "figure_text",
    "new_figure",
    "pixels",
    "save_figure",
]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")
"""Okabe and Ito's palette, which stays distinct under the common kinds of colour blindness."""

FORMATS = ("png", "pdf", "svg")

FIGURE_MARK = "covert-watermark"
"""In the metadata of every figure, for `wm_env.common.files.check_output`."""

_DOTS_PER_INCH = 150


def figure_text(text: str) -> str:
    """Any text as Matplotlib draws it as it is, in lines: a dollar would begin a formula.

    Letters that the font does not have, which would be empty boxes, are spelt out, as in \\u6c34; and so is what
    `visible` spells out.
    """
    known = get_font(findfont(FontProperties())).get_charmap()
    letters = (letter if letter == "\n" or ord(letter) in known else spelt(letter) for letter in visible(text, "\n"))
    return "".join(letters).replace("$", r"\$")


def new_figure(title: str, panels: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure with a title, any text, and panels beside each other, each with a grid and no box."""
    figure = Figure(figsize=(7 * panels**0.75, 5.2), layout="constrained")
    figure.suptitle(figure_text(title), fontsize=9)
    axes = [figure.add_subplot(1, panels, number) for number in range(1, panels + 1)]
    for each in axes:
        each.grid(alpha=0.3)
        each.spines[["top", "right"]].set_visible(False)
    return figure, axes


def figure_format(path: Path) -> str:
    """The format that the name of a figure's file ends with.

    Raises:
        ValueError: it is none of `FORMATS`.
    """
    ending = path.suffix.removeprefix(".").lower()
    if ending not in FORMATS:
        raise ValueError(f"{path}: the name of a figure ends in .{', .'.join(FORMATS[:-1])} or .{FORMATS[-1]}")
    return ending


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure, whole or not at all, in the format that the name of the file ends with.

    Equal figures make equal files: no date is written.

    Raises:
        OSError: the file cannot be written.
        ValueError: the name ends with no format.
    """
    kind = figure_format(path)
    metadata: dict[str, dict[str, Any]] = {
        "png": {"Software": FIGURE_MARK},
        "pdf": {"Creator": FIGURE_MARK, "CreationDate": None},
        "svg": {"Creator": FIGURE_MARK, "Date": None},
    }
    # Without a salt the names inside an SVG file are drawn at random.
    with rc_context({"svg.hashsalt": "covert-watermark"}):
        write_atomically(
            path, lambda temporary: figure.savefig(temporary, format=kind, dpi=_DOTS_PER_INCH, metadata=metadata[kind])
        )


def pixels(figure: Figure) -> NDArray[np.uint8]:
    """The picture, shape (height, width, 3); without pyplot, which keeps figures and wants a backend."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    picture: NDArray[Any] = np.asarray(canvas.buffer_rgba())  # type: ignore[no-untyped-call]
    return picture[..., :3].copy()

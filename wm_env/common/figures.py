"""Matplotlib's figures without a window, whatever the environment says of windows.

Matplotlib refuses to be imported if MPLBACKEND names a backend that it cannot find, as it does in processes that a
notebook of another environment has started. Nothing here needs a backend: figures go to files and arrays.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _without_backend() -> Iterator[None]:
    named = os.environ.pop("MPLBACKEND", None)
    try:
        yield
    finally:
        if named is not None:
            os.environ["MPLBACKEND"] = named


with _without_backend():
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

__all__ = ["Figure", "FigureCanvasAgg", "MaxNLocator"]

"""How far long work has come: a bar on a terminal, else a line now and then, both with the time that is left."""

import math
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tqdm import tqdm

from wm_env.common.command import is_terminal, say, tell

SECONDS_BEFORE_BAR = 1.0
SECONDS_BETWEEN_LINES = 10.0
LONG = 60.0
"""Seconds of work from which on the time that is left is told after the first unit."""

Report = Callable[[int, int, str], None]
"""(units done, units in all, what is counted), as `ProgressBar.update` takes them."""


def no_report(done: int, total: int, counted: str) -> None:
    """The report of those who need none."""


def duration(seconds: float) -> str:
    """A time as [hours:]minutes:seconds."""
    return str(tqdm.format_interval(round(seconds)))


class ProgressBar:
    """A context with a bar on standard error if that is a terminal, else lines there.

    Work that takes less than a second shows no bar. Lines come every 10 seconds, and after the first unit if the rest
    will take more than a minute. The pace is that since the line before: work that an earlier process finished took no
    time in this one.

    Args:
        total: units in all; infinite if it is not known yet.
        unit: what is counted, such as "step".
        done: units that were done before.
        shown: False in a process that another one speaks for.
        every: seconds between lines, 10 if left out.
    """

    def __init__(
        self,
        total: float = math.inf,
        unit: str = "",
        done: int = 0,
        *,
        shown: bool = True,
        every: float | None = None,
    ) -> None:
        self.shown = shown
        self._every = SECONDS_BETWEEN_LINES if every is None else every
        self._bar = tqdm(
            total=_finite(total),
            unit=unit,
            initial=done,
            disable=not (shown and is_terminal(sys.stderr)),
            delay=SECONDS_BEFORE_BAR,
            leave=False,
        )
        self._total, self._unit = total, unit
        self._start = time.monotonic()
        self._last, self._told = (done, self._start), False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()

    @property
    def is_bar(self) -> bool:
        """Whether there is a bar, not lines."""
        return not self._bar.disable

    def update(
        self, done: int, total: float | None = None, counted: str = "", note: Callable[[], str] | None = None
    ) -> None:
        """Tell how many units are done.

        Args:
            done: units; fewer than before if the work was begun again.
            total: units in all, where it has changed.
            counted: what they are, where it changes.
            note: what else to show; called only when it is shown.
        """
        self._total = self._total if total is None else total
        if self.is_bar:
            self._bar.total = _finite(self._total)
            self._bar.set_description(counted, refresh=False)
            if note is not None:
                self._bar.set_postfix_str(note(), refresh=False)
            self._bar.update(done - self._bar.n)
        elif self.shown:
            self._tell(done, counted, note)

    def _tell(self, done: int, counted: str, note: Callable[[], str] | None) -> None:
        before, last = self._last
        now = time.monotonic()
        if done < before:
            before = done
        pace = (done - before) / max(now - last, 1e-9) or None
        is_long = not self._told and pace is not None and LONG < (self._total - done) / pace < math.inf
        if not is_long and now - last < self._every:
            return
        line = tqdm.format_meter(
            done, _finite(self._total) or 0, now - self._start, ncols=0, unit=self._unit, rate=pace, prefix=counted
        )
        tell(line if note is None else f"{line}, {note()}")
        self._last, self._told = (done, now), True

    def say(self, line: str) -> None:
        """Print a line on standard output, above the bar."""
        if self.shown:
            with tqdm.external_write_mode():
                say(line)


def _finite(total: float) -> int | None:
    return int(total) if math.isfinite(total) else None

"""How far a text is written or read: a bar on a terminal, else a plain line every few seconds."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

from wm_env.common.command import is_terminal, tell

SECONDS_BEFORE_BAR = 1.0
SECONDS_BETWEEN_LINES = 10.0

Report = Callable[[int, int, str], None]
"""(done, total, what is counted). A text that is begun again with another nonce, or its end, goes back to 0."""


def silence(done: int, total: int, counted: str) -> None:
    """The report of those who need none."""


@contextmanager
def progress() -> Iterator[Report]:
    """Yields the function to call, as often as one likes; what takes less than the constants above shows nothing."""
    start = last = time.monotonic()
    terminal = is_terminal(sys.stderr)
    with tqdm(unit="", disable=not terminal, delay=SECONDS_BEFORE_BAR, leave=False) as bar:

        def report(done: int, total: int, counted: str) -> None:
            nonlocal last
            now = time.monotonic()
            if terminal:
                bar.total = total
                bar.set_description(counted, refresh=False)
                bar.update(done - bar.n)
            elif now - last >= SECONDS_BETWEEN_LINES:
                tell(tqdm.format_meter(done, total, now - start, ncols=0, unit="", prefix=counted))
                last = now

        yield report

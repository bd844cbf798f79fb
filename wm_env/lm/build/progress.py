"""How far a build is: states per second, and the share of what the hardware's matrix products reach."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

from wm_env.common.command import is_terminal, tell
from wm_env.lm.build.crew import Crew

SECONDS_BETWEEN_LINES = 10.0

Report = Callable[[int, float], None]
"""(states that this process has finished, their FLOPs) -> None."""


@contextmanager
def progress(total: int, peak: float, crew: Crew) -> Iterator[Report]:
    """A bar with the time left on a terminal, else a plain line every few seconds; yields the function to call.

    Every process of the crew counts its states, and the first one shows the sum.

    Args:
        total: states of the tree.
        peak: FLOP/s of matrix products in one process; the share is that of the canvases' FLOPs, filler left out.
        crew: the processes.
    """
    start = last = time.monotonic()
    before = (0, 0.0)
    with tqdm(total=total, unit="state", disable=not (crew.first and is_terminal(sys.stderr))) as bar:

        def report(states: int, flops: float) -> None:
            nonlocal last, before
            done = crew.add("states", states)
            work = crew.add("MFLOP", int(flops / 1e6)) * 1e6
            now = time.monotonic()
            if not crew.first or (now - last < SECONDS_BETWEEN_LINES and done != total and bar.disable):
                return
            # Since the last line: states that an earlier build finished took no time in this one.
            share = (work - before[1]) / (max(now - last, 1e-9) * peak * crew.size)
            if bar.disable:
                rate = (done - before[0]) / max(now - last, 1e-9)
                line = tqdm.format_meter(done, total, now - start, ncols=0, unit="state", rate=rate)
                tell(f"{line}, {share:.0%} of the matrix peak")
            else:
                bar.set_postfix_str(f"{share:.0%} of the matrix peak", refresh=False)
                bar.update(done - bar.n)
            last, before = now, (done, work)

        yield report

"""How far a build is: states per second, and the share of what the hardware's matrix products reach."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from wm_env.common.progress import ProgressBar
from wm_env.lm.build.crew import Crew

Report = Callable[[int, float], None]
"""(states that this process has finished, their FLOPs) -> None."""


@contextmanager
def build_progress(total: int, peak: float, crew: Crew) -> Iterator[Report]:
    """A progress bar with the share of the matrix peak; yields the function to call.

    Every process of the crew counts its states, and the first one shows the sum.

    Args:
        total: states of the tree.
        peak: FLOP/s of matrix products in one process; the share is that of the canvases' FLOPs, filler left out.
        crew: the processes.
    """
    before, done, work = (time.monotonic(), 0.0), 0, 0.0

    def share() -> str:
        """Since it was asked last: states that an earlier build finished took no time in this one."""
        nonlocal before
        now = time.monotonic()
        part = (work - before[1]) / (max(now - before[0], 1e-9) * peak * crew.size)
        before = now, work
        return f"{part:.0%} of the matrix peak"

    with ProgressBar(total, "state", shown=crew.first) as bar:

        def report(states: int, flops: float) -> None:
            nonlocal done, work
            done = crew.add("states", states)
            work = crew.add("MFLOP", int(flops / 1e6)) * 1e6
            bar.update(done, note=share)

        yield report

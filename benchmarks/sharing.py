"""Spread the items of a benchmark over processes.

Every item has a number and makes its random draws from that, so the figures do not depend on the number of processes.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import active_children, get_context, parent_process
from typing import Any

import torch

from wm_env.common.progress import ProgressBar

Tally = dict[Any, float]
"""Counts and sums by name; those of different items add up."""


def add(total: Tally, part: Mapping[Any, float]) -> None:
    """Add `part` to `total`."""
    for name, value in part.items():
        total[name] = total.get(name, 0) + value


@dataclass(frozen=True)
class Share:
    """The items of one process, neighbours in number, as far as time allows.

    Attributes:
        index: number of the process, from 0.
        items: numbers of its items.
        end: when to stop, in seconds since the epoch.
    """

    index: int
    items: range
    end: float

    def device(self, name: str) -> str:
        """Where this process computes if `name` is "cuda": the processes take the GPUs in turn; else `name`."""
        return f"cuda:{self.index % max(1, torch.cuda.device_count())}" if name == "cuda" else name

    def numbers(self) -> Iterator[int]:
        """The items one after the other until the time is up; the first share tells on standard error how far it is.

        A process whose sum nobody waits for any more, since the first process was killed, ends here.
        """
        waits = parent_process()
        with ProgressBar(len(self.items), "item", shown=self.index == 0) as bar:
            for done, number in enumerate(self.items):
                if waits is not None and not waits.is_alive():
                    os._exit(1)
                if time.time() > self.end:
                    return
                bar.update(done, counted="first share")
                yield number


def run_shares(work: Callable[[Share], Tally], count: int, processes: int, minutes: float) -> Tally:
    """The sum of the tallies of `count` items, in as many fresh processes, or in this one if that is one.

    `work` must be importable in another process, such as a `functools.partial` of a module's function.

    Raises:
        ValueError: there are no items or processes, or not one item was done in time.
    """
    if count < 1 or processes < 1:
        raise ValueError("count and processes must be at least 1")
    end = time.time() + 60 * minutes
    bounds = [count * index // processes for index in range(processes + 1)]
    shares = [Share(index, range(*bounds[index : index + 2]), end) for index in range(processes)]
    total = work(shares[0]) if processes == 1 else _in_processes(work, shares)
    if not total:
        raise ValueError(f"no item was done in {minutes:g} minutes: allow more")
    return total


def _in_processes(work: Callable[[Share], Tally], shares: Sequence[Share]) -> Tally:
    total: Tally = {}
    with ProcessPoolExecutor(len(shares), mp_context=get_context("spawn")) as pool:
        # The processes ignore Ctrl-C as this one does while it starts them; this one hears it and ends them.
        usual = signal.signal(signal.SIGINT, signal.SIG_IGN)
        futures = [pool.submit(work, share) for share in shares]
        signal.signal(signal.SIGINT, usual)
        try:
            for future in as_completed(futures):
                add(total, future.result())
        except BaseException:
            for process in active_children():
                process.terminate()
            raise
    return total

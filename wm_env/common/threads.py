"""Numbers that do not depend on how many threads compute them.

How a matrix product is divided among threads changes the order of its sums, and so its last bits. Whoever computes
again what another process computed, as a decoder does, may have other cores. So on a CPU one thread computes a pass of
a language model, and several threads several passes at once; and a training run has a number of threads of its own.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from threading import Event, Lock, Thread
from typing import TypeVar

import torch

T = TypeVar("T")

_CHANGING = Lock()


def one_thread_after_fork() -> None:
    """In processes that are forked from now on torch computes with one thread.

    The threads of OpenMP do not survive a fork: a child that waits for them would wait for ever.
    """
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Within the context torch computes with so many threads for the caller's thread; other threads keep theirs."""
    before = torch.get_num_threads()
    set_own_threads(count)
    try:
        yield
    finally:
        set_own_threads(before)


def set_own_threads(count: int) -> None:
    """Let torch compute with so many threads for the caller's thread alone.

    torch keeps a number for each thread, and one that threads take over when they first compute.
    `torch.set_num_threads` sets the caller's and the latter; here another thread puts the latter back.
    """
    if torch.get_num_threads() == count:
        return
    asked, changed = Event(), Event()

    def keep() -> None:
        usual = torch.get_num_threads()
        asked.set()
        changed.wait()
        torch.set_num_threads(usual)

    with _CHANGING:
        keeper = Thread(target=keep)
        try:
            keeper.start()
            asked.wait()
            torch.set_num_threads(count)
        finally:
            # Ctrl-C may come in between: a thread that waits for ever would keep the process from ending.
            changed.set()
        keeper.join()


def side_by_side(work: Iterable[Callable[[], T]], workers: int) -> Iterator[T]:
    """The results in order, of `workers` calls at a time, in threads of their own with one thread of torch each.

    No more than that run or wait while the caller, in one thread too, is busy with a result. One worker is the caller's
    thread.
    """
    calls = iter(work)
    if workers == 1:
        yield from (call() for call in calls)
        return
    with ThreadPoolExecutor(workers, initializer=set_own_threads, initargs=(1,)) as pool, torch_threads(1):
        waiting = deque(pool.submit(call) for call in islice(calls, workers))
        while waiting:
            result = waiting.popleft().result()
            waiting.extend(pool.submit(call) for call in islice(calls, 1))
            yield result

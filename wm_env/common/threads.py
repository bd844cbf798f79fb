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
from typing import TypeVar

import torch

T = TypeVar("T")


def one_thread_after_fork() -> None:
    """In processes that are forked from now on torch computes with one thread.

    The threads of OpenMP do not survive a fork: a child that waits for them would wait for ever.
    """
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Within the context torch computes with so many threads; the setting is the whole process's."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def side_by_side(work: Iterable[Callable[[], T]], workers: int) -> Iterator[T]:
    """The results in order, of `workers` calls at a time, in threads of their own with one thread of torch each.

    No more than that run or wait while the caller, in one thread too, is busy with a result. One worker is the caller's
    thread.
    """
    calls = iter(work)
    if workers == 1:
        yield from (call() for call in calls)
        return
    with ThreadPoolExecutor(workers) as pool, torch_threads(1):
        waiting = deque(pool.submit(call) for call in islice(calls, workers))
        while waiting:
            result = waiting.popleft().result()
            waiting.extend(pool.submit(call) for call in islice(calls, 1))
            yield result

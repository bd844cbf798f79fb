"""Several threads stand for several processes: they share a store in memory as processes share one over the network."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed import HashStore

from wm_env.lm.build.crew import Crew, StoppedError


def run(size: int, work: Callable[[Crew], Any]) -> list[Any]:
    """What `work` returned or raised in each of `size` threads."""
    store, results = HashStore(), [None] * size

    def one(rank: int) -> None:
        try:
            results[rank] = work(Crew(rank, size, store))
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        # So that a deadlock does not last for ever; no machine is that slow.
        thread.join(timeout=600)
        assert not thread.is_alive()
    return results


@pytest.mark.parametrize("size", [1, 2, 5])
def test_every_piece_falls_to_one_process(size: int) -> None:
    def work(crew: Crew) -> list[int]:
        taken = []
        for piece in crew.pieces("work", 40):
            taken.append(piece)
            time.sleep(0.001 * crew.rank)
        return taken

    taken = run(size, work)
    assert sorted(piece for pieces in taken for piece in pieces) == list(range(40))
    assert all(pieces == sorted(pieces) for pieces in taken)


def test_a_slow_process_gets_fewer_pieces() -> None:
    """The slow one is still at its first piece when the other has made all the rest."""
    taken, rest_is_made = threading.Event(), threading.Event()

    def work(crew: Crew) -> list[int]:
        pieces = crew.pieces("work", 30)
        if crew.rank == 0:
            mine = [next(pieces)]
            taken.set()
            rest_is_made.wait()
            return [*mine, *pieces]
        taken.wait()
        mine = list(pieces)
        rest_is_made.set()
        return mine

    assert run(2, work) == [[0], list(range(1, 30))]


def test_nobody_goes_on_before_all_have_come() -> None:
    arrived: list[int] = []

    def work(crew: Crew) -> int:
        time.sleep(0.05 * crew.rank)
        arrived.append(crew.rank)
        crew.meet("here")
        return len(arrived)

    assert run(3, work) == [3, 3, 3]


def test_all_take_the_word_of_the_first() -> None:
    assert run(3, lambda crew: crew.agree("choice", f"mine {crew.rank}")) == ["mine 0"] * 3


def test_amounts_add_up_and_scopes_are_apart() -> None:
    def work(crew: Crew) -> tuple[int, int]:
        crew.add("n", 2)
        inner = crew.within("attempt").add("n", 5)
        crew.meet("added")
        return crew.add("n", 0), inner

    results = run(3, work)
    assert [total for total, _ in results] == [6, 6, 6]
    assert sorted(inner for _, inner in results) == [5, 10, 15]


@pytest.mark.parametrize("waiting", ["meet", "agree", "pieces"])
def test_a_failure_reaches_those_who_wait(waiting: str) -> None:
    def work(crew: Crew) -> None:
        with crew.together():
            if crew.rank == 1:
                raise torch.OutOfMemoryError("no memory")
            if waiting == "meet":
                crew.meet("never")
            elif waiting == "pieces":
                for _ in crew.pieces("endless", 10**9):
                    time.sleep(0.001)
            else:
                Crew(1, 2, crew.store).agree("never", "")

    first, second = run(2, work)
    assert isinstance(second, torch.OutOfMemoryError)
    assert isinstance(first, StoppedError)
    assert (first.kind, str(first)) == ("OutOfMemoryError", "no memory")


def test_of_several_failures_one_is_told() -> None:
    def work(crew: Crew) -> None:
        with crew.together():
            crew.meet("start")
            raise ValueError(f"process {crew.rank}")

    kinds = sorted(type(result).__name__ for result in run(4, work))
    assert kinds == ["StoppedError"] * 3 + ["ValueError"]

"""The processes that build one tree: this one alone, or as many as torchrun started on one machine or several.

They share no tensors, only a few words in torch's key-value store: which piece of work is taken, what is finished, and
whether one of them has failed. So nothing depends on the backend of the devices, pieces go to whoever is free, and a
process that waits for the others learns of a failure at once. Processes that train share gradients instead, at every
step and all together: `wm_env.lm.pretrain.cluster` is for them.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from torch.distributed import HashStore, PrefixStore, Store  # public, but not in its stubs
from torch.distributed.rendezvous import rendezvous

from wm_env.lm.torchrun import world_size

SECONDS_BETWEEN_LOOKS = 0.05
SECONDS_TO_LEAVE = 30.0


class StoppedError(Exception):
    """Another process of the crew failed; `kind` is the class name of its exception."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class Crew:
    """This process among the others: `rank` of `size`, and the store they share.

    `pieces`, `agree` and `meet` raise StoppedError if another process failed.
    """

    rank: int = 0
    size: int = 1
    store: Store = field(default_factory=HashStore)

    @classmethod
    @contextmanager
    def join(cls) -> "Iterator[Crew]":
        """Meet the processes that torchrun started, or be alone. The first one leaves last: it may hold the store."""
        if world_size() == 1:
            yield cls()
            return
        store, rank, size = next(rendezvous("env://"))
        crew = cls(rank, size, store)
        try:
            yield crew
        finally:
            left = crew.add("left", 1)
            end = time.monotonic() + SECONDS_TO_LEAVE
            while crew.first and left < size and time.monotonic() < end:
                time.sleep(SECONDS_BETWEEN_LOOKS)
                left = crew.add("left", 0)

    @property
    def first(self) -> bool:
        """Whether this process is the one that speaks and writes the tree."""
        return self.rank == 0

    def within(self, scope: str) -> "Crew":
        """The same processes with words of their own, for one attempt at something."""
        return replace(self, store=PrefixStore(scope, self.store))

    def add(self, name: str, amount: int) -> int:
        """The sum of all amounts that all processes have added under `name`, this one included."""
        return int(self.store.add(name, amount))

    def pieces(self, name: str, count: int) -> Iterator[int]:
        """The pieces of 0..count-1 that fall to this process, in rising order: the next one as soon as it asks."""
        while (piece := self.add(name, 1) - 1) < count:
            self.check()
            yield piece

    def agree(self, name: str, value: str) -> str:
        """The first process's value, in all of them."""
        if self.first:
            self.store.set(name, value)
        while not self.store.check([name]):
            self.check()
            time.sleep(SECONDS_BETWEEN_LOOKS)
        return str(self.store.get(name).decode())

    def meet(self, name: str) -> None:
        """Go on when all have come here."""
        here = self.add(name, 1)
        while here < self.size:
            self.check()
            time.sleep(SECONDS_BETWEEN_LOOKS)
            here = self.add(name, 0)

    def check(self) -> None:
        """Raise StoppedError if another process failed."""
        if self.store.check(["failure"]):
            raise StoppedError(*json.loads(self.store.get("failure")))

    @contextmanager
    def together(self) -> Iterator[None]:
        """An exception in the body of one process ends the body in all: there it is a StoppedError.

        Of several processes that fail at once, one keeps its exception, so that it is told once.
        """
        try:
            yield
        except StoppedError:
            raise
        except BaseException as error:
            if self.add("failures", 1) > 1:
                raise StoppedError(type(error).__name__, str(error)) from error
            self.store.set("failure", json.dumps([type(error).__name__, str(error)]))
            raise

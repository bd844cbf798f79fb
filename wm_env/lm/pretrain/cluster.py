"""The processes that train together: one, or as many as torchrun started (nccl between GPUs, gloo between CPUs).

They keep step with one another, so they talk in torch's collective operations, which average gradients at the speed of
the wires. The processes that build a tree take different pieces of work and call nothing together: theirs is
`wm_env.lm.build.crew`.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from wm_env.common.foreign.devices import usable_device
from wm_env.lm.torchrun import world_size


@dataclass(frozen=True)
class Cluster:
    """This process among the others. Every method but the properties must be called by all of them together."""

    rank: int
    size: int
    device: torch.device

    @classmethod
    @contextmanager
    def join(cls, device: str) -> "Iterator[Cluster]":
        """Join the processes torchrun started, or be alone, and leave them at the end.

        Args:
            device: "cpu", "cuda", or "auto" for CUDA where there is one.

        Raises:
            ValueError: as `usable_device`.
        """
        kind = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        size = world_size()
        place = usable_device(torch.device(kind, int(os.environ.get("LOCAL_RANK", "0")) if kind == "cuda" else 0))
        if kind == "cuda":
            torch.cuda.set_device(place)
        if size == 1:
            yield cls(0, 1, place)
            return
        dist.init_process_group("nccl" if kind == "cuda" else "gloo")
        try:
            yield cls(dist.get_rank(), size, place)
        finally:
            dist.destroy_process_group()

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes and speaks."""
        return self.rank == 0

    def wait(self) -> None:
        """Go on when all have come here."""
        self.agree(0.0)

    def agree(self, value: float) -> float:
        """The first process's value, in all of them."""
        if self.size == 1:
            return value
        shared = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.broadcast(shared, src=0)
        return float(shared)

    def average(self, parameters: Iterable[Tensor]) -> None:
        """Replace every gradient by its mean over the processes, in one message."""
        if self.size == 1:
            return
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        flat /= self.size
        pieces = torch.split(flat, [gradient.numel() for gradient in gradients])
        torch._foreach_copy_(gradients, [p.view_as(g) for p, g in zip(pieces, gradients, strict=True)])

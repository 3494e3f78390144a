"""Several processes, one model: gradients are averaged by hand after every backward pass.

Start the processes with `torchrun`, which sets RANK, WORLD_SIZE and the rendezvous address. Each process takes its
block of every global batch. Batch normalisation uses the statistics of the local block, or of
all (train/synchronise.py). When a process is lost, the
others notice in their next step and stop with `LostProcessError`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from surebound.errors import LostProcessError, first_line


@dataclass(frozen=True)
class Group:
    """The processes that train together; `Group()` is one process alone."""

    rank: int = 0
    size: int = 1

    @property
    def leader(self) -> bool:
        """Whether this process writes files and talks."""
        return self.rank == 0

    def sum_(self, values: Tensor) -> Tensor:
        """Replace `values` by their sum over all processes."""
        if self.size > 1:
            with _all_answer():
                dist.all_reduce(values)
        return values

    def average_(self, gradients: Sequence[Tensor], extras: Tensor) -> Tensor:
        """Average `gradients` over the processes in place; return the sums of `extras` (n,).

        One flat message instead of one per parameter.
        """
        if self.size == 1:
            return extras
        flat = torch.cat([g.reshape(-1) for g in gradients] + [extras.to(gradients[0].dtype)])
        with _all_answer():
            dist.all_reduce(flat)
        start = 0
        for gradient in gradients:
            n = gradient.numel()
            gradient.copy_(flat[start : start + n].view_as(gradient) / self.size)
            start += n
        return flat[start:].to(extras.dtype)

    def barrier(self) -> None:
        """Wait until every process is here."""
        if self.size > 1:
            with _all_answer():
                dist.barrier()

    def broadcast_(self, tensors: Sequence[Tensor]) -> None:
        """Give every process the leader's `tensors`."""
        if self.size > 1:
            with _all_answer():
                for tensor in tensors:
                    dist.broadcast(tensor.detach(), 0)


@contextmanager
def _all_answer() -> Iterator[None]:
    """Say in our words that a process has gone: the backend says that a connection was closed, or timed out."""
    try:
        yield
    except RuntimeError as error:
        raise LostProcessError(
            f"another process of this run is gone or does not answer ({first_line(error)}). What was trained is in the "
            "run's last checkpoint: `surebound resume RUN` goes on from there, with as many processes as torchrun is "
            "asked for; with another number than before it does not end with the same bits"
        ) from error


ALONE = Group()


@contextmanager
def process_group(backend: str = "gloo") -> Iterator[Group]:
    """Return the group that `torchrun` describes in the environment, or one process alone."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size <= 1:
        yield ALONE
        return
    owned = not dist.is_initialized()
    if owned:
        dist.init_process_group(backend)
    try:
        yield Group(dist.get_rank(), dist.get_world_size())
    finally:
        if owned:
            dist.destroy_process_group()

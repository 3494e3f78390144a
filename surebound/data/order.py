"""The order in which training draws its batches: a pure function of the seed and the step.

Nothing is kept between steps, so a run resumes from its step number alone, and each process of a distributed
run finds its own part without being told.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from surebound.errors import InputError


def stream(seed: int, *path: int | str) -> torch.Generator:
    """A CPU generator for one purpose, seeded by `seed` and `path` alone.

    >>> a, b = stream(0, "augment", 7), stream(0, "augment", 7)
    >>> torch.equal(torch.rand(3, generator=a), torch.rand(3, generator=b))
    True
    """
    digest = hashlib.blake2b(repr((seed, *path)).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


@lru_cache(maxsize=2)  # two: a batch may hold the end of one epoch and the beginning of the next
def _permutation(n: int, seed: int, epoch: int) -> Tensor:
    return torch.randperm(n, generator=stream(seed, "order", epoch))


@dataclass(frozen=True)
class BatchOrder:
    """Which of `n` examples make up the batch of a step; a new permutation for every epoch.

    The permutations of epochs 0, 1, 2, ... follow one another without a gap and are cut into batches: every
    batch is full and no example is ever skipped, which is how the paper counts (3200 epochs of CIFAR-10 in
    batches of 1600 are 100K steps). A batch is shared in equal blocks by `world_size` processes.

    >>> order = BatchOrder(10, batch_size=4, seed=0)
    >>> sorted(torch.cat([order.indices(step) for step in range(5)]).tolist()) == sorted(2 * list(range(10)))
    True
    >>> halves = [BatchOrder(10, 4, 0, rank=r, world_size=2).indices(7) for r in (0, 1)]
    >>> torch.equal(torch.cat(halves), order.indices(7))
    True
    """

    n: int
    batch_size: int  # of the global batch, over all processes
    seed: int
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.n < 1:
            raise InputError(f"an order needs at least 1 example, got n={self.n}")
        if not 1 <= self.batch_size <= self.n:
            raise InputError(f"batch_size must be between 1 and the {self.n} examples there are, got {self.batch_size}")
        if not 0 <= self.rank < self.world_size:
            raise InputError(f"rank must be between 0 and world_size - 1 = {self.world_size - 1}, got {self.rank}")
        if self.batch_size % self.world_size:
            raise InputError(
                f"a batch of {self.batch_size} cannot be shared equally by {self.world_size} processes; "
                f"choose a multiple of {self.world_size}"
            )

    @property
    def shard(self) -> tuple[int, int]:
        """(rank, world_size), as `Augment` takes it."""
        return self.rank, self.world_size

    def steps(self, epochs: int) -> int:
        """The number of full batches in `epochs` epochs."""
        return epochs * self.n // self.batch_size

    def epoch(self, step: int) -> int:
        """The epoch, counted from 0, in which the batch of `step` begins."""
        return step * self.batch_size // self.n

    def global_indices(self, step: int) -> Tensor:
        """Indices (batch_size,) of the whole batch of `step`, counted from 0."""
        if step < 0:
            raise InputError(f"steps are counted from 0, got {step}")
        epoch, first = divmod(step * self.batch_size, self.n)
        head = _permutation(self.n, self.seed, epoch)[first : first + self.batch_size]
        missing = self.batch_size - len(head)  # at most one epoch is left over: batch_size <= n
        if missing == 0:
            return head.clone()
        return torch.cat([head, _permutation(self.n, self.seed, epoch + 1)[:missing]])

    def indices(self, step: int) -> Tensor:
        """Indices (batch_size / world_size,) of this process's block of the batch of `step`."""
        share = self.batch_size // self.world_size
        return self.global_indices(step)[self.rank * share : (self.rank + 1) * share]

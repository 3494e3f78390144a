"""Draw at random, so that a seed repeats everything."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Draw(random.Random):
    """A random source of one trial, for Python and for tensors; named parts make their own seed.

    >>> Draw(1, "networks", 3).random() == Draw(1, "networks", 3).random()
    True
    """

    def __new__(cls, *names: object) -> Draw:
        return super().__new__(cls)

    def __init__(self, *names: object) -> None:
        digest = hashlib.sha256(repr(names).encode()).digest()
        super().__init__(int.from_bytes(digest[:8]))
        self.tensors = torch.Generator().manual_seed(int.from_bytes(digest[8:12]))

    def chance(self, share: float) -> bool:
        """Say yes so often."""
        return self.random() < share

    def pick(self, *options: T) -> T:
        """Return one of the options."""
        return self.choice(options)

    def several(self, options: Sequence[T], count: int) -> list[T]:
        """Return so many of the options, any of them again and again."""
        return [self.choice(options) for _ in range(count)]

    def uniform_tensor(self, shape: Sequence[int], low: float = 0.0, high: float = 1.0) -> Tensor:
        """Return numbers between ``low`` and ``high``, of a given shape."""
        return low + (high - low) * torch.rand(*shape, generator=self.tensors)

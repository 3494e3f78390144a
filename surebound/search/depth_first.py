"""Sub-problems that each keep a network of their own: the deepest first, one at a time, so that few are kept.

The pool is what waits, and the loop is that of every search (search/branch_and_bound.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from surebound.search.branch_and_bound import Tree, explore


class Keeper(Protocol):
    """A sub-problem of several cases."""

    @property
    def cases(self) -> Tensor:
        """Those (N,) that are open."""

    @property
    def depth(self) -> int:
        """How many cuts led to it."""


T = TypeVar("T", bound=Keeper)


@dataclass(frozen=True, eq=False)
class Stack(Generic[T]):
    """Sub-problems that wait; of two halves the first is taken first."""

    parts: tuple[T, ...]

    @property
    def urgency(self) -> Tensor:
        """Their depths (N,)."""
        return torch.tensor([part.depth for part in self.parts], dtype=torch.float64)

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, index: Tensor) -> Stack[T]:
        return Stack(tuple(self.parts[i] for i in index.tolist()))


class DepthFirst(ABC, Generic[T]):
    """Cuts sub-problems that keep a network (a ``Splitter``); what they settle, they settle in ``tree``."""

    at_once = 1

    def __init__(self, tree: Tree) -> None:
        self.tree = tree

    @abstractmethod
    def root(self) -> T:
        """Return the whole."""

    @abstractmethod
    def halves(self, part: T) -> list[T]:
        """Bound a sub-problem; settle what is proved or cannot be cut; return the halves of the rest."""

    def roots(self) -> Stack[T]:
        """Return the whole."""
        return Stack((self.root(),))

    def goes_on(self, pool: Stack[T], tree: Tree) -> bool:
        """Say whether nothing ends the search: what waits was bounded as a part of its whole only."""
        return not tree.over

    def join(self, parts: Sequence[Stack[T]]) -> Stack[T]:
        """Join several pools into one."""
        return Stack(tuple(part for pool in parts for part in pool.parts))

    def advance(self, batch: Stack[T], tree: Tree) -> Stack[T] | None:
        """Bound one sub-problem and cut it if that is not enough."""
        halves = [half for part in batch.parts for half in self.halves(part)]
        return Stack(tuple(halves)) if halves else None

    def finish(self, pool: Stack[T]) -> None:
        """Go on until everything is settled: what is still open in the end, with infinite bounds."""
        for part in explore(self, pool, self.tree).parts:
            self.tree.settle_cases(part.cases, torch.inf)

"""Sub-problems by parts of ranges: a few entries of values inside the network, each between two numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from surebound.bounds.linear.backward import Relaxed
from surebound.interval import Interval


@dataclass(frozen=True, eq=False)
class RangePool:
    """N open sub-problems, each with up to D entries in parts of their ranges."""

    case: Tensor  # (N,)
    upper: Tensor  # (N,) float64: the bound of the whole that it was cut from, or its own
    entry: Tensor  # (N, D) int64: which entry of all values (``Cuttable``); -1: none
    low: Tensor  # (N, D) in the network's dtype: the ends of its part
    high: Tensor  # (N, D)
    beta: Tensor  # (S, N, D): multipliers of the S rows

    @property
    def rounding(self) -> Tensor:
        """How much of the bounds is rounding is not known."""
        return torch.zeros_like(self.upper)

    @property
    def urgency(self) -> Tensor:
        """Take the most suspicious first: (N,)."""
        return self.upper

    def __len__(self) -> int:
        return len(self.case)

    def __getitem__(self, index: Tensor) -> RangePool:
        case, upper, entry, low, high = (v[index] for v in (self.case, self.upper, self.entry, self.low, self.high))
        return RangePool(case, upper, entry, low, high, self.beta[:, index])

    @classmethod
    def whole(cls, cases: int, rows: int, dtype: torch.dtype) -> RangePool:
        """Return the cases themselves, of which nothing is known."""
        none = torch.zeros(cases, 0, dtype=dtype)
        upper = torch.full((cases,), torch.inf, dtype=torch.float64)
        return cls(torch.arange(cases), upper, none.long(), none, none, none.expand(rows, cases, 0))

    @classmethod
    def cat(cls, pools: Sequence[RangePool]) -> RangePool:
        """Join several pools into one."""
        most = max(pool.entry.shape[1] for pool in pools)

        def joined(name: str, fill: float, axis: int) -> Tensor:
            values = [getattr(pool, name) for pool in pools]
            wide = [torch.nn.functional.pad(v, (0, most - v.shape[-1]), value=fill) for v in values]
            return torch.cat(wide, axis)

        case, upper = (torch.cat([getattr(pool, name) for pool in pools]) for name in ("case", "upper"))
        entry, low, high = (joined(name, fill, 0) for name, fill in (("entry", -1), ("low", 0), ("high", 0)))
        return cls(case, upper, entry, low, high, joined("beta", 0, 1))

    def cut(self, entry: Tensor, point: Tensor, low: Tensor, high: Tensor, betas: tuple[Tensor, Tensor]) -> RangePool:
        """Cut each at a point (N,) of one entry (N,), now between low and high (N,): all lower parts, all upper ones.

        betas: multipliers (S, N) to begin with, of the lower and of the upper parts.
        """
        same = self.entry == entry.unsqueeze(1)
        known = same.any(1)
        here = self
        if not bool(known.all()):  # one more place
            pad = torch.nn.functional.pad
            here = replace(
                self, entry=pad(self.entry, (0, 1), value=-1), low=pad(self.low, (0, 1)),
                high=pad(self.high, (0, 1)), beta=pad(self.beta, (0, 1)),
            )  # fmt: skip
            free = torch.nn.functional.pad(same, (0, 1)) | ((here.entry < 0) & ~known.unsqueeze(1))
        else:
            free = same
        at = free.to(torch.int8).argmax(1, keepdim=True)  # its own place, or the first that is free
        halves = []
        for ends, beta in zip(((low, point), (point, high)), betas, strict=True):
            place = at.expand(beta.shape[0], -1, -1)
            halves.append(
                replace(
                    here,
                    entry=here.entry.scatter(1, at, entry.unsqueeze(1)),
                    low=here.low.scatter(1, at, ends[0].unsqueeze(1)),
                    high=here.high.scatter(1, at, ends[1].unsqueeze(1)),
                    beta=here.beta.scatter(2, place, beta.unsqueeze(2)),
                )
            )
        return RangePool.cat(halves)


class Cuttable:
    """The entries of some values of a network, numbered one value after the other."""

    def __init__(self, root: Relaxed, names: Sequence[str]) -> None:
        self.shapes = {name: root.bounds[name].shape[1:] for name in names}
        self.first, count = dict[str, int](), 0
        for name, shape in self.shapes.items():
            self.first[name] = count
            count += shape.numel()
        self.count = count
        none = root.bounds[root.program.graph.input].lower.flatten()[:0]
        self.low, self.high = (
            torch.cat([none, *(getattr(root.bounds[name], end)[0].flatten() for name in names)])
            for end in ("lower", "upper")
        )

    def of(self, name: str) -> slice:
        """Return the numbers of a value's entries."""
        return slice(self.first[name], self.first[name] + self.shapes[name].numel())

    def spread(self, pool: RangePool) -> tuple[dict[str, Interval], dict[str, Tensor]]:
        """Return the parts (N, *value) and multipliers (S, N, *value) of the values in which something is cut."""
        count, used = len(pool), pool.entry >= 0
        low, high = (self._filled(v.expand(count, -1), pool.entry, new) for v, new in self._pairs(pool))
        beta = pool.beta.new_zeros(*pool.beta.shape[:2], self.count + 1)
        beta = beta.scatter(2, self._at(pool.entry).expand(pool.beta.shape), pool.beta)
        parts, betas = dict[str, Interval](), dict[str, Tensor]()
        for name, shape in self.shapes.items():
            own = self.of(name)
            if bool((used & (pool.entry >= own.start) & (pool.entry < own.stop)).any()):
                parts[name] = Interval(low[:, own].reshape(count, *shape), high[:, own].reshape(count, *shape))
                betas[name] = beta[:, :, own].reshape(*beta.shape[:2], *shape)
        return parts, betas

    def ends(self, pool: RangePool, entry: Tensor) -> tuple[Tensor, Tensor]:
        """Return the ends (N, K) of what some entries (N, K) may be in sub-problems."""
        low, high = (self._filled(v.expand(len(pool), -1), pool.entry, new) for v, new in self._pairs(pool))
        return low.gather(1, entry), high.gather(1, entry)

    def betas_of(self, pool: RangePool, betas: Mapping[str, Tensor]) -> Tensor:
        """Return the multipliers (S, N, D) of the entries that are cut from those of values (S, N, *value)."""
        found = pool.beta.new_zeros(*pool.beta.shape[:2], self.count + 1)
        for name, beta in betas.items():
            found[:, :, self.of(name)] = beta.flatten(2)
        return found.gather(2, self._at(pool.entry).expand(pool.beta.shape))

    def _pairs(self, pool: RangePool) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        return (self.low, pool.low), (self.high, pool.high)

    def _at(self, entry: Tensor) -> Tensor:
        """Return numbers with one behind the last for no entry."""
        return torch.where(entry >= 0, entry, self.count)

    def _filled(self, whole: Tensor, entry: Tensor, new: Tensor) -> Tensor:
        wide = torch.nn.functional.pad(whole, (0, 1))
        return wide.scatter(1, self._at(entry), new)[:, :-1]

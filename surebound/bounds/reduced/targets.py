"""The rows that sub-problems of a reduced network are bounded for: cases of several rows, mixed into one.

If every row of a case is > 0 somewhere, so is sum_s w_s row_s for weights w >= 0 that are not all 0: a mixture that is
<= 0 everywhere refutes the case, and a case of one row is its own mixture.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from surebound.bounds.reduced.passes import Passes


@dataclass(frozen=True, eq=False)
class TargetRow:
    """One row a.v + offset for each of n sub-problems; ``rounding_size`` (n,): see ``Passes.pull``."""

    a: Tensor  # (n, V)
    offset: Tensor  # (n,)
    rounding_size: Tensor | None

    def __getitem__(self, index: Tensor) -> TargetRow:
        return TargetRow(
            self.a[index],
            self.offset[index],
            None if self.rounding_size is None else self.rounding_size[index],
        )


@dataclass(frozen=True, eq=False)
class Targets:
    """The rows of N cases, S of each, over the columns v of a reduced network, in the dtype of its passes."""

    passes: Passes
    valid: Tensor  # (N, S) bool: cases may have fewer rows

    @property
    def width(self) -> int:
        """S."""
        return int(self.valid.shape[1])

    def rows(self, case: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of cases (n,): coefficients (n, S, V) and offsets (n, S)."""
        count, width = self.valid.shape
        up = self.passes.outputs.up.reshape(count, width, -1)
        return up[case], self.passes.outputs.up_offset.reshape(count, width)[case]

    def mixed(self, case: Tensor, weights: Tensor) -> TargetRow:
        """Return the mixtures of cases (n,) by weights (n, S); of one row, the row itself."""
        up, offset = self.rows(case)
        if self.width == 1:
            return TargetRow(up[:, 0], offset[:, 0], None)
        w = weights.to(up.dtype)
        a, total = torch.einsum("ns,nsv->nv", w, up), (w * offset).sum(1)
        # Sums of S products, relative to the sums of their sizes; a pass adds for many roundings of each.
        size = torch.einsum("ns,nsv->nv", w, up.abs()) @ self.passes.largest + (w * offset.abs()).sum(1)
        return TargetRow(a, total, size * (1 + self.width))

    def smallest(self, v: Tensor, case: Tensor) -> tuple[Tensor, Tensor]:
        """Return the smallest rows of cases (n,) at values v (n, V): their values (n,) and the rows (n, V)."""
        up, offset = self.rows(case)
        if self.width == 1:
            return torch.linalg.vecdot(v, up[:, 0]) + offset[:, 0], up[:, 0]
        values = torch.einsum("nv,nsv->ns", v, up) + offset
        values = torch.where(self.valid[case], values, torch.inf)
        least, at = values.min(1)
        return least, up.gather(1, at.reshape(-1, 1, 1).expand(-1, 1, up.shape[2]))[:, 0]

    def start(self, case: Tensor) -> Tensor:
        """Return equal weights of the rows of cases (n,): (n, S) float64."""
        valid = self.valid[case].double()
        return valid / valid.sum(1, keepdim=True)

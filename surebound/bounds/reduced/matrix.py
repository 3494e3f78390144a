"""The rows of a layer of a reduced network as a matrix that passes multiply with: dense, or what of it is not 0.

A unit of a convolution reads a window, so that most of its row is 0: of the first layers of a detector on 52 x 52
pixels 0.3 to 5 % are not. A product with a sparse matrix has a fifth of a dense one's speed at what is left, and takes
memory for two indices of each number. What is left out multiplies with 0 and adds nothing: bounds and rounding errors
are those of shorter sums.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

#: Sparse where at most this part of so many entries is not 0.
SPARSE = 1 / 8  # heuristic: measured, see PERFORMANCE.md
LARGE = 1 << 18


class Matrix(Protocol):
    """A matrix A (R, W)."""

    @property
    def width(self) -> int:
        """W."""

    @property
    def entries(self) -> int:
        """How many of its entries are not 0."""

    def add_back(self, work: Tensor, p: Tensor) -> None:
        """Add p A, p (N, R), to the first W columns of work (N, V)."""

    def forward(self, v: Tensor) -> Tensor:
        """Return A v for the first W columns of v (N, V): (N, R)."""

    def sizes(self, largest: Tensor) -> Tensor:
        """Return |A| largest (W,): (R,), up to rounding."""

    def dense(self) -> Tensor:
        """Return A itself: (R, W)."""

    def triples(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return rows, columns and values of what is not 0, row by row."""

    def to(self, dtype: torch.dtype) -> Matrix:
        """Convert to another dtype."""


@dataclass(frozen=True, eq=False)
class Dense:
    """A matrix with all of its entries."""

    values: Tensor  # (R, W)

    @property
    def width(self) -> int:
        return self.values.shape[1]

    @property
    def entries(self) -> int:
        return int(self.values.count_nonzero())

    def add_back(self, work: Tensor, p: Tensor) -> None:
        work[:, : self.width].addmm_(p, self.values)

    def forward(self, v: Tensor) -> Tensor:
        return v[:, : self.width] @ self.values.t()

    def sizes(self, largest: Tensor) -> Tensor:
        return self.values.abs() @ largest

    def dense(self) -> Tensor:
        return self.values

    def triples(self) -> tuple[Tensor, Tensor, Tensor]:
        row, column = self.values.nonzero(as_tuple=True)
        return row, column, self.values[row, column]

    def to(self, dtype: torch.dtype) -> Dense:
        return Dense(self.values.to(dtype))


@dataclass(frozen=True, eq=False)
class Sparse:
    """The entries of a matrix that are not 0, by rows and by columns (CSR and CSC)."""

    rows: Tensor  # (R, W)
    columns: Tensor  # (W, R): the transpose

    @classmethod
    def of(cls, matrix: Tensor) -> Sparse:
        """Take the entries of a matrix that are not 0."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls these layouts new
            rows = matrix.to_sparse_csr()
            columns = rows.to_sparse_csc()
            height, width = matrix.shape
            return cls(
                _csr(rows.crow_indices(), rows.col_indices(), rows.values(), (height, width)),
                _csr(columns.ccol_indices(), columns.row_indices(), columns.values(), (width, height)),
            )

    @property
    def width(self) -> int:
        return self.rows.shape[1]

    @property
    def entries(self) -> int:
        return self.rows.values().numel()

    def add_back(self, work: Tensor, p: Tensor) -> None:
        work[:, : self.width].add_((self.columns @ p.t().contiguous()).t())

    def forward(self, v: Tensor) -> Tensor:
        return (self.rows @ v[:, : self.width].t().contiguous()).t()

    def sizes(self, largest: Tensor) -> Tensor:
        rows = self.rows
        size = _csr(rows.crow_indices(), rows.col_indices(), rows.values().abs(), tuple(rows.shape))
        return (size @ largest.unsqueeze(1)).squeeze(1)

    def dense(self) -> Tensor:
        return self.rows.to_dense()

    def triples(self) -> tuple[Tensor, Tensor, Tensor]:
        rows = self.rows
        count = rows.crow_indices().diff().long()
        return torch.arange(len(count)).repeat_interleave(count), rows.col_indices().long(), rows.values()

    def to(self, dtype: torch.dtype) -> Sparse:
        return Sparse(self.rows.to(dtype), self.columns.to(dtype))


def _csr(starts: Tensor, index: Tensor, values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Make a sparse matrix with indices of 32 bits, as the library that multiplies wants them."""
    return torch.sparse_csr_tensor(starts.int(), index.int(), values, shape)


def matrix_of(values: Tensor) -> Matrix:
    """Return a matrix (R, W) as passes multiply with it best."""
    large = LARGE <= values.numel() < 1 << 31 and values.device.type == "cpu" and torch._C.has_mkl
    if not large or int(values.count_nonzero()) > SPARSE * values.numel():
        return Dense(values)
    return Sparse.of(values)

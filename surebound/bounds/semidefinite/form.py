"""The quadratic form of a network with one hidden layer, and its largest eigenvalues (Raghunathan et al. 2018)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class HiddenForm:
    """Matrices M (R, N, N) of the sums over hidden units of rows_j (y_0 + u_j) (weight t)_j, y = (y_0, u, t), twice.

    Over y_0 = 1 and u, t in [-1, 1], a quarter of y.My bounds how far a row's output moves in the unit box: a unit's
    activation, whose slopes lie in [0, 1], moves by some s_j in [0, 1] times what its input does, and s = (1 + u) / 2.
    """

    rows: Tensor  # (R, m): coefficients of the hidden units
    weight: Tensor  # (m, d)

    @property
    def size(self) -> int:
        """N = 1 + m + d."""
        return 1 + sum(self.weight.shape)

    def apply(self, y: Tensor) -> Tensor:
        """Multiply M with vectors (R, N)."""
        head, units, inputs = y[:, :1], y[:, 1 : 1 + len(self.weight)], y[:, 1 + len(self.weight) :]
        moved = self.rows * (inputs @ self.weight.t())  # (R, m)
        back = (self.rows * (units + head)) @ self.weight  # (R, d)
        return torch.cat([moved.sum(1, keepdim=True), moved, back], 1)

    def matrix(self, row: int) -> Tensor:
        """Write M of one row out: (N, N)."""
        units = self.rows[row].unsqueeze(1) * self.weight  # (m, d)
        block = torch.cat([units.sum(0, keepdim=True), units])  # (1 + m, d)
        top = torch.cat([block.new_zeros(len(block), len(block)), block], 1)
        return torch.cat([top, torch.cat([block.t(), block.new_zeros(block.shape[1], block.shape[1])], 1)])

    def row_sums(self) -> Tensor:
        """Return the sums of |M| over its rows (R, N): with these on the diagonal M has no positive eigenvalue."""
        sizes = self.weight.abs()
        units = self.rows.abs() * sizes.sum(1)  # (R, m)
        head = (self.rows @ self.weight).abs()  # (R, d)
        return torch.cat([head.sum(1, keepdim=True), units, head + self.rows.abs() @ sizes], 1)

    def value(self, dual: Tensor, vectors: Tensor) -> Tensor:
        """Return N max(0, v.(M - diag(dual))v) + sum max(dual, 0) for unit vectors and dual variables (R, N): (R,).

        At the top eigenvectors this is the dual objective (their equation for two layers), differentiable in rows,
        weight and dual; at any others it is less.
        """
        shifted = self.apply(vectors) - dual * vectors
        return self.size * (shifted * vectors).sum(1).clamp(min=0) + dual.clamp(min=0).sum(1)

    def top_vectors(self, dual: Tensor, start: Tensor, steps: int) -> Tensor:
        """Approach the top eigenvectors of M - diag(dual) by ``steps`` steps of Lanczos from start (R, N)."""
        with torch.no_grad():
            return lanczos(lambda y: self.apply(y) - dual * y, start, steps)


def lanczos(apply: Callable[[Tensor], Tensor], start: Tensor, steps: int) -> Tensor:
    """Return unit vectors (R, N) near the top eigenvectors of symmetric maps, from start (R, N)."""
    small = torch.finfo(start.dtype).tiny  # heuristic: any vectors give a valid dual objective in the end
    vector = start / start.norm(dim=1, keepdim=True).clamp(min=small)
    basis, diagonal, beside = [vector], [], []
    for _ in range(min(steps, start.shape[1])):
        image = apply(basis[-1])
        diagonal.append((image * basis[-1]).sum(1))
        known = torch.stack(basis)  # (k, R, N)
        for _ in range(2):  # twice is enough
            image = image - torch.einsum("kr,krn->rn", (known * image).sum(2), known)
        length = image.norm(dim=1, keepdim=True)
        beside.append(length.squeeze(1))
        basis.append(image / length.clamp(min=small))
    tridiagonal = torch.diag_embed(torch.stack(diagonal, 1))
    if len(diagonal) > 1:
        below, above = (torch.diag_embed(torch.stack(beside[:-1], 1), k) for k in (-1, 1))
        tridiagonal = tridiagonal + below + above
    mixture: Tensor = torch.linalg.eigh(tridiagonal)[1][:, :, -1]  # (R, steps)
    found: Tensor = torch.einsum("rk,krn->rn", mixture, torch.stack(basis[:-1]))
    lengths: Tensor = found.norm(dim=1, keepdim=True).clamp(min=small)
    return found / lengths

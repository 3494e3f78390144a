"""A rigorous upper bound of the largest eigenvalue of a symmetric matrix, whatever computed its eigenvectors."""

from __future__ import annotations

import torch
from torch import Tensor

from surebound.numerics.slack import UNDERFLOW, several_sums, slightly_up


def largest_eigenvalue(matrix: Tensor) -> float:
    """Bound the largest eigenvalue of a symmetric float64 matrix (N, N) from above; never below 0.

    Let Q be any matrix; here the computed eigenvectors. x = Q y gives, if Q is regular,

        max x.Ax / x.x  =  max y.(Q'AQ)y / y.(Q'Q)y  <=  max(0, largest eigenvalue of Q'AQ) / least eigenvalue of Q'Q,

    the one at most Gershgorin's largest row of Q'AQ, the other at least 1 - |Q'Q - I| (row sums). Both products are
    computed, with the rounding error bound of matrix products in any order (docs/soundness.md); so nothing rests on
    the eigenvectors but how tight it is. Infinite where they are too bad, or where anything is not finite.
    """
    count = len(matrix)
    if count == 0:
        return 0.0
    if not bool(matrix.isfinite().all()):
        return float("inf")
    vectors = torch.linalg.eigh(matrix)[1]
    sizes, rate = vectors.abs(), several_sums(count + 8, 4)
    ones = matrix.new_ones(count)
    product = matrix @ vectors
    turned, gram = vectors.t() @ product, vectors.t() @ vectors
    # Row sums of the error bounds: |Q'| (gamma |A Q| + gamma |A| |Q|) 1, and gamma |Q'| |Q| 1.
    lost = sizes.t() @ (product.abs() @ ones + matrix.abs() @ (sizes @ ones)) * rate
    off = turned.abs().sum(1) - turned.diagonal().abs()
    rows = turned.diagonal() + slightly_up(off + lost) + turned.abs().sum(1) * rate
    top = float(rows.max()) + UNDERFLOW
    away = slightly_up((gram - torch.eye(count, dtype=gram.dtype, device=gram.device)).abs().sum(1))
    worst = float((away + slightly_up(sizes.t() @ (sizes @ ones) * rate)).max()) + UNDERFLOW
    if not (worst < 0.5 and top < float("inf")):
        return float("inf")
    return slightly_up(max(top, 0.0) / (1.0 - worst))

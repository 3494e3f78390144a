"""Matrices of layers: what is kept of a sparse one is what a dense one multiplies with."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import surebound as sb
from surebound.bounds.reduced import matrix
from surebound.bounds.reduced.matrix import Dense, Sparse, matrix_of
from surebound.bounds.reduced.passes import bounds_of_rows
from surebound.bounds.reduced.reduction import reduce_network
from surebound.graph import program_of
from surebound.numerics import Soundness


def values(dtype: torch.dtype) -> Tensor:
    torch.manual_seed(0)
    whole = torch.randint(-8, 9, (7, 11)).to(dtype)  # sums of whole numbers are exact
    return torch.where(torch.rand(7, 11) < 0.3, whole, 0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_sparse_matrix_multiplies_as_a_dense_one(dtype: torch.dtype) -> None:
    a = values(dtype)
    a[3] = 0
    a[:, 5] = 0
    dense, sparse = Dense(a), Sparse.of(a)
    p, v, largest = (torch.randint(-4, 5, shape).to(dtype) for shape in ((3, 7), (3, 14), (11,)))
    results = []
    for each in (dense, sparse):
        work = v.clone()
        each.add_back(work, p)
        assert torch.equal(work[:, 11:], v[:, 11:])
        results.append((work, each.forward(v), each.sizes(largest), each.dense(), *each.triples()))
        assert each.width == 11
        assert each.entries == int((a != 0).sum())
        assert each.to(torch.float64).forward(v.double()).dtype is torch.float64
    assert all(torch.equal(x, y) for x, y in zip(*results, strict=True))
    assert torch.equal(results[0][0][:, :11], v[:, :11] + p @ a)


def test_only_large_matrices_with_few_entries_are_sparse(monkeypatch: pytest.MonkeyPatch) -> None:
    a = torch.zeros(40, 40)
    a[0, :9] = torch.nan  # not 0
    assert isinstance(matrix_of(a), Dense)
    monkeypatch.setattr(matrix, "LARGE", 1600)
    monkeypatch.setattr(matrix, "SPARSE", 9 / 1600)
    assert isinstance(matrix_of(a), Sparse if torch.backends.mkl.is_available() else Dense)
    a[1, 0] = 1
    assert isinstance(matrix_of(a), Dense)


def test_bounds_of_a_network_are_those_of_dense_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    net = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4)
    ).requires_grad_(False)
    x = torch.rand(1, 1, 8, 8)
    box = sb.LinfBall(x, "1/5", (0, 1)).interval()
    reduced = reduce_network(program_of(net, x), box, torch.eye(4), Soundness.DEPLOYED)
    dense = bounds_of_rows(reduced)
    monkeypatch.setattr(matrix, "LARGE", 1)
    monkeypatch.setattr(matrix, "SPARSE", 1.0)
    again = reduce_network(program_of(net, x), box, torch.eye(4), Soundness.DEPLOYED)
    if torch.backends.mkl.is_available():
        assert all(isinstance(layer.rows.matrices[0], Sparse) for layer in again.layers)
    sparse = bounds_of_rows(again)
    assert torch.allclose(dense.lower, sparse.lower, rtol=1e-5)
    assert torch.allclose(dense.upper, sparse.upper, rtol=1e-5)
    points = box.lower + torch.rand(500, 1, 8, 8).round() * (box.upper - box.lower)
    z = net(points)
    assert bool((z >= sparse.lower).all() and (z <= sparse.upper).all())

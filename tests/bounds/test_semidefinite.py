"""The semidefinite bound: eigenvalues bounded rigorously, certificates above all corners, margins above executions."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

import surebound as sb
from surebound.bounds.semidefinite.bound import Semidefinite
from surebound.bounds.semidefinite.certificate import certificates, certified
from surebound.bounds.semidefinite.form import HiddenForm, lanczos
from surebound.bounds.semidefinite.two_layers import TwoLayers
from surebound.errors import BoundError, InputError
from surebound.graph import program_of
from surebound.interval import Interval
from surebound.numerics import largest_eigenvalue
from tests.bounds.oracles import exact_maximum, layers_of


def rational_determinant(matrix: list[list[Fraction]]) -> list[Fraction]:
    """The pivots of Gauss elimination without exchanges: all positive if and only if it is positive definite."""
    rows, pivots = [list(row) for row in matrix], []
    for k in range(len(rows)):
        pivots.append(rows[k][k])
        if rows[k][k] == 0:
            break
        for i in range(k + 1, len(rows)):
            factor = rows[i][k] / rows[k][k]
            rows[i] = [a - factor * b for a, b in zip(rows[i], rows[k], strict=True)]
    return pivots


@pytest.mark.parametrize("scale", [1e-160, 1.0, 1e12])
def test_the_largest_eigenvalue_is_never_below_the_exact_one(scale: float) -> None:
    """In fractions: bound I - A is positive definite, and a little less than the bound is not."""
    torch.manual_seed(0)
    for size in (1, 2, 7):
        for kind in range(3):
            a = torch.randn(size, size, dtype=torch.float64) * scale
            a = a + a.t() if kind < 2 else -(a @ a.t()) / scale
            if kind == 1:  # clustered: all but one eigenvalue alike
                a = scale * (torch.eye(size, dtype=torch.float64) + torch.full_like(a, 1e-9))
            bound = largest_eigenvalue(a)
            assert bound >= 0
            exact = [[Fraction(v) for v in row] for row in a.tolist()]

            def shifted(by: Fraction, exact: list[list[Fraction]] = exact) -> list[list[Fraction]]:
                return [[by * (i == j) - v for j, v in enumerate(row)] for i, row in enumerate(exact)]

            assert all(p >= 0 for p in rational_determinant(shifted(Fraction(bound) + Fraction(1, 10**400))))
            estimate = float(torch.linalg.eigvalsh(a)[-1])
            assert bound <= max(estimate, 0.0) * (1 + 4e-6) + 1e-10 * scale  # what slightly_up adds, a few times
            if estimate > 0:
                below = shifted(Fraction(estimate) * (1 - Fraction(1, 10**9)) - Fraction(scale) / 10**9)
                assert not all(p > 0 for p in rational_determinant(below))


def test_what_is_not_finite_has_no_bound() -> None:
    assert largest_eigenvalue(torch.full((2, 2), torch.nan, dtype=torch.float64)) == float("inf")
    assert largest_eigenvalue(torch.zeros(0, 0, dtype=torch.float64)) == 0.0


def test_bad_eigenvectors_make_it_loose_and_never_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    a = torch.randn(6, 6, dtype=torch.float64)
    a, true = a + a.t(), float(torch.linalg.eigvalsh(a + a.t())[-1])
    for noise in (1e-3, 0.02, 10.0):
        wrong = torch.linalg.eigh(a)[1] + noise * torch.randn(6, 6, dtype=torch.float64)
        with monkeypatch.context() as patch:
            patch.setattr(torch.linalg, "eigh", lambda _, wrong=wrong: (None, wrong))
            assert largest_eigenvalue(a) >= true - 1e-12


def test_lanczos_finds_top_eigenvectors() -> None:
    torch.manual_seed(0)
    a = torch.randn(3, 9, 9, dtype=torch.float64)
    a = a + a.transpose(1, 2)
    found = lanczos(lambda y: torch.einsum("rij,rj->ri", a, y), torch.ones(3, 9, dtype=torch.float64), 9)
    value = torch.einsum("ri,rij,rj->r", found, a, found)
    torch.testing.assert_close(value, torch.linalg.eigvalsh(a)[:, -1])


def corners(rows: Tensor, weight: Tensor) -> Tensor:
    """The largest sum of rows_j s_j (weight t)_j over s in {0, 1}, t in {-1, 1}, by enumeration: (R,)."""
    t = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=weight.shape[1])), dtype=torch.float64)
    moved = rows.unsqueeze(1) * (t @ weight.t())  # (R, T, m): every s_j at its best
    return moved.clamp(min=0).sum(2).amax(1)


def test_a_certificate_is_above_all_corners_and_better_dual_variables_are_closer() -> None:
    torch.manual_seed(1)
    rows, weight = torch.randn(4, 7, dtype=torch.float64), torch.randn(7, 5, dtype=torch.float64)
    exact = corners(rows, weight)
    start, found = certificates(rows, weight, 0), certificates(rows, weight, 200)
    assert bool((found >= exact).all())
    assert bool((found < start).all())
    assert bool((found < 1.6 * exact).all())
    form = HiddenForm(rows, weight)
    for _ in range(5):  # any dual variables give a bound
        dual = torch.randn(form.size, dtype=torch.float64) * 3
        assert certified(form, 0, dual) >= float(exact[0])
    for row in range(4):
        matrix, y = form.matrix(row), torch.randn(4, form.size, dtype=torch.float64)
        torch.testing.assert_close(form.apply(y)[row], matrix @ y[row])
        torch.testing.assert_close(form.row_sums()[row], matrix.abs().sum(1))


def net_of(width: int = 6) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3)).requires_grad_(False)


@pytest.mark.parametrize("mode", ["real", "deployed"])
def test_margins_are_above_the_exact_ones(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net, x, labels = net_of(), torch.rand(3, 1, 2, 2, generator=torch.Generator().manual_seed(0)), torch.arange(3)
    region = sb.LinfBall(x, "1/20", clip=(0, 1))
    # By itself, without the interval bounds that it is intersected with.
    monkeypatch.setattr(
        "surebound.bounds.semidefinite.bound.merged_margins", lambda relaxed, tail, c, d: torch.full_like(d, torch.inf)
    )
    found = sb.worst_margins(net, region, labels, method="raghunathan", soundness=mode)
    assert bool(found.isfinite().all())
    rows = (torch.eye(3) - torch.eye(3)[labels].unsqueeze(1)).double().numpy()
    lower, upper = (x - 0.05).clamp(0, 1).flatten(1).double(), (x + 0.05).clamp(0, 1).flatten(1).double()
    for i, k in itertools.product(range(3), range(3)):
        if i != k:
            exact = exact_maximum(layers_of(net), lower[i].numpy(), upper[i].numpy(), rows[i, k])
            assert exact - 1e-6 <= float(found[i, k]) < exact + 0.1


def test_only_networks_with_one_hidden_layer() -> None:
    deep = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    region, label = sb.LinfBall(torch.zeros(1, 2), 1), torch.tensor([0])
    with pytest.raises(BoundError, match="networks with one hidden layer"):
        sb.worst_margins(deep, region, label, method="raghunathan")
    with pytest.raises(InputError, match="give soundness='real' or 'deployed'"):
        sb.worst_margins(nn.Sequential(*deep[2:]), sb.LinfBall(torch.zeros(1, 3), 1), label, method="raghunathan",
                         soundness="none")  # fmt: skip
    with pytest.raises(InputError, match="give 0 or more"):
        Semidefinite(steps=-1)


def test_the_matrices_are_the_networks() -> None:
    net, point = net_of(), torch.zeros(1, 1, 2, 2)
    found = TwoLayers.of(program_of(net, point), Interval(point, point))
    torch.testing.assert_close(found.weight, net[1].weight)
    torch.testing.assert_close(found.out, net[3].weight)

"""Rows without what is 0 in all rows of an example: against PyTorch's dense operators and their gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from surebound.bounds.training.projections.cauchy import middle, positions, selection_network
from surebound.kernels import build, sparse
from surebound.kernels.columns import Lines, Windows, medians
from surebound.kernels.sparse import Live
from surebound.rules.adjoint_gradient import convolution_adjoint, matrix_adjoint

S, B = 7, 3
#: channels in, size, channels out, window, stride; a long window, and one too short for a vector
SHAPES = [
    (16, (9, 8), 24, (4, 3), (1, 1)),
    (5, (11, 12), 20, (4, 4), (2, 3)),
    (20, (7, 7), 11, (3, 2), (2, 1)),
    (130, (5, 4), 9, (3, 3), (1, 1)),
]


@pytest.fixture(autouse=True)
def compiled() -> None:
    if build.library() is None:
        pytest.skip("no C compiler here")


def draw(*shape: int, live: float = 1.0) -> Tensor:
    """(S, B, ...), of which only a share ``live`` of each example's entries is not 0 in all rows."""
    generator = torch.Generator().manual_seed(sum(shape))
    on = torch.rand(1, *shape[1:], generator=generator) < live
    return torch.randn(*shape, generator=generator) * on


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("live", [0.0, 0.4, 0.8])
@pytest.mark.parametrize(("c", "size", "o", "window", "stride"), SHAPES)
def test_adjoint_of_a_convolution_and_its_gradients(
    monkeypatch: pytest.MonkeyPatch,
    c: int,
    size: tuple[int, int],
    o: int,
    window: tuple[int, int],
    stride: tuple[int, int],
    live: float,
    threads: int,
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    weight = draw(o, c, *window).requires_grad_()
    zero = torch.zeros(S * B, c, *size, requires_grad=True)
    value = torch.conv2d(zero, weight, stride=stride)
    a = draw(S, B, *value.shape[1:], live=live).requires_grad_()
    g = draw(S, B, c, *size, live=live)
    (expected,) = torch.autograd.grad(value, zero, a.flatten(0, 1), create_graph=True)
    wanted = torch.autograd.grad((expected * g.flatten(0, 1)).sum(), (a, weight))
    used: list[str] = []
    run = Live._run
    monkeypatch.setattr(
        Live, "_run", lambda self, which, *rest: used.append(which) or run(self, which, *rest)
    )
    found = convolution_adjoint(a.flatten(0, 1), weight, S, size, stride, (0, 0), (1, 1), 1)
    mine = torch.autograd.grad((found * g.flatten(0, 1)).sum(), (a, weight))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    for each, other in zip(mine, wanted, strict=True):
        torch.testing.assert_close(each, other, rtol=1e-3, atol=1e-3)
    assert used == ["adjoint", "product", *(["weight"] if live <= sparse.WEIGHT_PAYS_BELOW else [])]


@pytest.mark.parametrize("live", [0.0, 0.3, 1.0])
def test_adjoint_of_a_matrix_and_its_gradients(live: float) -> None:
    w = draw(37, 1500).requires_grad_()
    a, g = draw(S, B, 37, live=live).requires_grad_(), draw(S, B, 1500, live=live)
    expected = torch.autograd.grad(((a @ w) * g).sum(), (a, w))
    found = matrix_adjoint(a, w)
    torch.testing.assert_close(found, a @ w, rtol=1e-4, atol=1e-4)
    for each, other in zip(torch.autograd.grad((found * g).sum(), (a, w)), expected, strict=True):
        torch.testing.assert_close(each, other, rtol=1e-3, atol=1e-3)


def test_what_is_dense_single_or_of_another_kind_is_left_to_others() -> None:
    rows = draw(S, B, 40, live=0.3).flatten(0, 1)
    assert Live.of(rows, S) is not None
    assert Live.of(rows, 1) is None
    assert Live.of(rows.double(), S) is None
    assert Live.of(draw(S, B, 40).flatten(0, 1), S) is None


def test_columns_through_a_matrix() -> None:
    """Longer than the part of a weight that is worked on at a time."""
    n, o, count = 1500, 21, 13
    on = (torch.rand(B, n) < 0.6).float()
    lines = Lines(
        torch.randn(B, count, n), torch.randn(B, n) * on, torch.randn(B, n) * on, torch.randn(count, n)
    )
    weight = torch.randn(o, n)
    found = Windows.matrix(weight).apply(lines, weight)
    assert found is not None
    torch.testing.assert_close(found, lines.apply() @ weight.t(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_medians_only_where_they_are_wanted(share: float) -> None:
    count, n = 10, 300
    u, wanted = torch.randn(B, count, n), torch.rand(B, n) < share
    found = medians(u, selection_network(count), tuple(j - 1 for j in positions(count)), wanted)
    assert found is not None
    total, places = middle(u)
    assert torch.equal(found[0], torch.where(wanted, total, torch.inf))
    assert torch.equal(found[1].movedim(1, -1)[wanted], places.movedim(1, -1)[wanted])

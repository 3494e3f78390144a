"""Rows without what is 0 in all rows of an example: against PyTorch's dense operators and their gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from surebound.kernels import build, sparse
from surebound.kernels.medians import middle
from surebound.kernels.products import Conv
from surebound.kernels.sparse import live
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
@pytest.mark.parametrize("share", [0.0, 0.4, 0.8])
@pytest.mark.parametrize(("c", "size", "o", "window", "stride"), SHAPES)
def test_adjoint_of_a_convolution_and_its_gradients(
    monkeypatch: pytest.MonkeyPatch,
    c: int,
    size: tuple[int, int],
    o: int,
    window: tuple[int, int],
    stride: tuple[int, int],
    share: float,
    threads: int,
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    weight = draw(o, c, *window).requires_grad_()
    zero = torch.zeros(S * B, c, *size, requires_grad=True)
    value = torch.conv2d(zero, weight, stride=stride)
    a = draw(S, B, *value.shape[1:], live=share).requires_grad_()
    g = draw(S, B, c, *size, live=share)
    (expected,) = torch.autograd.grad(value, zero, a.flatten(0, 1), create_graph=True)
    wanted = torch.autograd.grad((expected * g.flatten(0, 1)).sum(), (a, weight))
    used: list[str] = []
    for each in (sparse.rows_adjoint, sparse.rows_product, sparse.rows_weight):
        body = each.body
        monkeypatch.setattr(each, "body", lambda run, *rest, body=body: used.append(body.__name__) or body(run, *rest))
    found = convolution_adjoint(a.flatten(0, 1), weight, S, size, Conv(stride, (0, 0), (1, 1)))
    mine = torch.autograd.grad((found * g.flatten(0, 1)).sum(), (a, weight))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    for each, other in zip(mine, wanted, strict=True):
        torch.testing.assert_close(each, other, rtol=1e-3, atol=1e-3)
    weighed = ["rows_weight"] if share <= sparse.WEIGHT_PAYS_BELOW else []
    assert used == ["rows_adjoint", "rows_product", *weighed]


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_adjoint_of_a_matrix_and_its_gradients(share: float) -> None:
    w = draw(37, 1500).requires_grad_()
    a, g = draw(S, B, 37, live=share).requires_grad_(), draw(S, B, 1500, live=share)
    expected = torch.autograd.grad(((a @ w) * g).sum(), (a, w))
    found = matrix_adjoint(a, w)
    torch.testing.assert_close(found, a @ w, rtol=1e-4, atol=1e-4)
    for each, other in zip(torch.autograd.grad((found * g).sum(), (a, w)), expected, strict=True):
        torch.testing.assert_close(each, other, rtol=1e-3, atol=1e-3)


def test_what_is_dense_single_or_of_another_kind_is_taken_for_dense() -> None:
    rows = draw(S, B, 40, live=0.3).flatten(0, 1)
    assert live(rows, S).share < sparse.PAYS_BELOW
    assert live(draw(S, B, 40).flatten(0, 1), S).share == 1.0
    for value, count in ((rows, 1), (rows.double(), S), (rows[:, ::2], S)):
        found = live(value, count)
        assert (found.mask, found.share, found.columns) == (None, 1.0, None)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("count", [1, 10, 33])
def test_medians_only_where_they_are_wanted(share: float, count: int) -> None:
    u, wanted = torch.randn(count, B, 300), torch.rand(B, 300) < share
    total, places = middle(u, wanted)
    expected, where = middle.reference(u, wanted)
    torch.testing.assert_close(total, expected, rtol=1e-6, atol=0)
    assert torch.equal(places.long()[:, wanted], where[:, wanted])

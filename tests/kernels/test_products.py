"""Compiled convolutions and their gradients against PyTorch's, and where they step aside."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from surebound import models
from surebound.bounds import training_pass
from surebound.graph import program_of
from surebound.kernels import build, products
from surebound.kernels.products import Conv
from surebound.rules.layouts import channels_last, conv_layer

# images, channels in, height, width, channels out, window, stride, padding: whole tiles and rests of every kind
SHAPES = [
    (3, 16, 13, 13, 32, (4, 4), [1, 1], [0, 0]),
    (2, 32, 9, 7, 16, (4, 3), [2, 2], [0, 0]),
    (5, 7, 6, 8, 21, (3, 4), [1, 2], [0, 0]),
    (1, 1, 9, 9, 5, (2, 2), [2, 3], [0, 0]),
    (4, 19, 5, 5, 3, (1, 1), [1, 1], [0, 0]),
    (3, 128, 4, 4, 17, (3, 3), [1, 1], [0, 0]),
    (2, 8, 6, 5, 16, (3, 3), [1, 1], [1, 2]),
    (2, 20, 7, 7, 45, (3, 3), [1, 1], [0, 0]),
    (2, 9, 4, 4, 300, (2, 2), [1, 1], [0, 0]),
    (3, 3, 9, 8, 20, (3, 3), [1, 1], [0, 0]),
    (2, 1, 8, 8, 270, (4, 4), [2, 2], [1, 1]),
]
PLAIN = Conv((1, 1), (0, 0), (1, 1))


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels, also on a processor where they are slower."""
    if build.library() is None:
        pytest.skip("no C compiler here")
    monkeypatch.setattr(products, "_pay", lambda: True)
    monkeypatch.setattr(products, "SHORTEST", 1)


def drawn(
    n: int, c: int, h: int, w: int, o: int, window: tuple[int, int], stride: list[int], pad: list[int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images, weight, bias and the gradient of the result."""
    draws = torch.Generator().manual_seed(c)
    x = channels_last(torch.randn(n, c, h, w, generator=draws))
    weight = channels_last(torch.randn(o, c, *window, generator=draws))
    bias = torch.randn(o, generator=draws)
    out = torch.conv2d(x, weight, bias, stride, pad)
    return x, weight, bias, channels_last(torch.randn(out.shape, generator=draws))


def reference(g: Tensor, x: Tensor, w: Tensor, stride: list[int], pad: list[int]) -> tuple[Tensor, Tensor]:
    """PyTorch's gradients of x and w, in float64."""
    x, w = x.double().requires_grad_(), w.double().requires_grad_()
    gx, gw = torch.autograd.grad(torch.conv2d(x, w, None, stride, pad), (x, w), g.double())
    return gx, gw


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_convolution_and_its_gradients_are_those_of_pytorch(monkeypatch, shape, threads):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(Conv, "unpadded", Conv.ungrouped)
    *_, stride, pad = shape
    conv = Conv(tuple(stride), tuple(pad), (1, 1))
    x, w, b, g = drawn(*shape)
    for bias in (b, None):
        expected = torch.conv2d(x.double(), w.double(), None if bias is None else bias.double(), stride, pad)
        torch.testing.assert_close(products.product(x, w, bias, conv).double(), expected, atol=1e-4, rtol=1e-5)
    gx, gw = reference(g, x, w, stride, pad)
    found = (
        products.product_input(g, x.shape[2:], w, conv),
        products.product_weight(g, x, w, conv),
    )
    for mine, expected in zip(found, (gx, gw), strict=True):
        torch.testing.assert_close(mine.double(), expected, atol=2e-4, rtol=1e-5)


@pytest.mark.parametrize("size", [1, 2])
def test_windows_of_one_position_are_a_product_of_matrices(size):
    x, w, _, g = drawn(3, 5, size + 2, size + 2, 7, (3, 3), [1, 1], [0, 0])
    for layout in (g, g.contiguous()):
        found = products.by_windows(layout, x.shape[2:], w, PLAIN)
        torch.testing.assert_close(found.double(), reference(g, x, w, [1, 1], [0, 0])[0], atol=1e-4, rtol=1e-5)


def test_threads_change_no_bit(monkeypatch):
    conv = PLAIN
    x, w, b, g = drawn(*SHAPES[0])
    results = []
    for threads in (1, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda count=threads: count)
        gradients = (
            products.product_input(g, x.shape[2:], w, conv),
            products.product_weight(g, x, w, conv),
        )
        results.append((products.product(x, w, b, conv), *gradients))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def test_what_is_not_a_number_stays_so():
    x, w, b, g = drawn(*SHAPES[0])
    x[1, 3, 5, 5], g[0, 2, 4, 4] = float("nan"), float("inf")
    assert products.product(x, w, b, PLAIN)[1].isnan().any()
    assert not products.product(x, w, b, PLAIN)[0].isnan().any()
    assert not products.product_input(g, x.shape[2:], w, PLAIN)[0].isfinite().all()
    assert not products.product_weight(g, x, w, PLAIN).isfinite().all()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda x: x.double(), "another dtype"),
        (lambda x: x.contiguous(), "channels outermost"),
        (lambda x: x[:, :, ::2], "gaps"),
        (lambda x: x[:0], "no images"),
    ],
)
def test_other_images_are_left_to_pytorch(change, why):
    x, w, b, _ = drawn(*SHAPES[0])
    assert products.product.applies(x, w, b, PLAIN)
    assert not products.product.applies(change(x), change(w) if "dtype" in why else w, b, PLAIN), why


def test_a_layer_uses_them_and_does_without_them(monkeypatch):
    x, w, b, g = drawn(*SHAPES[0])
    layer = conv_layer(2)
    mine = (layer.product(x, w, b), *layer.backward(g, x, w, True))
    monkeypatch.setattr(products, "_pay", lambda: False)
    assert not products.product.applies(x, w, b, PLAIN)
    for one, other in zip(mine, (layer.product(x, w, b), *layer.backward(g, x, w, True)), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
    assert layer.backward(g, x, w, False)[0] is None


def test_a_training_step_is_the_same_to_rounding(monkeypatch):
    torch.manual_seed(0)
    net = models.medium((1, 20, 20))
    x, labels = torch.rand(4, 1, 20, 20), torch.tensor([1, 2, 3, 4])
    found = []
    for pays in (True, False):
        monkeypatch.setattr(products, "_pay", lambda pays=pays: pays)
        done = training_pass(program_of(net, x), x, labels, 0.1)
        loss = F.cross_entropy(done.logits, labels) + F.cross_entropy(done.margins, labels)
        found.append((loss, *torch.autograd.grad(loss, list(net.parameters()))))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5 * float(other.detach().abs().max()), rtol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("channels", [2, 20])
def test_of_no_rows_of_coefficients_the_gradient_has_none(dtype: torch.dtype, channels: int) -> None:
    """As where no unit is left open."""
    g, w = torch.zeros(0, 8, 3, 3, dtype=dtype), torch.ones(8, channels, 2, 2, dtype=dtype)
    assert products.product_input(g, (4, 4), w, PLAIN).shape == (0, channels, 4, 4)

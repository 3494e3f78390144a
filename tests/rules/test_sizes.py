"""Sizes that a rule leaves for the backward step: with them the same bounds, and sizes as exact arithmetic has them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from surebound.interval import Interval
from surebound.kernels import build, rounding
from surebound.numerics import AffineRounding, Soundness
from surebound.rules import Context, find
from surebound.rules.registry import Sizes

Case = tuple[str, tuple[int, ...], tuple[Any, ...]]


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


CASES: dict[str, Case] = {
    "linear": ("aten.linear.default", (3, 7), (draw(4, 7), draw(4))),
    "linear without bias": ("aten.linear.default", (3, 2, 7), (draw(4, 7),)),
    "large linear": ("aten.linear.default", (2, 1100), (draw(500, 1100), draw(500))),
    "convolution": ("aten.conv2d.default", (3, 2, 6, 5), (draw(4, 2, 3, 3), draw(4), [2, 1], [1, 0])),
    "one dimension": ("aten.conv1d.default", (3, 2, 9), (draw(4, 2, 3), None, [1])),
    "transposed": ("aten.conv_transpose2d.input", (3, 2, 4, 4), (draw(2, 3, 3, 3), draw(3), [2, 2])),
}
#: Without an axis of examples, so that nothing can be stacked.
LONE: dict[str, Case] = {
    "vector": ("aten.linear.default", (7,), (draw(4, 7), draw(4))),
    "image": ("aten.conv2d.default", (2, 6, 5), (draw(4, 2, 3, 3), draw(4))),
}


def bounds(shape: tuple[int, ...]) -> Interval:
    lower = draw(*shape)
    return Interval(lower, lower + draw(*shape, 1).squeeze(-1).abs())


@pytest.fixture(params=["compiled", "pytorch"], autouse=True)
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "compiled" and build.library() is None:
        pytest.skip("no C compiler here")
    for each in (rounding.sizes, rounding.paid, rounding.entry):
        monkeypatch.setattr(each, "worth", 1 if request.param == "compiled" else 1 << 40)


def rule(op: str) -> Callable[..., Interval]:
    found = find(op)
    assert found is not None
    return found.interval


@torch.no_grad()
@pytest.mark.parametrize("mode", [Soundness.REAL, Soundness.DEPLOYED])
@pytest.mark.parametrize("case", CASES)
def test_sizes_come_with_the_same_bounds(case: str, mode: Soundness) -> None:
    op, shape, arguments = CASES[case]
    box, sizes = bounds(shape), Sizes()
    with_sizes = rule(op)(Context(mode, sizes=sizes), box, *arguments)
    plain = rule(op)(Context(mode), bounds(shape), *arguments)
    torch.testing.assert_close(with_sizes.center, plain.center, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(with_sizes.radius, plain.radius, rtol=1e-6, atol=1e-6)
    assert sizes.entry is not None
    assert sizes.product is not None
    magnitude = torch.maximum(box.lower.abs(), box.upper.abs())
    assert torch.equal(sizes.entry, magnitude.flatten(1).amax(1))
    weight, bias, *rest = (*arguments, None) if len(arguments) == 1 else arguments
    parts = (weight.double().abs(), None if bias is None else torch.zeros_like(bias).double(), *rest)
    wide = getattr(torch.ops.aten, op.split(".")[1])(magnitude.double(), *parts)
    # Not below but for rounding; above by what the radius in it pays for rounding, twice.
    paid = 2 * AffineRounding.of(math.prod(weight.shape[1:]), torch.float32, mode).on_center
    assert bool((sizes.product.double() >= wide * (1 - 1e-5)).all())
    extra = 0 if bias is None else 2 * paid * float(bias.abs().max())
    assert bool((sizes.product.double() <= wide * (1 + 2 * paid + 1e-6) + extra).all())


@torch.no_grad()
@pytest.mark.parametrize("case", LONE)
def test_what_has_no_axis_of_examples_is_left_alone(case: str) -> None:
    op, shape, arguments = LONE[case]
    sizes = Sizes()
    found = rule(op)(Context(Soundness.DEPLOYED, sizes=sizes), bounds(shape), *arguments)
    known = rule(op)(Context(Soundness.DEPLOYED), bounds(shape), *arguments)
    assert sizes.product is None
    assert torch.equal(found.lower, known.lower)
    assert torch.equal(found.upper, known.upper)


@pytest.mark.parametrize("of", ["weight", "lower", "upper"])
def test_gradients_are_kept(of: str) -> None:
    box = bounds((3, 7))
    wanted = {"weight": draw(4, 7), "lower": box.lower, "upper": box.upper}
    wanted[of].requires_grad_()
    sizes = Sizes()
    ctx = Context(Soundness.DEPLOYED, sizes=sizes)
    found = rule("aten.linear.default")(ctx, Interval(wanted["lower"], wanted["upper"]), wanted["weight"])
    assert sizes.product is None
    assert found.upper.requires_grad


@torch.no_grad()
@pytest.mark.parametrize("where", ["weight", "input", "bias"])
@pytest.mark.parametrize("outputs", [3, 1200])
def test_sums_that_may_overflow_in_some_order_may_be_no_number(where: str, outputs: int) -> None:
    """Each term fits, and so does their sum: not every part of it does."""
    weight, x, bias = torch.ones(outputs, 500), torch.ones(2, 500), torch.zeros(outputs)
    big = torch.tensor([2.5e38, -2.5e38] * 250)
    if where == "weight":
        weight[1] = big
    elif where == "input":
        x[:] = big
    else:
        weight[1, 0], bias[1] = 2.5e38, -2.5e38
    sizes = Sizes()
    found = rule("aten.linear.default")(Context(Soundness.DEPLOYED, sizes=sizes), Interval(x, x), weight, bias)
    assert sizes.product is not None
    hit = torch.zeros(outputs, dtype=torch.bool)
    hit[:] = where == "input"
    hit[1] = True
    assert bool((found.radius.isnan() == hit).all())


@torch.no_grad()
def test_a_weight_that_is_no_number_does_not_hide_an_overflow_in_its_block() -> None:
    weight, x = torch.ones(1200, 500), torch.ones(2, 500)
    weight[0, 0], weight[1] = math.nan, torch.tensor([2.5e38, -2.5e38] * 250)
    ctx = Context(Soundness.DEPLOYED, sizes=Sizes())
    found = rule("aten.linear.default")(ctx, Interval(x, x), weight)
    assert not bool((found.radius[:, :2] < math.inf).any())

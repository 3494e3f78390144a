"""Passes over the ends of bounds: against automatic differentiation of the formulas, compiled and in PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from surebound.interval import Interval
from surebound.kernels import ends
from surebound.kernels import rounding as reads
from surebound.kernels.ends import add_outwards
from surebound.numerics import AffineRounding, Soundness, extent_of_sizes
from surebound.rules.affine import _entry
from surebound.rules.owned import Owned
from surebound.rules.relax.ends import relu_chord, within

SHAPE = (3, 4, 5, 6)


def innermost(value: Tensor) -> Tensor:
    return value.movedim(1, -1).contiguous().movedim(-1, 1)


def draw(seed: int, layout: str) -> Tensor:
    value = torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed))
    return innermost(value) if layout == "innermost" else value


@pytest.fixture(params=["compiled", "pytorch"])
def how(request: pytest.FixtureRequest, always: None, switch: Callable[[bool], None]) -> str:
    switch(request.param == "compiled")
    return str(request.param)


def bounds(layout: str) -> tuple[Tensor, Tensor]:
    """Ends with stable units of both kinds, ends at 0, and points."""
    lower = draw(0, layout)
    upper = lower + draw(1, layout).abs()
    lower[0, 0], upper[0, 1], upper[0, 2] = 0.0, 0.0, lower[0, 2]
    lower[1, 0, 0, 0] = -9.0  # the largest |x| of an example is that of a lower end
    return torch.minimum(lower, upper), torch.maximum(lower, upper)


@pytest.mark.parametrize("layout", ["planes", "innermost"])
def test_the_line_above_a_relu(how: str, layout: str) -> None:
    lower, upper = (end.requires_grad_() for end in bounds(layout))
    slope, below, top, free, _ = relu_chord(lower, upper)
    unstable = (lower < 0) & (upper > 0)
    width = torch.where(unstable, upper - lower, 1.0)
    expected = torch.where(unstable, upper / width, (upper > 0).float())
    high = torch.where(unstable, -lower * upper / width, 0.0)
    torch.testing.assert_close(slope, expected)
    torch.testing.assert_close(top, high)
    assert torch.equal(free, unstable)
    assert torch.equal(below.bool(), (upper > 0) & (lower + upper > 0))
    g = draw(2, "planes"), draw(3, layout)
    mine = torch.autograd.grad((slope * g[0] + top * g[1]).sum(), (lower, upper))
    theirs = torch.autograd.grad((expected * g[0] + high * g[1]).sum(), (lower, upper))
    for found, wanted in zip(mine, theirs, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("loose", [0.0, 100.0])
def test_the_tighter_of_two_bounds(how: str, loose: float) -> None:
    """``loose``: known ends so wide that they get no gradient at all."""
    lower, upper = bounds("innermost")
    center, radius = draw(4, "planes"), draw(5, "innermost").abs()
    center[0, 0, 0, 0] = torch.nan  # says nothing
    leaves = [v.requires_grad_() for v in (lower - loose, upper + loose, center, radius)]
    found = within(Interval(leaves[0], leaves[1]), leaves[2], leaves[3])
    expected = torch.fmax(leaves[0], center - radius), torch.fmin(leaves[1], center + radius)
    torch.testing.assert_close((found.lower, found.upper), expected)
    g = draw(6, "planes"), draw(7, "planes")
    mine, theirs = (
        torch.autograd.grad((low * g[0] + high * g[1]).sum(), leaves, allow_unused=True)
        for low, high in ((found.lower, found.upper), expected)
    )
    for each, wanted in zip(mine, theirs, strict=True):
        torch.testing.assert_close(torch.zeros(SHAPE) if each is None else each, wanted)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["known", "new"])
def test_an_end_that_is_not_a_number_says_nothing(how: str, kind: str) -> None:
    (lower, upper), center, radius = bounds("plain"), draw(4, "plain"), draw(5, "plain").abs()
    for number, value in enumerate((lower, upper) if kind == "known" else (center, radius)):
        value[1, 2, 3, number] = torch.nan
    found = within(Interval(lower, upper), center, radius)
    assert torch.equal(found.lower, torch.fmax(lower, center - radius))
    assert torch.equal(found.upper, torch.fmin(upper, center + radius))
    assert not bool(found.lower.isnan().any() | found.upper.isnan().any())


@torch.no_grad()
@pytest.mark.parametrize("layout", ["plain", "innermost"])
def test_products_get_what_pytorch_gives_them(layout: str, always: None, switch: Callable[[bool], None]) -> None:
    rounding = AffineRounding.of(300, torch.float32, Soundness.DEPLOYED)
    lower, upper = bounds(layout)
    found = _entry(Interval(lower, upper), rounding)
    switch(False)
    known = _entry(Interval(lower, upper), rounding)
    assert found[2] == known[2]
    for at in (0, 3, 4):  # the centre, max(lower, -upper), the largest |x|
        one, other = found[at], known[at]
        assert isinstance(one, Tensor)
        assert isinstance(other, Tensor)
        assert torch.equal(one, other)
    torch.testing.assert_close(found[1], known[1], rtol=2.0**-22, atol=0)


@torch.no_grad()
@pytest.mark.parametrize("layout", ["plain", "innermost"])
@pytest.mark.parametrize("odd", [0.0, 2.0**-126, -(2.0**-149), 1.5 * 2.0**-126, -3e38, -torch.inf, torch.nan])
def test_sizes_of_weights_and_their_extent(layout: str, odd: float, always: None) -> None:
    weight = draw(0, layout)
    weight[1, 2, 3, 4] = odd
    for to in (None, torch.empty_like(weight)):
        found = reads.sizes(weight, to)
        torch.testing.assert_close(found[0], weight.abs(), rtol=0, atol=0, equal_nan=True)
        assert to is None or found[0] is to
        largest, subnormal = extent_of_sizes(weight.abs())
        assert found[1] == largest or (math.isnan(found[1]) and math.isnan(largest))
        assert found[2] == subnormal == (0 < abs(odd) <= 2.0**-126)
    assert not reads.sizes.applies(weight, torch.empty(7))


@torch.no_grad()
@pytest.mark.parametrize("layout", ["plain", "innermost"])
def test_readers_and_owners_of_bounds_pay_the_same(layout: str, how: str) -> None:
    """So that linear bounds start from the very interval bounds that they promise not to exceed."""
    rounding = AffineRounding.of(300, torch.float32, Soundness.DEPLOYED)
    box = Interval(*bounds(layout))
    center, paid, factor, *_ = _entry(box, rounding)
    own_center, own_width, own_factor = Owned.taking(box).take_center()
    assert own_factor == factor == 0.5
    assert torch.equal(own_center, center)
    assert torch.equal(reads.paid(own_center, own_width, rounding.on_center / factor, owned=True), paid)


@torch.no_grad()
def test_bounds_that_touch_0_need_no_further_product(how: str) -> None:
    rounding = AffineRounding.of(300, torch.float32, Soundness.DEPLOYED)
    zero, upper = torch.zeros(SHAPE), bounds("plain")[1].abs()
    assert _entry(Interval(zero, upper), rounding)[3] is None
    assert _entry(Interval(-upper, zero), rounding)[3] is None
    zero[2, 3, 4, 5] = upper[2, 3, 4, 5]
    found = _entry(Interval(zero, upper), rounding)[3]
    assert found is not None
    assert torch.equal(found, zero)


@torch.no_grad()
@pytest.mark.parametrize("end", [0, 1])
def test_what_is_not_a_number_stays_so(end: int, always: None) -> None:
    sides = bounds("plain")
    sides[end][1, 2, 3, 4] = torch.nan
    for value in reads.entry(*sides, 1e-4)[:3]:
        assert value is not None
        assert bool(value[1, 2, 3, 4].isnan())
        assert int(value.isnan().sum()) == 1


@torch.no_grad()
@pytest.mark.parametrize("radius", [2.0**-149, 1e-38, 1e-7, 0.1, 3.0])
@pytest.mark.parametrize("clip", [None, (0.0, 1.0)])
def test_balls_are_rounded_as_pytorch_rounds_them(
    radius: float, clip: tuple[float, float] | None, always: None
) -> None:
    x = torch.rand(500, generator=torch.Generator().manual_seed(0))
    x[:5] = torch.tensor([0.0, 1.0, 1e-40, 2.0**-24, 1e-30])
    if clip is None:
        x = torch.cat((x, -x, 1e38 * x))
    x = x.reshape(1, -1)
    near = torch.tensor(radius).item()
    found = ends.ball(x, near, *(clip or (-torch.inf, torch.inf)))
    for end, sign in zip(found, (-1, 1), strict=True):
        known = add_outwards(x, sign * near)
        assert torch.equal(end, known if clip is None else known.clamp(*clip))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_what_others_set_as_default_changes_nothing(dtype: torch.dtype, always: None) -> None:
    before = torch.get_default_dtype()
    sides = bounds("plain")
    try:
        torch.set_default_dtype(dtype)
        found = reads.entry(*sides, 1e-4)
    finally:
        torch.set_default_dtype(before)
    assert all(v.dtype == torch.float32 for v in found if v is not None)


@pytest.mark.parametrize("end", [0, 1])
def test_gradients_of_either_end_are_left_to_pytorch(end: int, always: None) -> None:
    sides = bounds("plain")
    sides[end].requires_grad_()
    assert not reads.entry.applies(*sides, 1e-4)
    assert reads.entry(*sides, 1e-4)[0].requires_grad

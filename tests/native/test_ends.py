"""Passes over the ends of bounds: against automatic differentiation of the formulas, compiled and in PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from surebound.interval import Interval
from surebound.native import build, ends
from surebound.rules.relax_ends import chord, within

SHAPE = (3, 4, 5, 6)


def innermost(value: Tensor) -> Tensor:
    return value.movedim(1, -1).contiguous().movedim(-1, 1)


def draw(seed: int, layout: str) -> Tensor:
    value = torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed))
    return innermost(value) if layout == "innermost" else value


@pytest.fixture(params=["compiled", "pytorch"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "pytorch":
        monkeypatch.setattr(ends, "library", lambda: None)
    elif build.library() is None:
        pytest.skip("no C compiler here")
    return str(request.param)


def bounds(layout: str) -> tuple[Tensor, Tensor]:
    """Ends with stable units of both kinds, ends at 0, and points."""
    lower = draw(0, layout)
    upper = lower + draw(1, layout).abs()
    lower[0, 0], upper[0, 1], upper[0, 2] = 0.0, 0.0, lower[0, 2]
    return torch.minimum(lower, upper), torch.maximum(lower, upper)


@pytest.mark.parametrize("layout", ["planes", "innermost"])
def test_the_line_above_a_relu(how: str, layout: str) -> None:
    lower, upper = (end.requires_grad_() for end in bounds(layout))
    slope, top, below, free = chord(lower, upper)
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

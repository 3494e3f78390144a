from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from surebound.attack.box import InnerBox
from surebound.errors import RegionError
from surebound.region import Box, LinfBall, project

DTYPES = {torch.float16: 16, torch.float32: 32, torch.float64: 64}
radii = st.fractions(0, 2, max_denominator=10**6) | st.sampled_from(
    [Fraction(8, 255), Fraction(1, 10), Fraction(1, 2**30), Fraction(1, 10**40), Fraction(0), Fraction(1)]
)


@st.composite
def pixels(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from(list(DTYPES)))
    values = draw(st.lists(st.floats(0, 1, width=DTYPES[dtype]), min_size=1, max_size=6))
    return torch.tensor([values], dtype=dtype)


@given(pixels(), radii)
def test_ends_are_inside_the_ball_and_the_range_in_rational_arithmetic(x, eps):
    box = InnerBox.of(LinfBall(x, eps, clip=(0, 1)))
    for end in (box.lower, box.upper):
        for a, b in zip(end[0].tolist(), x[0].tolist(), strict=True):
            assert abs(Fraction(a) - Fraction(b)) <= eps
            assert 0 <= a <= 1


@given(pixels(), radii)
def test_no_float_of_the_region_is_left_out(x, eps):
    box = InnerBox.of(LinfBall(x, eps))
    # eps itself is first rounded down to float64: only what is out of reach of that counts.
    reach = Fraction(math.nextafter(float(eps), 0)) if Fraction(float(eps)) > eps else Fraction(float(eps))
    for end, side in ((box.lower, -math.inf), (box.upper, math.inf)):
        beyond = torch.nextafter(end, torch.full_like(end, side))
        for a, b in zip(beyond[0].tolist(), x[0].tolist(), strict=True):
            assert math.isinf(a) or abs(Fraction(a) - Fraction(b)) > reach


@given(st.floats(-1, 1, width=32), st.floats(0, 1, width=32), radii)
def test_any_clip_range_is_respected_but_never_excludes_the_example(low, extent, eps):
    high = low + extent
    x = torch.tensor([[low]], dtype=torch.float32)
    box = InnerBox.of(LinfBall(x, eps, clip=(low, high)))
    assert box.lower.item() == x.item()
    assert x.item() <= box.upper.item()
    assert Fraction(box.upper.item()) <= max(Fraction(high), Fraction(x.item()))


def test_infinite_clip_ends_are_no_ends():
    box = InnerBox.of(LinfBall(torch.zeros(1, 1), 1, clip=(-math.inf, math.inf)))
    assert (box.lower.item(), box.upper.item()) == (-1.0, 1.0)


def test_a_box_is_taken_as_it_is():
    lower, upper = torch.tensor([[0.0, -3e38]]), torch.tensor([[0.1, 3e38]])
    box = InnerBox.of(Box(lower, upper))
    assert torch.equal(box.lower, lower)
    assert torch.equal(box.upper, upper)
    assert bool((box.reference >= lower).all() and (box.reference <= upper).all())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.3])
def test_projection_always_lands_in_the_box(value):
    lower, upper = torch.tensor([0.1]), torch.tensor([0.2])
    assert 0.1 <= project(torch.tensor([value]), lower, upper).double().item() <= 0.2 + 1e-8


def test_an_unbounded_region_is_refused():
    with pytest.raises(RegionError, match=r"reaches infinity.*bounded region"):
        InnerBox.of(Box(torch.zeros(1, 1), torch.full((1, 1), math.inf)))


@pytest.mark.parametrize(
    ("x", "eps"), [(-(2.0**-60), 1), (2.0**-60, 1), (-(2.0**-80), 3), (2.0**-100, "1/4"), (-1e-30, "1/2")]
)
def test_a_distance_that_float64_rounds_to_the_radius_is_still_measured_exactly(x, eps):
    """1 - x rounds to 1 in float64 for tiny x: only the error of that sum tells on which side of the radius it is."""
    region = LinfBall(torch.tensor([[x]]), eps)
    box = InnerBox.of(region)
    center, radius = Fraction(region.x.item()), Fraction(eps)
    low, high = Fraction(box.lower.item()), Fraction(box.upper.item())
    assert center - radius <= low and high <= center + radius
    for end, away in ((box.upper, math.inf), (box.lower, -math.inf)):  # and the next float is outside
        beyond = Fraction(torch.nextafter(end, torch.full_like(end, away)).item())
        assert abs(beyond - center) > radius

"""Regions: exact radii, outward rounding, and messages for bad input."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import surebound as sb
from surebound.errors import RegionError, SpecError
from surebound.kernels import ends
from surebound.numerics import Soundness
from surebound.spec import check_labels, classification

X = torch.full((2, 3), 0.5)


@pytest.fixture(scope="module")
def compiled_from():
    """Sets the number of entries from which on compiled passes are used."""
    before = ends.ball.worth
    yield lambda worth: setattr(ends.ball, "worth", worth)
    ends.ball.worth = before


@settings(derandomize=True, deadline=None, max_examples=300)
@given(value=st.floats(-4, 4, width=32), eps=st.fractions(0, 2, max_denominator=255))
@pytest.mark.parametrize("worth", [1, 1 << 40])  # compiled, or by PyTorch
def test_ball_contains_every_real_point_and_little_more(value, eps, worth, compiled_from):
    compiled_from(worth)
    region = sb.LinfBall(torch.tensor([[value]]), eps)
    for mode in (Soundness.REAL, Soundness.DEPLOYED):
        interval = region.interval(mode)
        lower, upper = Fraction(float(interval.lower)), Fraction(float(interval.upper))
        exact_low, exact_up = Fraction(value) - eps, Fraction(value) + eps
        assert lower <= exact_low and exact_up <= upper
        slack = Fraction(1, 2**22) * (abs(Fraction(value)) + eps) + Fraction(1, 2**126)
        assert exact_low - lower <= slack and upper - exact_up <= slack


def test_zero_radius_is_the_point_itself():
    interval = sb.LinfBall(X, 0).interval(Soundness.DEPLOYED)
    assert torch.equal(interval.lower, X) and torch.equal(interval.upper, X)
    assert not interval.radius.any()


def test_clip_cuts_the_ball():
    interval = sb.LinfBall(torch.tensor([[0.0, 1.0]]), "1/4", clip=(0, 1)).interval(Soundness.NONE)
    assert interval.lower.tolist() == [[0.0, 0.75]] and interval.upper.tolist() == [[0.25, 1.0]]


@pytest.mark.parametrize("mode", [Soundness.REAL, Soundness.DEPLOYED])
@pytest.mark.parametrize("worth", [1, 1 << 40])  # compiled, or by PyTorch
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_clip_ends_that_are_no_floats_are_rounded_outwards(mode, worth, dtype, compiled_from):
    compiled_from(worth)
    box = sb.LinfBall(torch.tensor([[0.85, 0.15]], dtype=dtype), "1/10", clip=(0.1, 0.9)).interval(mode)
    low, high = Fraction(box.lower[0, 1].item()), Fraction(box.upper[0, 0].item())
    assert low <= Fraction(1, 10) and high >= Fraction(9, 10)
    assert high - Fraction(9, 10) < Fraction(1, 10**7) and Fraction(1, 10) - low < Fraction(1, 10**7)


def test_truncated_decimal_is_a_smaller_ball_than_the_fraction():
    exact = sb.LinfBall(X, "8/255").interval(Soundness.DEPLOYED)
    truncated = sb.LinfBall(X, 0.03137).interval(Soundness.DEPLOYED)
    assert bool((exact.upper > truncated.upper).all())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sb.LinfBall(X, -0.1), "eps=-0.1 is negative"),
        (lambda: sb.LinfBall(X, "8/0"), "eps='8/0' is not a finite number"),
        (lambda: sb.LinfBall(X * float("nan"), 0.1), "x contains NaN"),
        (lambda: sb.LinfBall((X * 255).byte(), 0.1), r"images.float\(\) / 255"),
        (lambda: sb.LinfBall(X * 255, 0.1, clip=(0, 1)), "scale the images into the clip range"),
        (lambda: sb.LinfBall(X, 0.1, clip=(1, 0)), r"give \(lowest, highest\)"),
        (lambda: sb.LinfBall(torch.tensor(0.5), 0.1), "has no batch axis"),
        (lambda: sb.LinfBall([0.5], 0.1), "x is a list; give a torch.Tensor"),
        (lambda: sb.Box(X, X - 1), r"lower > upper at index \(0, 0\)"),
        (lambda: sb.Box(torch.zeros(1, 2), torch.tensor([[1.0, -1.0]])), r"lower > upper at index \(0, 1\)"),
        (lambda: sb.Box(X, X[:1]), "two tensors of one shape and dtype"),
        (lambda: sb.Box(X, X.double()), "two tensors of one shape and dtype"),
    ],
)
def test_bad_regions_are_refused_with_a_remedy(make, message):
    with pytest.raises((RegionError, ValueError), match=message):
        make()


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([0, 3]), r"labels must be in 0..2"),
        (torch.tensor([0, -1]), r"labels must be in 0..2"),
        (torch.tensor([0]), "1 labels for 2 examples"),
        (torch.tensor([0.0, 1.0]), "give an integer tensor of shape"),
        (torch.tensor([[0, 1]]), "give an integer tensor of shape"),
        ([0, 1], "labels are list"),
    ],
)
def test_bad_labels_are_refused(labels, message):
    with pytest.raises(SpecError, match=message):
        check_labels(labels, 2, 3)


def test_bad_specifications_are_refused():
    with pytest.raises(SpecError, match=r"give floating point \(S, K\) or \(B, S, K\)"):
        sb.LinearSpec(torch.zeros(3))
    with pytest.raises(SpecError, match="contains NaN"):
        sb.LinearSpec(torch.full((1, 3), float("nan")))
    with pytest.raises(SpecError, match=r"d has shape \(3,\)"):
        sb.LinearSpec(torch.zeros(2, 3), torch.zeros(3))
    with pytest.raises(SpecError, match="3 coefficients per row but the network 10 outputs"):
        sb.LinearSpec(torch.zeros(2, 3)).rows(1, 10)
    with pytest.raises(SpecError, match="for 2 examples but the region holds 3"):
        sb.LinearSpec(torch.zeros(2, 1, 3)).rows(3, 3)


def test_classification_rows_are_differences_to_the_true_class():
    z = torch.randn(4, 5)
    labels = torch.tensor([0, 4, 2, 2])
    rows = classification(labels, 5, z.dtype).rows(4, 5)[0]
    expected = z - z.gather(1, labels[:, None])
    torch.testing.assert_close(torch.einsum("bsk,bk->bs", rows, z), expected)


def test_slices_of_regions_and_specifications():
    region = sb.LinfBall(torch.rand(4, 2), "1/8")[torch.tensor([1, 3])]
    assert len(region) == 2 and region.eps == Fraction(1, 8)
    spec = sb.LinearSpec(torch.rand(4, 2, 3), torch.rand(4, 2))[1:2]
    assert spec.c.shape == (1, 2, 3) and spec.d.shape == (1, 2)

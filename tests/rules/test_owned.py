"""Bounds in memory that may be overwritten: deferred functions, and taking the memory."""

from __future__ import annotations

import pytest
import torch

from surebound import Interval
from surebound.rules.owned import Owned


class _Clamp:
    """A function to defer that notes how it was applied."""

    def __init__(self) -> None:
        self.applied: list[str] = []

    def ends(self, lower: torch.Tensor, upper: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.applied.append("ends")
        return lower.relu_(), upper.relu_()

    def center(self, center: torch.Tensor, radius: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.applied.append("center")
        lower, upper = (center - radius).relu(), (center + radius).relu()
        return (lower + upper) * 0.5, upper - lower


def _deferred() -> tuple[Interval, _Clamp]:
    function = _Clamp()
    start = Interval.around(torch.tensor([[-3.0, 0.5, 4.0]]), torch.tensor([[1.0, 1.0, 1.0]]))
    return Owned.taking(start).deferring(function), function


@pytest.mark.parametrize("asked", ["lower", "upper", "center", "radius", "magnitude"])
def test_a_deferred_function_is_applied_once_whatever_is_asked_for(asked):
    image, function = _deferred()
    assert image.shape == (1, 3) and not function.applied and not image.centered
    getattr(image, asked)
    assert image.lower.tolist() == [[0.0, 0.0, 3.0]] and image.upper.tolist() == [[0.0, 1.5, 5.0]]
    assert image.center.tolist() == [[0.0, 0.75, 4.0]] and function.applied == ["ends"]


def test_products_get_a_deferred_function_in_one_pass_also_through_a_reshaping():
    image, function = _deferred()
    center, width, factor = Owned.taking(Owned.taking(image).moving(lambda v: v.reshape(3))).take_center()
    assert function.applied == ["center"] and factor == 0.5
    assert center.tolist() == [0.0, 0.75, 4.0] and width.tolist() == [0.0, 1.5, 2.0]


def test_entries_that_a_view_repeats_are_not_overwritten_twice():
    image, _ = _deferred()
    repeated = Owned.taking(image).moving(lambda v: v.expand(2, 3))
    assert repeated.upper.tolist() == [[0.0, 1.5, 5.0]] * 2
    shared, _ = _deferred()
    view = shared.select(lambda v: v[:, 1:])
    assert view.upper.tolist() == [[1.5, 5.0]] and shared.upper.tolist() == [[0.0, 1.5, 5.0]]


def test_a_second_function_is_applied_after_the_first():
    image, first = _deferred()
    again = Owned.taking(image).deferring(_Clamp())
    assert again.upper.tolist() == [[0.0, 1.5, 5.0]] and first.applied == ["ends"]


def test_bounds_that_are_given_back_are_ordinary_and_leave_nothing_behind():
    owned = Owned.taking(_deferred()[0])
    bounds = owned.given_back()
    assert type(bounds) is Interval and bounds.upper.tolist() == [[0.0, 1.5, 5.0]]
    assert owned._lower is None and owned._center is None

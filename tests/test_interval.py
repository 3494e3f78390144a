"""The interval type: lazy conversion, each done once."""

from __future__ import annotations

import pytest
import torch

from surebound import Interval
from surebound.errors import InputError


def test_conversions_are_lazy_and_done_once():
    interval = Interval(torch.tensor([-1.0, 2.0]), torch.tensor([3.0, 2.0]))
    assert not interval.centered
    center = interval.center
    assert center.tolist() == [1.0, 2.0] and interval.radius.tolist() == [2.0, 0.0]
    assert interval.center is center and not interval.centered  # converted, so rounded
    around = Interval.around(torch.tensor([1.0]), torch.tensor([2.0]))
    assert around.lower.item() == -1.0 and around.upper.item() == 3.0
    assert around.lower is around.lower


def test_select_moves_whichever_form_is_there():
    around = Interval.around(torch.tensor([[1.0, 5.0]]), torch.tensor([[2.0, 1.0]]))
    picked = around.select(lambda v: v[:, 1:])
    assert picked.centered and picked.lower.item() == 4.0
    ends = Interval(torch.zeros(1, 2), torch.ones(1, 2)).select(lambda v: v.reshape(2))
    assert ends.shape == (2,) and not ends.centered


def test_magnitude_contains_and_point():
    interval = Interval(torch.tensor([-3.0, 1.0]), torch.tensor([2.0, 2.0]))
    assert interval.magnitude.tolist() == [3.0, 2.0]
    assert interval.contains(torch.tensor([0.0, float("nan")])).tolist() == [True, False]
    assert not Interval.point(torch.ones(2)).radius.any()


def test_mismatched_ends_are_refused():
    with pytest.raises(InputError, match=r"lower has shape \(1,\) but upper \(2,\)"):
        Interval(torch.zeros(1), torch.ones(2))


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
    return start.deferring(function), function


@pytest.mark.parametrize("asked", ["lower", "upper", "center", "radius", "magnitude"])
def test_a_deferred_function_is_applied_once_whatever_is_asked_for(asked):
    image, function = _deferred()
    assert image.shape == (1, 3) and not function.applied and not image.centered
    getattr(image, asked)
    assert image.lower.tolist() == [[0.0, 0.0, 3.0]] and image.upper.tolist() == [[0.0, 1.5, 5.0]]
    assert image.center.tolist() == [[0.0, 0.75, 4.0]] and function.applied == ["ends"]


def test_products_get_a_deferred_function_in_one_pass_also_through_a_reshaping():
    image, function = _deferred()
    center, width, factor = image.select(lambda v: v.reshape(3), consume=True).consume_center()
    assert function.applied == ["center"] and factor == 0.5
    assert center.tolist() == [0.0, 0.75, 4.0] and width.tolist() == [0.0, 1.5, 2.0]


def test_entries_that_a_view_repeats_are_not_overwritten_twice():
    image, _ = _deferred()
    repeated = image.select(lambda v: v.expand(2, 3), consume=True)
    assert repeated.upper.tolist() == [[0.0, 1.5, 5.0]] * 2
    shared, _ = _deferred()
    view = shared.select(lambda v: v[:, 1:])
    assert view.upper.tolist() == [[1.5, 5.0]] and shared.upper.tolist() == [[0.0, 1.5, 5.0]]


def test_a_second_function_is_applied_after_the_first():
    image, first = _deferred()
    again = image.deferring(_Clamp())
    assert again.upper.tolist() == [[0.0, 1.5, 5.0]] and first.applied == ["ends"]

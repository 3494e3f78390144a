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


def test_reading_an_interval_overwrites_nothing():
    lower, upper = torch.tensor([-1.0, 2.0]), torch.tensor([3.0, 2.0])
    kept = lower.clone(), upper.clone()
    interval = Interval(lower, upper)
    _ = (
        interval.center,
        interval.radius,
        interval.magnitude,
        interval.scaled_center(),
        interval.select(torch.neg),
    )
    assert torch.equal(lower, kept[0]) and torch.equal(upper, kept[1])
    assert interval.lower is lower and interval.upper is upper

"""Losses against values computed by hand."""

from __future__ import annotations

import math

import pytest
import torch

from surebound.train.losses import cross_entropy, error, hinge, others, softplus, verified_error

MARGINS = torch.tensor([[0.0, -2.0, 1.0], [0.5, 0.0, -3.0]])
LABELS = torch.tensor([0, 1])


def test_cross_entropy_by_hand() -> None:
    first = math.log(1 + math.exp(-2) + math.exp(1))
    second = math.log(math.exp(0.5) + 1 + math.exp(-3))
    assert cross_entropy(MARGINS, LABELS).item() == pytest.approx((first + second) / 2, rel=1e-6)


def test_softplus_by_hand() -> None:
    terms = [math.log(1 + math.exp(m)) for m in (-2.0, 1.0, 0.5, -3.0)]
    assert softplus(MARGINS, LABELS).item() == pytest.approx(sum(terms) / 4, rel=1e-6)


def test_hinge_by_hand() -> None:
    assert hinge(MARGINS, LABELS).item() == pytest.approx((0 + 2 + 1.5 + 0) / 4)


def test_losses_do_not_see_a_shift_of_the_logits() -> None:
    shifted = MARGINS + torch.tensor([[7.0], [-2.0]])
    for loss in (cross_entropy, softplus, hinge):
        assert loss(shifted, LABELS).item() == pytest.approx(loss(MARGINS, LABELS).item(), rel=1e-5)


def test_others_leaves_the_true_class_out() -> None:
    assert others(MARGINS, LABELS).tolist() == [[-2.0, 1.0], [0.5, -3.0]]


def test_nothing_is_verified_by_nan() -> None:
    margins = torch.tensor([[0.0, -1.0], [0.0, math.nan], [0.0, 0.0], [0.0, 1e-9]])
    labels = torch.zeros(4, dtype=torch.int64)
    assert verified_error(margins, labels).item() == pytest.approx(0.5)  # NaN and the positive one


def test_nan_and_ties_are_wrong_predictions() -> None:
    logits = torch.tensor([[2.0, 1.0], [math.nan, math.nan], [1.0, 1.0], [math.nan, 0.0]])
    assert error(logits, torch.zeros(4, dtype=torch.int64)).item() == pytest.approx(0.75)

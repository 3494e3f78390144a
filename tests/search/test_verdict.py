"""A verdict cannot claim more than its evidence."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

from surebound.errors import InputError
from surebound.search.stages import Clean
from surebound.search.verdicts import Setting, decide, example_of
from surebound.search.workspace import Workspace
from surebound.verdict import Status, Verdict


@pytest.mark.parametrize("bound", [0.1, math.inf, math.nan])
def test_robust_needs_a_bound_that_is_at_most_zero(bound: float) -> None:
    with pytest.raises(InputError, match="needs a bound <= 0"):
        Verdict(Status.ROBUST, "interval", bound)


def test_falsified_needs_a_witness_and_nothing_else_has_one() -> None:
    with pytest.raises(InputError, match="needs the witness"):
        Verdict(Status.FALSIFIED, "pgd")
    with pytest.raises(InputError, match="only a falsified verdict carries a witness, not 'unknown'"):
        Verdict(Status.UNKNOWN, "pgd", witness=torch.zeros(1))


def test_float_sound_is_about_decisions() -> None:
    with pytest.raises(InputError, match="float_sound describes a decision"):
        Verdict(Status.TIMEOUT, "mip", float_sound=True)


@pytest.mark.parametrize("status", list(Status))
def test_every_status_explains_itself(status: Status) -> None:
    assert status.message
    assert bool(status.remedy) is not status.decided


def test_images_go_through_the_network_once_before_the_first_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predictions are kept: the stage that reads them runs nothing, and each witness is re-run alone."""
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).requires_grad_(False), torch.rand(6, 1, 2, 2)
    labels, sizes, real = net(x).argmax(1), list[int](), nn.Linear.forward
    labels[4:] = (labels[4:] + 1) % 3
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: sizes.append(len(x)) or real(self, x))

    def answered(labels: Tensor) -> int:
        pairs = zip(x, labels.tolist(), strict=True)
        examples = [example_of(i, image, label, Fraction(1, 10), "") for i, (image, label) in enumerate(pairs)]
        with Workspace(net) as workspace:
            return len(decide([Clean()], examples, Setting(), workspace)[0])

    assert answered(labels) == 2
    assert sizes.count(6) == 1 and all(size == 1 for size in sizes if size != 6)

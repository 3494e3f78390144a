"""A verdict cannot claim more than its evidence."""

from __future__ import annotations

import math

import pytest
import torch

from surebound.errors import InputError
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

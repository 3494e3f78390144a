"""The whole backward step of every case, adjoint or lines with all that is paid, against the operator itself.

a.y <= coefficients.x + offset must hold in exact arithmetic, without any tolerance: of results in float64 in mode
``real``; in ``deployed`` also of float32 results, where sums are taken in several orders.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from surebound.bounds.linear.steps import AffineStep
from surebound.errors import BoundError
from surebound.numerics import Soundness
from tests.rules.cases import CASES, Case
from tests.rules.harness import boxes, generator, points
from tests.rules.steps import Call, build, check, coefficients, kinds, orders, per_example

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")


def _labels(cases: list[Case]) -> list[str]:
    return [f"{case.op}-{i}" for i, case in enumerate(cases)]


@pytest.mark.parametrize("case", CASES, ids=_labels(CASES))
def test_steps_hold(case: Case) -> None:
    if not per_example(case):
        pytest.skip("not a value with a batch axis of its own")
    for mode, (number, box) in itertools.product(
        (Soundness.REAL, Soundness.DEPLOYED), enumerate(kinds(case))
    ):
        try:
            call = build(case, box, mode)
        except BoundError:
            continue  # e.g. a divisor that may be 0
        assert call is not None
        g = generator(7)
        for operands in points(box, 4, seed=number):
            _hold(call, operands, torch.float64, g, f"{mode.value}, box {number}")
            if mode is Soundness.DEPLOYED:
                _hold(call, operands, torch.float32, g, f"{mode.value}, box {number}, in float32")


def _hold(call: Call, operands: list[Tensor], dtype: torch.dtype, g: torch.Generator, where: str) -> None:
    """Every step of the call at one point."""
    sources, result = call.at(operands, dtype)
    for k, step, names, affine in call.steps:
        y = result if k is None else result[k]
        a = coefficients(y.shape, g)
        known = [name for name in names if name in sources]  # a step without coefficients may name others
        values, bounds = [sources[n] for n in known], [call.bounds[n] for n in known]
        for executed in orders(affine if dtype == torch.float32 else None, values, y):
            check(step, a, values, bounds, executed, where)


def test_the_oracle_sees_a_step_that_pays_nothing() -> None:
    """What the test above is worth: without what is paid for rounding it fails."""
    case = next(c for c in CASES if c.op == "linear.default")
    box = [(low, low) for low, _ in boxes(case, 2)]
    call = build(case, box, Soundness.DEPLOYED)
    assert call is not None
    _, step, names, affine = call.steps[0]
    assert affine is not None and isinstance(step, AffineStep)
    g, wrong = generator(7), 0
    free = AffineStep(step.affine, step.operator, step.arguments, step.in_shape, step.constant)
    for operands in points(box, 4):
        sources, y = call.at(operands, torch.float32)
        values, bounds = [sources[n] for n in names], [call.bounds[n] for n in names]
        for executed in orders(affine, values, y):
            try:
                check(free, coefficients(y.shape, g), values, bounds, executed, "")
            except AssertionError:
                wrong += 1
    assert wrong

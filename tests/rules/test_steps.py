"""The whole backward step of every case, adjoint or lines with all that is paid, against the operator itself.

a.y <= coefficients.x + offset must hold in exact arithmetic, without any tolerance: of results in float64 in mode
``real``; in ``deployed`` also of float32 results, where sums are taken in several orders. The same of steps for
coefficients in float64, which pay for less.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from surebound.bounds.linear.steps import AffineStep
from surebound.errors import BoundError
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.rules import Context, find
from surebound.rules.relax.lines import Lines, Relaxation
from tests.rules.cases import CASES, Case
from tests.rules.harness import boxes, generator, points
from tests.rules.steps import Call, build, check, coefficients, kinds, orders, per_example, record, rule_of

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")


def _labels(cases: list[Case]) -> list[str]:
    return [f"{case.op}-{i}" for i, case in enumerate(cases)]


@pytest.mark.parametrize("wide", [False, True], ids=["float32", "float64"])
@pytest.mark.parametrize("case", CASES, ids=_labels(CASES))
def test_steps_hold(case: Case, wide: bool) -> None:
    if not per_example(case):
        pytest.skip("not a value with a batch axis of its own")
    held = set[Soundness]()
    for mode, (number, box) in itertools.product((Soundness.REAL, Soundness.DEPLOYED), enumerate(kinds(case))):
        try:
            call = build(case, box, mode, wide=wide)
        except BoundError:
            continue  # e.g. a divisor that may be 0
        assert call is not None
        held.add(mode)
        g = generator(7)
        for operands in points(box, 2 if wide else 4, seed=number):
            _hold(call, operands, torch.float64, g, f"{mode.value}, box {number}")
            if mode is Soundness.DEPLOYED:
                _hold(call, operands, torch.float32, g, f"{mode.value}, box {number}, in float32")
    assert len(held) == 2, "refused on every box"


def _hold(call: Call, operands: list[Tensor], dtype: torch.dtype, g: torch.Generator, where: str) -> None:
    """Every step of the call at one point."""
    sources, result = call.at(operands, dtype)
    for k, step, names, affine in call.steps:
        y = result if k is None else result[k]
        a = coefficients(y.shape, g)
        if call.wide:  # numbers that float32 does not hold
            a = a.double() * (1 + 2.0**-30 * torch.rand(a.shape, generator=g, dtype=torch.float64))
        known = [name for name in names if name in sources]  # a step without coefficients may name others
        values, bounds = [sources[n] for n in known], [call.bounds[n] for n in known]
        for executed in orders(affine if dtype == torch.float32 else None, values, y):
            check(step, a, values, bounds, executed, where)


FANNED = [case for case in CASES if rule_of(case).activation is not None and per_example(case)]


@pytest.mark.parametrize("case", FANNED, ids=_labels(FANNED))
def test_mixtures_of_a_fans_lines_hold(case: Case) -> None:
    """Any share between the line for the lower end, that for the middle and that for the upper one."""
    found = 0
    for mode, (number, box) in itertools.product((Soundness.REAL, Soundness.DEPLOYED), enumerate(kinds(case))):
        call = build(case, box, mode)
        assert call is not None
        operands = [Interval(low, high) for low, high in box]
        note = record(case, operands, torch.float32, None)
        step = rule_of(case).relax(Context(mode, fans=True), *note.args, **note.kwargs)  # type: ignore[misc]
        if not isinstance(step, Lines) or step.fan is None:
            continue
        found, g = found + 1, generator(9)
        for point in points(box, 4, seed=number):
            for dtype in (torch.float64, torch.float32)[: 2 if mode is Soundness.DEPLOYED else 1]:
                sources, y = call.at(point, dtype)
                a = coefficients(y.shape, g)
                share = torch.rand(a.shape, generator=g)
                share = torch.where(share < 0.2, 0.0, torch.where(share > 0.8, 1.0, share))
                values = [sources[name] for name in call.bounds]
                check(step, a, values, list(call.bounds.values()), y, f"{mode.value}, box {number}", share)
    assert found == 0 or found >= 4


def test_most_elementwise_functions_have_fans_but_those_with_a_free_slope() -> None:
    x = Interval(torch.full((1, 3), -0.75), torch.full((1, 3), 1.5))
    names = ("sigmoid", "tanh", "gelu", "silu", "sin", "exp", "softplus", "elu", "clamp", "hardsigmoid", "erf")
    for name in names:
        rest = (-0.5, 0.5) if name == "clamp" else ()
        step = find(f"aten.{name}.default").relax(Context(Soundness.DEPLOYED, fans=True), x, *rest)  # type: ignore[union-attr, misc]
        assert step.fan is not None, name
        gaps = []
        for share, end in ((0.0, x.lower), (1.0, x.upper)):  # the line for an end is closer there
            (below, bottom), (above, top) = step.between(torch.full((1, 3), share))
            (lower, low), (upper, high) = step.between(torch.full((1, 3), 0.5))
            gaps.append(float(((above - below) * end + top - bottom).max()))
            assert gaps[-1] <= float(((upper - lower) * end + high - low).max()) + 1e-6, name
        assert max(gaps) < 0.02, name
    assert find("aten.relu.default").relax(Context(Soundness.DEPLOYED, fans=True), x).fan is None  # type: ignore[union-attr, misc]


@pytest.mark.parametrize("wide", [False, True], ids=["float32", "float64"])
def test_the_oracle_sees_a_step_that_pays_nothing(wide: bool) -> None:
    """What the test above is worth: without what is paid for rounding it fails."""
    call = _linear_at_points(Soundness.DEPLOYED, wide)
    _, step, _, affine = call.steps[0]
    assert affine is not None and isinstance(step, AffineStep)
    free = AffineStep(step.affine, step.operator, step.arguments, step.in_shape, step.constant)
    assert _refuted(call, free)


def test_the_oracle_sees_a_step_in_float64_without_the_networks_own_rounding() -> None:
    """Over the reals it is not paid for: such a step does not hold of what float32 computes."""
    call = _linear_at_points(Soundness.REAL, wide=True)
    assert _refuted(call, call.steps[0][1])
    call = _linear_at_points(Soundness.DEPLOYED, wide=True)
    assert not _refuted(call, call.steps[0][1])


def _linear_at_points(mode: Soundness, wide: bool) -> Call:
    case = next(c for c in CASES if c.op == "linear.default")
    call = build(case, [(low, low) for low, _ in boxes(case, 2)], mode, wide=wide)
    assert call is not None
    return call


def _refuted(call: Call, step: Relaxation) -> int:
    """How often float32 results in some order exceed what a step of the call claims."""
    _, _, names, affine = call.steps[0]
    g, wrong = generator(7), 0
    for operands in points(call.boxes, 4):
        sources, y = call.at(operands, torch.float32)
        values, bounds = [sources[n] for n in names], [call.bounds[n] for n in names]
        for executed in orders(affine, values, y):
            a = coefficients(y.shape, g)
            try:
                check(step, a.double() if call.wide else a, values, bounds, executed, "")
            except AssertionError:
                wrong += 1
    return wrong

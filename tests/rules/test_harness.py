"""Every rule against the operator itself: the properties that make a bound a bound."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from surebound.errors import BoundError
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.rules import Context, all_rules, find
from tests.rules.cases import CASES, Case, Constants
from tests.rules.harness import bounds, boxes, number, outside, points, values

NONE, REAL, DEPLOYED = Soundness.NONE, Soundness.REAL, Soundness.DEPLOYED


def _ids(cases: list[Case]) -> list[str]:
    seen: dict[str, int] = {}
    ids = []
    for case in cases:
        seen[case.op] = seen.get(case.op, 0) + 1
        ids.append(f"{case.op}-{seen[case.op]}")
    return ids


pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")  # torch's own, about a copy
every = pytest.mark.parametrize("case", CASES, ids=_ids(CASES))
smooth = [case for case in CASES if case.smooth]
rowwise = [case for case in CASES if case.rowwise]


def test_every_rule_has_a_case() -> None:
    missing = {rule.op for rule in all_rules()} - {case.name for case in CASES}
    assert not missing, f"add a line to tests/rules/cases.py for {sorted(missing)}"


@every
def test_deployed_bounds_hold_what_float32_computes(case: Case) -> None:
    for seed in range(2):
        box = boxes(case, seed)
        found = bounds(case, box, DEPLOYED, torch.float32)
        for operands in points(box, 8, seed):
            for bound, value in zip(found, values(case, operands, torch.float32), strict=True):
                assert not (outside(bound, value) > 0).any()


@every
def test_real_bounds_hold_exact_results(case: Case) -> None:
    """Float64 stands for exact: its own error is 1e-16 of what the operator sums, bounded by 1e-13 of the result."""
    for seed in range(2, 4):
        box = boxes(case, seed)
        found = bounds(case, box, REAL, torch.float32)
        for operands in points(box, 8, seed):
            for bound, value in zip(found, values(case, operands, torch.float64), strict=True):
                assert not (outside(bound, value, 1e-13) > 0).any()


@every
def test_plain_bounds_hold_and_are_tight(case: Case) -> None:
    """In float64, without rounding control: they hold up to rounding, and the deployed ones are hardly wider."""
    box = boxes(case, 4)
    plain, sound = bounds(case, box, NONE, torch.float64), bounds(case, box, DEPLOYED, torch.float64)
    for operands in points(box, 8):
        for bound, value in zip(plain, values(case, operands, torch.float64), strict=True):
            assert not (outside(bound, value, 1e-8) > 0).any()
    for a, b in zip(plain, sound, strict=True):
        for x, y in ((a.lower, b.lower), (a.upper, b.upper)):
            assert torch.allclose(number(x), number(y), rtol=1e-8, atol=1e-7)


@every
def test_isotone(case: Case) -> None:
    """A box inside another gives bounds inside the other's."""
    outer = boxes(case, 5)
    inner = [(low + (high - low) * 0.25, high - (high - low) * 0.375) for low, high in outer]
    wide, narrow = bounds(case, outer, NONE, torch.float64), bounds(case, inner, NONE, torch.float64)
    for w, n in zip(wide, narrow, strict=True):
        assert not (outside(w, n.lower, 1e-9) > 0).any()
        assert not (outside(w, n.upper, 1e-9) > 0).any()


@every
def test_a_point_gives_a_point(case: Case) -> None:
    points_only = [(low, low) for low, _ in boxes(case, 6)]
    if case.op in ("max.dim",) and not case.smooth:
        pytest.skip("positions are known by their range only")
    for bound, value in zip(
        bounds(case, points_only, NONE, torch.float64),
        values(case, [b[0] for b in points_only], torch.float64),
        strict=True,
    ):
        for end in (bound.lower, bound.upper):
            assert torch.allclose(number(end), number(value), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", smooth, ids=_ids(smooth))
def test_gradients(case: Case) -> None:
    """Of both ends by both ends of every operand, against finite differences."""
    leaves = []
    for low, high in boxes(case, 7):
        leaves += [low.double().requires_grad_(), (high - low + 0.01).double().requires_grad_()]
    rule = find(case.name)
    assert rule is not None

    def run(*ends: Tensor) -> tuple[Tensor, ...]:
        operands = [Interval(a, a + w) for a, w in zip(ends[::2], ends[1::2], strict=True)]
        result: Any = case.call(
            lambda *a, **k: rule.interval(Context(NONE), *a, **k), Constants(torch.float64), *operands
        )
        parts = result if isinstance(result, (list, tuple)) else [result]
        return tuple(end for part in parts for end in (part.lower, part.upper))

    assert torch.autograd.gradcheck(run, leaves, eps=1e-7, atol=1e-5, rtol=1e-4, fast_mode=True)


@pytest.mark.parametrize("case", rowwise, ids=_ids(rowwise))
def test_a_batch_is_its_examples_stacked(case: Case) -> None:
    box = boxes(case, 8)
    together = bounds(case, box, DEPLOYED, torch.float64)
    for row in range(case.shapes[0][0]):
        alone = bounds(case, [(low[row : row + 1], high[row : row + 1]) for low, high in box], DEPLOYED, torch.float64)
        for a, b in zip(together, alone, strict=True):
            for x, y in ((a.lower, b.lower), (a.upper, b.upper)):
                assert torch.allclose(number(x[row : row + 1]), number(y), rtol=1e-10, atol=1e-12)


def _varied(case: Case, kind: str) -> tuple[list[tuple[Tensor, Tensor]], list[list[Tensor]]]:
    """A box with one entry unbounded or NaN, and operands that the box may not exclude."""
    box = boxes(case, 9)
    low, high = (end.clone() for end in box[0])
    at = tuple(0 for _ in low.shape)
    far = [case.low, case.high, 0.5 * (case.low + case.high)]
    if kind in ("below", "nan below"):
        low[at] = -math.inf if kind == "below" else math.nan
    elif kind in ("above", "nan above"):
        high[at] = math.inf if kind == "above" else math.nan
    else:
        low[at], high[at] = (-math.inf, math.inf) if kind == "anything" else (math.nan, math.nan)
    operands = []
    for chosen in list(points(box, 2))[1:]:
        for value in far:
            moved = chosen[0].clone()
            moved[at] = value
            below, above = moved[at] < low[at], moved[at] > high[at]  # False against NaN
            if not bool(below) and not bool(above):
                operands.append([moved, *chosen[1:]])
    return [(low, high), *box[1:]], operands


KINDS = ["below", "above", "anything", "nan", "nan below", "nan above"]


@every
def test_infinite_and_unknown_ends(case: Case) -> None:
    """No crash, and nothing that such an end may reach is excluded; a NaN bound excludes nothing."""
    answered = 0
    for kind, mode in itertools.chain(((kind, DEPLOYED) for kind in KINDS), [("anything", NONE), ("nan", NONE)]):
        box, operands = _varied(case, kind)
        try:
            found = bounds(case, box, mode, torch.float32)
        except BoundError:
            continue  # e.g. division by an interval that contains 0
        answered += 1
        for chosen in operands:
            for bound, value in zip(found, values(case, chosen, torch.float32), strict=True):
                assert not (outside(bound, value, 1e-5 if mode is NONE else 0.0) > 0).any()
    assert answered, "refused with every such end"


@every
def test_centred_operands(case: Case) -> None:
    """Rules accept both forms of an Interval: made from centre and radius they bound what that means."""
    rule = find(case.name)
    assert rule is not None
    box = boxes(case, 10)
    operands = []
    for low, high in box:
        center = (low + high) / 2
        radius = torch.minimum(center - low, high - center) * 0.75
        operands.append(Interval.around(center, radius))
    result: Any = case.call(
        lambda *a, **k: rule.interval(Context(DEPLOYED), *a, **k), Constants(torch.float32), *operands
    )
    found = result if isinstance(result, (list, tuple)) else [result]
    for chosen in points([(x.center - x.radius * 0.99, x.center + x.radius * 0.99) for x in operands], 8):
        for bound, value in zip(found, values(case, chosen, torch.float32), strict=True):
            whole = Interval.point(bound) if isinstance(bound, Tensor) else bound
            assert not (outside(whole, value) > 0).any()

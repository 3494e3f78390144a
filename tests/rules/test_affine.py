"""The affine column against the operator: adjoint by vjp, magnitude and counts by the matrix itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from surebound.rules import Affine, find
from surebound.rules.vjp import looped_adjoint, vjp_adjoint
from tests.rules.cases import CASES, Case, Constants
from tests.rules.harness import generator

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")


class _Marker:
    """Stands for the varying operand while the call's arguments are recorded."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = torch.Size(shape)


def _facts(case: Case, batch: int | None = None) -> tuple[Affine, tuple[Any, ...], dict[str, Any]] | None:
    """The facts that fit a case with one varying operand, and the other arguments for a batch of this size."""
    rule = find(case.name)
    assert rule is not None
    if len(case.shapes) != 1 or rule.affine is None:
        return None
    marker = _Marker((batch or case.shapes[0][0], *case.shapes[0][1:]))
    recorded: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def record(*args: Any, **kwargs: Any) -> list[Tensor]:
        recorded.append((args, kwargs))
        return [torch.zeros(1)] * 3

    case.call(record, Constants(torch.float64), marker)
    args, kwargs = recorded[0]
    places = [i for i, arg in enumerate(args) if arg is marker]
    facts = rule.affine_at(places[0]) if len(places) == 1 else None
    if facts is None:
        return None
    return facts, tuple(arg for i, arg in enumerate(args) if i != places[0]), kwargs


AFFINE = [case for case in CASES if _facts(case) is not None and case.rowwise]
every = pytest.mark.parametrize("case", AFFINE, ids=[f"{case.op}-{i}" for i, case in enumerate(AFFINE)])


def _apply(case: Case, x: Tensor) -> Tensor:
    result = case.call(case.overload, Constants(torch.float64), x)
    return result[0] if isinstance(result, (tuple, list)) else result


def _matrix(case: Case) -> tuple[Tensor, Tensor]:
    """A (out, in) and b (out,) of one example, column by column."""
    shape = (1, *case.shapes[0][1:])
    zero = torch.zeros(shape, dtype=torch.float64)
    constant = _apply(case, zero).flatten()
    columns = []
    for i in range(zero.numel()):
        unit = zero.flatten().clone()
        unit[i] = 1
        columns.append(_apply(case, unit.reshape(shape)).flatten() - constant)
    return torch.stack(columns, 1), constant


def test_the_families_that_should_be_affine_are() -> None:
    ops = {case.op for case in AFFINE}
    needed = {"linear.default", "conv2d.default", "conv_transpose2d.input", "matmul.default", "addmm.default"}
    needed |= {
        "avg_pool2d.default",
        "mean.dim",
        "sum.dim_IntList",
        "adaptive_avg_pool2d.default",
        "cumsum.default",
    }
    needed |= {"pad.default", "view.default", "expand.default", "index.Tensor", "rsub.Scalar", "div.Tensor"}
    assert needed <= ops
    for op, positions in (
        ("aten.sub.Tensor", (0, 1)),
        ("aten.matmul.default", (0, 1)),
        ("aten.addmm.default", (1,)),
    ):
        rule = find(op)
        assert rule is not None and all(rule.affine_at(p) is not None for p in positions)
        assert rule.affine_at(7) is None


@every
def test_adjoint_is_the_vjp(case: Case) -> None:
    facts, rest, kwargs = _facts(case) or pytest.fail("no facts")
    shape = case.shapes[0]
    g = generator(2)
    out = _apply(case, torch.zeros(shape, dtype=torch.float64))
    a = torch.randn((3, *out.shape), generator=g, dtype=torch.float64)
    back = facts.adjoint(a, torch.Size(shape), *rest, **kwargs)
    if case.op == "detach.default":  # no gradient, but the value
        expected = a
    else:
        pull = torch.func.vjp(lambda x: _apply(case, x), torch.zeros(shape, dtype=torch.float64))[1]
        expected = torch.stack([pull(row)[0] for row in a])
    assert back.shape == (3, *shape)
    assert torch.allclose(back, expected, rtol=1e-12, atol=1e-12)


@every
def test_magnitude_bounds_every_summand(case: Case) -> None:
    facts, rest, kwargs = _facts(case, batch=1) or pytest.fail("no facts")
    matrix, constant = _matrix(case)
    size = torch.rand((1, *case.shapes[0][1:]), generator=generator(3), dtype=torch.float64)
    found = facts.magnitude(size, *rest, **kwargs).flatten()
    needed = matrix.abs() @ size.flatten() + constant.abs()
    assert bool((found >= needed * (1 - 1e-12)).all())


@every
def test_counts_are_not_below_the_matrix(case: Case) -> None:
    facts, rest, kwargs = _facts(case) or pytest.fail("no facts")
    matrix, constant = _matrix(case)
    rows, columns = (matrix != 0).sum(1), (matrix != 0).sum(0)
    terms = facts.count(case.shapes[0], *rest, **kwargs)
    back = facts.adjoint_count(case.shapes[0], *rest, **kwargs)
    assert terms <= facts.terms(*rest, **kwargs) and back <= facts.adjoint_terms(*rest, **kwargs)
    if terms == 0:  # a mere move: entries as they are, or with the other sign
        assert int(rows.max()) <= 1 and not constant.any()
        assert set(matrix.unique().tolist()) <= {-1.0, 0.0, 1.0}
    else:
        assert terms >= int(rows.max()) + int(bool(constant.any())) - 1
    assert max(1, back) >= int(columns.max())


@every
def test_what_keeps_entries_apart_has_one_number_in_a_column(case: Case) -> None:
    facts, rest, kwargs = _facts(case) or pytest.fail("no facts")
    if facts.keeps_apart(case.shapes[0], *rest, **kwargs):
        assert int((_matrix(case)[0] != 0).sum(0).max()) <= 1


def test_which_operators_keep_entries_apart() -> None:
    def apart(op: str, shape: tuple[int, ...], *rest: Any) -> bool:
        rule = find(f"aten.{op}")
        assert rule is not None and rule.affine is not None
        return rule.affine.keeps_apart(shape, *rest)

    image, pool = (1, 2, 6, 6), "avg_pool2d.default"
    assert apart(pool, image, [2, 2]) and apart(pool, image, [2, 3], [2, 3]) and apart(pool, image, [2], [3])
    assert not apart(pool, image, [3, 3], [2, 2]) and not apart(pool, image, [1, 3], [2, 2])
    assert not apart("avg_pool3d.default", (1, 1, 6, 6, 6), [2, 3, 2], [2, 2, 2])
    adaptive = "adaptive_avg_pool2d.default"
    assert apart(adaptive, image, [1, 1]) and apart(adaptive, image, [3, 2]) and not apart(adaptive, image, [4, 3])
    assert (
        apart("mean.dim", image, [2, 3]) and apart("view.default", image, [1, 72]) and apart("mul.Tensor", image, 2.0)
    )
    assert apart("mul.Tensor", image, torch.ones(6)) and not apart("mul.Tensor", (1, 2, 1, 6), torch.ones(6, 1))
    assert not apart("conv2d.default", image, torch.ones(2, 2, 1, 1)) and not apart("cumsum.default", (1, 4), 1)


def test_no_rows_go_back_as_no_rows() -> None:
    """A network whose ReLUs are all stable asks for the bounds of none of them."""
    a = torch.zeros(0, 2, 1, 4)
    for adjoint in (vjp_adjoint, looped_adjoint):
        assert adjoint(lambda x: x.repeat(1, 1, 2), a, torch.Size((2, 1, 2))).shape == (0, 2, 1, 2)

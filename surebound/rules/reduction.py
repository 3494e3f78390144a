"""Reductions: sums and means are linear with coefficients >= 0, extremes and order statistics rise in every entry."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from surebound.errors import BoundError
from surebound.interval import Interval
from surebound.numerics import outward, tiny, unit_roundoff
from surebound.rules.activation import elementwise_interval
from surebound.rules.affine import averaged
from surebound.rules.facts import Affine, Stacks
from surebound.rules.mip.maximum import encode_largest, encode_smallest
from surebound.rules.piecewise import ABSOLUTE
from surebound.rules.registry import Context, Rule, register
from surebound.rules.relax.choice import extreme
from surebound.rules.relax.windows import along_axis, both_ends, running
from surebound.rules.selection import monotone
from surebound.rules.shape import overload_of
from surebound.rules.vjp import vjp_adjoint

#: Summands assumed by a caller that does not say the operand's shape (see Affine.count).
_MANY = 1 << 20


def _summands(shape: Sequence[int], dim: Any = None, *_: Any, **__: Any) -> int:
    """Count the entries of a tensor of this shape that are summed into one, and one rounding for a division."""
    if dim is None or (isinstance(dim, Sequence) and not dim):
        return math.prod(shape) + 1
    dims = [dim] if isinstance(dim, int) else list(dim)
    return math.prod(int(shape[d]) for d in dims) + 1


def check_dtype(x: Interval, dtype: torch.dtype | None) -> None:
    """Refuse an operator that computes in another dtype than its argument's."""
    if dtype is not None and dtype != x.dtype:
        raise BoundError(f"an operator on {x.dtype} computes in {dtype}; convert the tensor before it")


def _sum(
    op: Callable[..., Tensor],
    ctx: Context,
    x: Interval,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Interval:
    """Bound a sum or mean over some axes or all, or a cumsum along one."""
    check_dtype(x, dtype)
    args = () if dim is None else (dim, keepdim)
    return averaged(ctx, x, _summands(x.shape, dim), lambda v: op(v, *args))


for _name in ("sum", "mean"):
    register(Rule(f"aten.{_name}.default", "reduction", partial(_sum, overload_of(f"aten.{_name}.default"))))
for _op in ("sum.dim_IntList", "mean.dim"):
    _overload = overload_of(f"aten.{_op}")
    register(
        Rule(
            f"aten.{_op}",
            "reduction",
            partial(_sum, _overload),
            Affine(
                adjoint=partial(vjp_adjoint, _overload),
                magnitude=_overload,
                terms=lambda *_, **__: _MANY,
                adjoint_terms=lambda *_, **__: 1,
                terms_in=_summands,
            ),
            stacks=Stacks(_overload),
        )
    )


def _cumsum(ctx: Context, x: Interval, dim: int, *, dtype: torch.dtype | None = None) -> Interval:
    check_dtype(x, dtype)
    return averaged(ctx, x, _summands(x.shape, dim), lambda v: torch.cumsum(v, dim))


register(
    Rule(
        "aten.cumsum.default",
        "reduction",
        _cumsum,
        Affine(
            adjoint=partial(vjp_adjoint, torch.cumsum),
            magnitude=torch.cumsum,
            terms=lambda *_, **__: _MANY,
            adjoint_terms=lambda *_, **__: _MANY,
            terms_in=_summands,
            adjoint_terms_in=_summands,
        ),
    )
)

for _op, _sign, _encode in (("amax", 1.0, encode_largest), ("amin", -1.0, encode_smallest)):
    _run, _lines = partial(monotone, overload_of(f"aten.{_op}.default")), partial(extreme, _sign)
    register(Rule(f"aten.{_op}.default", "reduction", _run, relax=_lines, mip=_encode, chooses=True))
for _op in ("max.default", "min.default"):
    register(Rule(f"aten.{_op}", "reduction", partial(monotone, overload_of(f"aten.{_op}"))))


def _with_positions(op: Callable[..., Any], ctx: Context, x: Interval, *args: Any, **kwargs: Any) -> Any:
    """Bound values that rise in every entry, and positions, of which only their range is known."""
    # NaN, "unknown", would be sorted as the largest.
    low = op(x.lower.nan_to_num(-math.inf, math.inf, -math.inf), *args, **kwargs)
    high = op(x.upper.nan_to_num(math.inf, math.inf, -math.inf), *args, **kwargs)
    length = max(int(s) for s in x.shape) if len(x.shape) else 1
    anywhere = Interval(torch.zeros_like(low[1]), torch.full_like(low[1], length - 1))
    return Interval(low[0], high[0]), anywhere


for _op, _relax in (
    ("max.dim", partial(along_axis, 1.0)),
    ("min.dim", partial(along_axis, -1.0)),
    ("topk.default", None),
    ("sort.default", None),
    ("sort.stable", None),
    ("cummax.default", partial(running, 1.0)),
    ("cummin.default", partial(running, -1.0)),
):
    register(
        Rule(
            f"aten.{_op}",
            "reduction",
            partial(_with_positions, overload_of(f"aten.{_op}")),
            relax=_relax,
            note="values only",
            several=True,
        )
    )


def _aminmax(ctx: Context, x: Interval, *, dim: int | None = None, keepdim: bool = False) -> tuple[Interval, Interval]:
    low = torch.aminmax(x.lower, dim=dim, keepdim=keepdim)
    high = torch.aminmax(x.upper, dim=dim, keepdim=keepdim)
    return Interval(low.min, high.min), Interval(low.max, high.max)


register(Rule("aten.aminmax.default", "reduction", _aminmax, relax=both_ends, several=True))


def _norm(
    ctx: Context,
    x: Interval,
    ord: float = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Interval:
    """Bound a vector norm: it rises in every |x|. Terms are >= 0, so the error is relative: n summands and a root."""
    check_dtype(x, dtype)
    if not ord >= 1:
        raise BoundError(f"the vector norm of order {ord} has no rule; use 1 or more")
    size = elementwise_interval(ABSOLUTE, ctx, x)
    lower, upper = (torch.linalg.vector_norm(end, ord, dim, keepdim) for end in (size.lower, size.upper))
    if ord == math.inf:
        return Interval(lower, upper)
    count = _summands(x.shape, dim)
    # Powers that underflow: their sum is wrong by n tiny, its root by the root of that.
    lost = (count * 4 * tiny(x.dtype)) ** (1 / ord) / (2 * unit_roundoff(x.dtype))
    lower, upper = outward(lower, upper, ctx.soundness, 4.0 * ord + 4 + count, lost)
    return Interval(lower.clamp(min=0), upper)


register(Rule("aten.linalg_vector_norm.default", "reduction", _norm))

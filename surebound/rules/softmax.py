"""softmax, log_softmax and logsumexp: exact hulls, in time linear in the number of classes.

softmax_i rises in x_i and falls in every other x_j, so its extremes are at (u_i, l_others) and (l_i, u_others):
p_i = sigmoid(x_i - logsumexp of the others). log_softmax_i = log p_i.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from surebound.interval import Interval
from surebound.numerics import outward
from surebound.rules.activation import elementwise_interval
from surebound.rules.arithmetic import mul_interval
from surebound.rules.reduction import check_dtype
from surebound.rules.registry import Context, Rule, register
from surebound.rules.relax.softmax import SoftmaxPlanes, softmax_planes
from surebound.rules.smooth import SIGMOID


def _others(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return m and log S (..., K) with exp(m) S = the sum of exp over the *other* entries of the last axis.

    m is the largest of the others, so that 1 <= S <= K: nothing over- or underflows and nothing cancels. If all the
    others are -infinite, masked that is, log S is.
    """
    best, second = x.topk(2, dim=-1).values.unbind(-1)
    alone = (second == -torch.inf).unsqueeze(-1)
    second = second.masked_fill(second == -torch.inf, 0.0)
    first = F.one_hot(x.argmax(-1), x.shape[-1]).bool()  # (..., K)
    # Everybody but the largest: the sums before and after an entry, shifted by the largest.
    terms = torch.exp(x - best.unsqueeze(-1))
    zero = torch.zeros_like(terms[..., :1])
    before = torch.cat([zero, terms[..., :-1].cumsum(-1)], -1)
    after = torch.cat([terms[..., 1:].flip(-1).cumsum(-1).flip(-1), zero], -1)
    # The largest: everybody else, shifted by the second.
    rest = torch.where(
        first, torch.zeros_like(terms), torch.exp(x.masked_fill(first, -torch.inf) - second.unsqueeze(-1))
    )
    top = rest.sum(-1, keepdim=True).expand_as(terms)
    sums = torch.where(first, top, before + after)
    shift = torch.where(first, second.unsqueeze(-1).expand_as(terms), best.unsqueeze(-1).expand_as(terms))
    nobody = alone & first
    return shift, torch.log(sums.masked_fill(nobody, 1.0)).masked_fill(nobody, -torch.inf)


def _log_odds(x: Tensor, others: Tensor) -> Tensor:
    """Return x_i - logsumexp of others_j, j != i; the large differences first."""
    shift, log_sums = _others(others)
    return (x - shift) - log_sums


def _extremes(ctx: Context, x: Interval, dim: int, finish: Any) -> tuple[Tensor, Tensor]:
    # NaN where an entry may be infinite or all may be -infinite: an execution subtracts the largest.
    odd = ~((x.upper < torch.inf).all(dim, keepdim=True) & (x.lower.amax(dim, keepdim=True) > -torch.inf))
    low, high = (end.masked_fill(odd, torch.nan).movedim(dim, -1) for end in (x.lower, x.upper))
    if low.shape[-1] == 1:
        single = torch.full_like(low, torch.inf) + 0 * low  # alone: probability 1, NaN stays NaN
        return finish(single).movedim(-1, dim), finish(single).movedim(-1, dim)
    return (
        finish(_log_odds(low, high)).movedim(-1, dim),
        finish(_log_odds(high, low)).movedim(-1, dim),
    )


def _softmax(ctx: Context, x: Interval, dim: int, dtype: torch.dtype | None = None, **_: Any) -> Interval:
    """Bound softmax. Relative error: |log p| u for rounded exponents (52 ulps until float32 underflows, 373 in double),
    one per summand, and a few for the functions."""
    check_dtype(x, dtype if isinstance(dtype, torch.dtype) else None)
    lower, upper = _extremes(ctx, x, dim, torch.sigmoid)
    lower, upper = outward(lower, upper, ctx.soundness, _ulps(x, dim), underflow=4.0 * x.shape[dim])
    return Interval(lower.clamp(0, 1), upper.clamp(0, 1))


def _ulps(x: Interval, dim: int) -> float:
    return (56.0 if x.dtype == torch.float32 else 384.0) + x.shape[dim] + 16


def _planes(ctx: Context, x: Interval, dim: int, dtype: torch.dtype | None = None, **_: Any) -> SoftmaxPlanes | None:
    """Relax softmax by planes, as accurate as ``_softmax`` says."""
    return softmax_planes(ctx, x, _softmax(ctx, x, dim, dtype), dim, _ulps(x, dim))


def _log_softmax(ctx: Context, x: Interval, dim: int, dtype: torch.dtype | None = None, **_: Any) -> Interval:
    """Bound (x_i - max) - log(sum): two roundings relative to the result, and the sum's relative error absolutely."""
    check_dtype(x, dtype if isinstance(dtype, torch.dtype) else None)
    lower, upper = _extremes(ctx, x, dim, F.logsigmoid)
    lower, upper = outward(lower, upper, ctx.soundness, 8, absolute=x.shape[dim] + 16.0)
    return Interval(lower, upper.clamp(max=0))


for _op in ("softmax.int", "_softmax.default"):
    register(Rule(f"aten.{_op}", "softmax", _softmax, relax=_planes))
for _op in ("log_softmax.int", "_log_softmax.default"):
    register(Rule(f"aten.{_op}", "softmax", _log_softmax))


def _logsumexp(ctx: Context, x: Interval, dim: Any, keepdim: bool = False) -> Interval:
    """Bound logsumexp, which rises in every entry."""
    dims = [dim] if isinstance(dim, int) else list(dim)
    count = 1
    for d in dims:
        count *= x.shape[d]
    lower, upper = (torch.logsumexp(end, dims, keepdim) for end in (x.lower, x.upper))
    return Interval(*outward(lower, upper, ctx.soundness, 8, absolute=count + 16.0))


register(Rule("aten.logsumexp.default", "softmax", _logsumexp))


def _glu(ctx: Context, x: Interval, dim: int = -1) -> Interval:
    """Bound the first half times the sigmoid of the second: independent entries, so composing is the exact hull."""
    half = x.shape[dim] // 2
    first, second = x.select(lambda v: v.narrow(dim, 0, half)), x.select(lambda v: v.narrow(dim, half, half))
    return mul_interval(ctx, first, elementwise_interval(SIGMOID, ctx, second))


register(Rule("aten.glu.default", "softmax", _glu))

"""Interval bounds of the first sums over the inputs of an l1 or l2 ball: the dual norm of a row instead of the box.

A ball lies in its box, and every other interval is as good over the ball as over the box. But a layer that reads the
input itself, or the input with each entry shifted and scaled, sums entries that cannot all move at once:

    |w.(x - o)| <= eps |w|_dual,    the dual norm of l2 being l2, and of l1 the largest entry

(docs/soundness.md, "Balls of other norms"). Entries at an end of the clip range move one way only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from surebound.bounds.constants import Constants, affine_in_one
from surebound.bounds.linear.steps import AffineStep, step_of
from surebound.graph import Node
from surebound.graph.walk import Env, forward
from surebound.interval import Interval
from surebound.norm_ball import Ball
from surebound.numerics import Soundness, add_up, round_down, round_up, slightly_up, tiny
from surebound.rules import Affine, Context, find
from surebound.rules.facts import Sums

#: The norms whose dual the rules' ``Sums`` give: the largest coefficient, and a sum of squares.
SUM, EUCLIDEAN = 1, 2


@dataclass(frozen=True, eq=False)
class _Entries:
    """Values each of which reads one entry of the ball, and no entry is read twice.

    An entry that moves by t in the ball moves its value by at most rise |t| upwards, or by fall |t| downwards; as
    executed, the value is within ``blur`` of that.
    """

    origin: Tensor  # (B, *value): the value at the ball's middle
    rise: Tensor  # (B or 1, *value), >= 0
    fall: Tensor
    blur: Tensor | None  # (B, *value); None: exact, or of plain arithmetic
    box: Interval  # (B, *value): every value as executed, and the origin

    @classmethod
    def of(cls, ball: Ball, mode: Soundness, *, alike: bool) -> _Entries:
        """Start with the input itself; ``alike``: its examples share what depends on no image."""
        hull = Interval(torch.minimum(ball.lower, ball.origin), torch.maximum(ball.upper, ball.origin))
        origin = ball.origin if mode is Soundness.NONE else ball.origin.double()
        up, down = (side.to(origin.dtype) for side in (ball.upper > ball.origin, ball.lower < ball.origin))
        if alike and (ball.norm == SUM or bool(up.all() and down.all())):
            up = down = torch.ones_like(up[:1])
        elif ball.norm == SUM:
            up = down = torch.ones_like(up)
        return cls(origin, up, down, None, hull)


def first_sums(
    constants: Constants, ball: Interval, mode: Soundness, *, skip: Callable[[Node], bool] = lambda _: False
) -> dict[str, Interval]:
    """Bound the first sums over the entries of a ball (B, *input), by name of the call; of a box, none.

    ``skip``: calls that do not compute what they say, as normalisations by the statistics of a batch.
    """
    if not isinstance(ball, Ball) or ball.norm not in (SUM, EUCLIDEAN):
        return {}
    found: dict[str, Interval] = {}
    graph = constants.program.graph
    start = _Entries.of(ball, mode, alike=graph.input_shape[0] is None)

    def visit(node: Node, env: Env) -> _Entries | None:
        sources = constants.sources(node)
        x = env.get(sources[0]) if len(sources) == 1 else None
        affine = affine_in_one(node, sources)
        if not isinstance(x, _Entries) or affine is None or skip(node) or not ball.dtype.is_floating_point:
            return None
        rest, kwargs = constants.arguments(node, affine.position, len(x.origin))
        if affine.entrywise and affine.keeps_apart(tuple(x.origin.shape), *rest, **kwargs):
            return _moved(constants, node, affine, x, mode)
        step = None if affine.sums is None else _step(constants, node, affine, x, mode)[0]
        bounds = None if step is None else _summed(step, x, ball, mode)
        if bounds is not None:
            found[node.name] = bounds
        return None

    forward(graph.keeping, {**constants.of(len(ball.origin)), graph.input: start}, visit)
    return found


def _step(
    constants: Constants, node: Node, affine: Affine, x: _Entries, mode: Soundness
) -> tuple[AffineStep | None, Interval | None]:
    """Return a call as y = W x + b, in float64 with the rounding error bound of executions, and bounds of its value."""
    if mode is Soundness.NONE:
        return AffineStep.plain(node, affine, x.origin.shape, x.origin, constants), None
    rest, kwargs = constants.arguments(node, affine.position, len(x.origin))
    rule, at = find(node.op), affine.position
    if rule is None:
        return None, None
    out = rule.interval(Context(mode), *rest[:at], x.box, *rest[at:], **kwargs)
    step = step_of(constants, node, {constants.sources(node)[0]: x.box, node.name: out}, mode, wide=True)
    plain = isinstance(step, AffineStep) and step.recentre is None
    return (step if isinstance(step, AffineStep) and plain else None), out


def _moved(constants: Constants, node: Node, affine: Affine, x: _Entries, mode: Soundness) -> _Entries | None:
    """Take entries through an operator that reads each of them once."""
    step, box = _step(constants, node, affine, x, mode)
    if step is None:
        return None
    ups, downs = step.linear(x.rise), step.linear(x.fall)  # a falling entry raises what its negative is read for
    rise = ups.clamp(min=0) - downs.clamp(max=0)
    fall = downs.clamp(min=0) - ups.clamp(max=0)
    origin = step.apply(x.origin, *step.arguments(len(x.origin)))
    if box is None:
        return _Entries(origin, rise, fall, None, Interval.point(origin))
    if step.error is not None:  # else the operator rounds nothing
        rise, fall = (torch.where(v > 0, slightly_up(v) + tiny(v.dtype), v) for v in (rise, fall))
    blur = _plus(None if x.blur is None else slightly_up(step.linear(x.blur).abs()), _error(step))
    return _Entries(origin, rise, fall, blur, box)


def _error(step: AffineStep) -> Tensor | None:
    """Bound what executions of a step, and our own of it at one point, are wrong by: (B, *out); None: nothing."""
    if step.error is None or step.absolute is None:
        return None
    absolute = step.absolute.reshape(-1, *([1] * (step.error.dim() - 1)))
    return 2 * (step.error.double() + absolute)


def _plus(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else (a if b is None else slightly_up(a + b))


def _summed(step: AffineStep, x: _Entries, ball: Ball, mode: Soundness) -> Interval | None:
    """Bound sums of entries by the dual norm of their coefficients; None where the rules do not know it."""
    sums = [_sums(step, len(v)) for v in (x.rise, x.origin)]
    each, every = sums
    if each is None or every is None:
        return None
    center = step.apply(x.origin, *step.arguments(len(x.origin)))  # (B, *out)
    if ball.norm == SUM:
        above = below = each.largest(torch.maximum(x.rise, x.fall))
    else:
        above = _length(each, x.rise, x.fall, mode)
        below = above if x.rise is x.fall else _length(each, x.fall, x.rise, mode)
    if mode is Soundness.NONE:
        return Interval(center - ball.reach * below, center + ball.reach * above)
    paid = _plus(None if x.blur is None else slightly_up(every.mapped(x.blur, torch.abs)), _error(step))
    up, down = (slightly_up(ball.reach * side) + tiny(torch.float64) for side in (above, below))
    if paid is not None:
        up, down = slightly_up(up + paid), slightly_up(down + paid)
    return Interval(round_down(-add_up(-center, down), ball.dtype), round_up(add_up(center, up), ball.dtype))


def _sums(step: AffineStep, batch: int) -> Sums | None:
    """Return what the rules know of a step's sums, for so many examples."""
    rest, kwargs = step.arguments(batch)
    return None if step.affine.sums is None else step.affine.sums(*rest, **kwargs)


def _length(sums: Sums, rise: Tensor, fall: Tensor, mode: Soundness) -> Tensor:
    """Return the length of each row's coefficients: those above 0 times what rises, the others times what falls."""
    if rise is fall:
        squares = sums.mapped(rise.square(), torch.square)
    else:
        squares = sums.mapped(rise.square(), lambda w: w.clamp(min=0).square())
        squares = squares + sums.mapped(fall.square(), lambda w: w.clamp(max=0).square())
    smallest = tiny(squares.dtype)  # of plain arithmetic: a root has no gradient at 0
    if mode is not Soundness.NONE:  # every product may have been lost
        smallest *= 8.0 * (rise[0].numel() + 1)
    return (squares + smallest).sqrt()

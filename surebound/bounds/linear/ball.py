"""The largest value of a linear function over a ball that a box cuts: by a multiplier of the ball's constraint.

With x = origin + t, lo <= t <= hi, any multiplier m >= 0 gives an upper bound:
  a.t <= sum_i max {a_i t - m t^2} + m reach^2   (l2),    a.t <= sum_i max {a_i t - m |t|} + m reach   (l1),
each maximum over [lo_i, hi_i]. So the multiplier needs no care; only the sum is rounded, and that is paid
(docs/soundness.md, "Balls of other norms"). m = |a| / (2 reach), or max |a|, makes it the dual norm where no end of
the box is in the way.

Of few pixels that hold anything (surebound/pixel_ball.py) the maximum itself is known: a choice of pixels' gains.
"""

from __future__ import annotations

import torch
from torch import Tensor

from surebound.norm_ball import Ball
from surebound.numerics import Soundness, by_rows, round_up, several_sums, tiny
from surebound.pixel_ball import PixelBox


def ball_maximum(a: Tensor, ball: Ball, offset: Tensor, mode: Soundness) -> Tensor:
    """Maximise a.x + offset over a ball and its box, a (S, B, *x): (S, B). In the sound modes rounded up."""
    dtype = ball.dtype if a.dtype == torch.float64 else a.dtype
    wide = a.flatten(2).double() if a.dim() > 2 else a.double().unsqueeze(2)  # (S, B, n)
    origin = ball.origin.flatten(1).double() if a.dim() > 2 else ball.origin.double().unsqueeze(1)  # (B, n)
    low, high = (end.double().reshape(origin.shape) - origin for end in (ball.lower, ball.upper))
    middle = wide * origin
    if isinstance(ball, PixelBox):
        gains = torch.maximum(wide * low, wide * high)  # >= 0, because the image is in the box
        best = offset + middle.sum(2) + ball.region.most(ball.region.by_pixel(gains))
        return _paid(best, offset.abs() + middle.abs().sum(2) + gains.sum(2), wide.shape[2], mode, dtype)
    if mode is Soundness.NONE and torch.is_grad_enabled():  # for slopes: what proves is evaluated without gradients
        dual = wide.norm(dim=2) if ball.norm == 2 else wide.abs().amax(2)
        return (offset + middle.sum(2) + ball.reach * dual).to(dtype)
    multiplier = _multiplier(wide, low, high, ball)
    if ball.norm == 2:
        t = torch.clamp(wide / (2 * multiplier).unsqueeze(2), low, high).nan_to_num(0.0)
        gains, costs, whole = wide * t, multiplier.unsqueeze(2) * t * t, multiplier * ball.reach * ball.reach
    else:
        still = torch.clamp(torch.zeros_like(low), low, high)
        t = torch.where(wide > multiplier.unsqueeze(2), high, torch.where(wide < -multiplier.unsqueeze(2), low, still))
        gains, costs, whole = wide * t, multiplier.unsqueeze(2) * t.abs(), multiplier * ball.reach
    best = offset + middle.sum(2) + (gains - costs).sum(2) + whole
    reach = torch.maximum(low.abs(), high.abs())
    size = offset.abs() + middle.abs().sum(2) + (wide.abs() * reach).sum(2) + 2 * costs.sum(2) + whole
    return _paid(best, size, wide.shape[2], mode, dtype)


def _paid(best: Tensor, size: Tensor, count: int, mode: Soundness, dtype: torch.dtype) -> Tensor:
    """Round up what sums of ``count`` products of that size came to; ends and differences were rounded, too."""
    if mode is Soundness.NONE:
        return best.to(dtype)
    return round_up(best + (size * several_sums(count + 64, 8) + tiny(torch.float64) * count), dtype)


def outside(ball: Ball) -> Tensor:
    """Say which boxes (B, ...) surely have no point of their ball: (B,) bool."""
    origin = by_rows(ball.origin.double())
    low, high = (by_rows(end.double()) - origin for end in (ball.lower, ball.upper))
    nearest = torch.clamp(torch.zeros_like(low), low, high).abs()  # of every coordinate, but for rounding
    size = nearest.sum(1) if ball.norm == 1 else nearest.square().sum(1)
    most = ball.reach if ball.norm == 1 else ball.reach * ball.reach
    lost = (size + (origin.abs() + origin.square()).sum(1)) * several_sums(low.shape[1] + 16, 8) + tiny(torch.float64)
    return size - lost > most


def ball_corner(a: Tensor, ball: Ball) -> Tensor:
    """Return a point (N, n) of one ball (1, n) where a.x, a (N, n), is about largest: where to look, and no proof."""
    wide, origin = a.double().unsqueeze(1), ball.origin.double()  # (N, 1, n), (1, n)
    low, high = ball.lower.double() - origin, ball.upper.double() - origin
    free = torch.where(wide > 0, high, -low).clamp(min=0)
    if ball.norm == 2:
        t = torch.clamp(wide / (2 * _multiplier(wide, low, high, ball)).unsqueeze(2), low, high).nan_to_num(0.0)
        size = t.norm(dim=2, keepdim=True)
        t = torch.where(size > ball.reach, t * (ball.reach / size), t)
    else:
        gain, order = (wide.abs() * (free > 0)).sort(dim=2, descending=True)
        room = free.gather(2, order) * (gain > 0)
        moved = torch.minimum(room, (ball.reach - (room.cumsum(2) - room)).clamp(min=0))
        t = torch.zeros_like(wide).scatter(2, order, moved) * wide.sign()
    return torch.clamp(origin + t[:, 0], ball.lower.double(), ball.upper.double()).to(a.dtype)


def _multiplier(a: Tensor, low: Tensor, high: Tensor, ball: Ball) -> Tensor:
    """Choose the multiplier (S, B): that of the ball alone, then with the entries that the box stops left out."""
    free = torch.where(a > 0, high, -low)  # (S, B, n): how far each entry may go
    if ball.norm == 1:
        gains = torch.where(free > 0, a.abs(), torch.zeros_like(a))
        if bool((free >= ball.reach).all()):
            return gains.amax(2)
        # The dearest entries as far as the box lets them: the gain of the one that uses up the reach is the multiplier.
        ordered, order = gains.sort(dim=2, descending=True)
        used = free.clamp(min=0).gather(2, order).cumsum(2)
        last = (used < ball.reach).sum(2, keepdim=True)
        ordered = torch.cat([ordered, torch.zeros_like(ordered[..., :1])], 2)
        return ordered.gather(2, last).squeeze(2)
    square = ball.reach * ball.reach  # infinite for a huge radius, where ** raises
    stopped, left = free <= 0, torch.full(a.shape[:2], square, dtype=a.dtype, device=a.device)
    best: Tensor = a.masked_fill(stopped, 0.0).norm(dim=2) / (2 * ball.reach)
    for _ in range(3):  # heuristic: a better multiplier is a tighter bound, any is sound
        capped = a.abs() > 2 * best.unsqueeze(2) * free.clamp(min=0)
        used = torch.where(capped, free.clamp(min=0).square(), torch.zeros_like(a)).sum(2)
        rest = a.masked_fill(capped, 0.0).norm(dim=2)
        better = rest / (2 * (left - used).clamp(min=0).sqrt())
        best = torch.where(better.isfinite() & (better > 0), better, best)
    return best

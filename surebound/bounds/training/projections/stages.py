"""A ReLU's lines, a weighted layer and the norms of its values, for columns of random projections, as one operation.

Its gradient is written out, because it is mostly zero: the median of K columns depends on one or two of them, and the
bounds of a ReLU that is stable have no gradient at all. Columns that nothing further on depends on get only that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from surebound.bounds.training.projections.cauchy import (
    median_of_half_cauchy,
    middle,
    middle_gradient,
    positions,
)
from surebound.errors import BoundError
from surebound.kernels.columns import Lines, Windows, matrix_backward
from surebound.rules.layouts import Layer


@dataclass(frozen=True)
class Columns:
    """Columns slope u + gap noise (B, K, *value) that are multiplied out only where somebody needs them.

    Without u they are gap noise, with nothing else they are u. ``flat``: seen as vectors (B, K, n) from now on.
    """

    u: Tensor | None  # (B, K, *value)
    slope: Tensor | None = None  # (B, *value)
    gap: Tensor | None = None  # (B, *value)
    noise: Tensor | None = None  # (K, *value)
    flat: bool = False
    norms: Tensor | None = None  # (B, *value), where they were estimated on the way

    @property
    def tensor(self) -> Tensor:
        """Multiplied out, with gradients."""
        value = self.u if self.u is None or self.slope is None else self.slope.unsqueeze(1) * self.u
        if self.gap is not None and self.noise is not None:
            fresh = self.gap.unsqueeze(1)
            value = fresh * self.noise if value is None else torch.addcmul(value, fresh, self.noise)
        if value is None:
            raise BoundError("columns need values or error terms")
        return value.flatten(2) if self.flat else value

    @property
    def settled(self) -> Columns:
        """The same, multiplied out."""
        done = self.slope is None and self.gap is None and not self.flat
        return self if done else Columns(self.tensor)

    def flattened(self) -> Columns:
        return replace(self, flat=True, norms=None)

    @property
    def value(self) -> torch.Size:
        """The shape of the values before they were flattened."""
        if self.gap is not None:
            return self.gap.shape[1:]
        return torch.Size() if self.u is None else self.u.shape[2:]

    @property
    def lined(self) -> bool:
        """Do they have the form that a stage starts from?"""
        return self.gap is not None and self.noise is not None and (self.u is None) == (self.slope is None)


@dataclass(frozen=True)
class Stage:
    """A weighted layer, and whether the norms of its values are wanted."""

    layer: Layer
    windows: Windows | None  # the form that has compiled kernels
    inside: torch.Size  # the shape of an operand, (C, *size) or (n,)
    outside: torch.Size
    estimate: bool
    wanted: Tensor | None = None  # (B, *out) bool: units whose norms are of use; None: all, if any

    @classmethod
    def of(
        cls,
        layer: Layer | None,
        rest: tuple[Any, ...],
        columns: Columns,
        outside: torch.Size,
        estimate: bool,
        wanted: Tensor | None = None,
    ) -> Stage | None:
        """The stage of a weighted layer with the arguments (weight, bias, ...) after its operand, if it has one."""
        inside = columns.value
        if layer is None or not columns.lined or layer.matrix != (columns.flat or len(inside) == 1):
            return None
        windows = None if layer.matrix else _windows(rest, inside, outside)
        return cls(layer, windows, inside, outside, estimate, wanted)

    def apply(self, columns: Columns, weight: Tensor) -> Columns:
        """The columns of the layer's value, without its bias."""
        if columns.gap is None or columns.noise is None:
            raise BoundError("a stage starts from lines")
        if columns.flat and len(self.inside) > 1:  # a matrix in the order of the columns in memory
            weight = weight.reshape(-1, *self.inside).movedim(1, -1).flatten(1)
        u, slope = columns.u, columns.slope
        found = _Apply.apply(  # type: ignore[no-untyped-call]
            None if u is None else raw(u, 2),
            None if slope is None else raw(slope, 1),
            raw(columns.gap, 1),
            raw(columns.noise, 1),
            weight,
            self,
        )
        out, *norms = found if self.estimate else (found,)
        return Columns(self._shaped(out, 2), norms=self._shaped(norms[0], 1) if norms else None)

    def product(self, v: Tensor, weight: Tensor) -> Tensor:
        """W v (N, out) for v (N, in)."""
        return _rows(self.layer.product(_images(v, self.inside, weight), weight, None))

    def gradients(self, g: Tensor, v: Tensor, weight: Tensor, need_v: bool) -> tuple[Tensor | None, Tensor]:
        """Of v and the weight, from those g (N, out) of the product."""
        images = _images(g, self.outside, weight)
        gv, gw = self.layer.backward(images, _images(v, self.inside, weight), weight, need_v)
        return None if gv is None else _rows(gv), gw

    def _shaped(self, value: Tensor, lead: int) -> Tensor:
        if len(self.outside) == 1:
            return value
        channels, *size = self.outside
        return value.view(*value.shape[:lead], *size, channels).movedim(-1, lead)


class _Apply(torch.autograd.Function):
    """u (B, K, n) or None, slope, gap (B, n), noise (K, n), weight -> the layer's columns (B, K, m), norms (B, m)."""

    @staticmethod
    def forward(
        ctx: Any,
        u: Tensor | None,
        slope: Tensor | None,
        gap: Tensor,
        noise: Tensor,
        weight: Tensor,
        stage: Stage,
    ) -> Any:
        lines = Lines(u, slope, gap, noise)
        out = None
        windows = Windows.matrix(weight) if weight.dim() == 2 else stage.windows
        if windows is not None and windows.usable(lines):
            out = windows.apply(lines, weight)
        if out is None:
            out = _block_by_block(lines, weight, stage)
        total = places = None
        if stage.estimate:
            total, places = middle(out, None if stage.wanted is None else raw(stage.wanted, 1))
        ctx.stage = stage
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(u, slope, gap, noise, weight, out if stage.estimate else None, places)
        if total is None:
            return out
        return out, total * _scale(out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g_out: Tensor | None, g_norms: Tensor | None = None) -> Any:
        u, slope, gap, noise, weight, out, places = ctx.saved_tensors
        lines, stage = Lines(u, slope, gap, noise), ctx.stage
        g = None if g_norms is None else (g_norms * _scale_of(noise.shape[0])).contiguous()
        g_out = None if g_out is None else g_out.contiguous()
        found = None
        wanted = ctx.needs_input_grad
        if g_out is None and (g is None or not bool(g.any())):
            return None, None, None, None, None, None
        if stage.windows is not None and stage.windows.usable(lines) and wanted[2] == (u is not None):
            found = stage.windows.backward(lines, weight, out, g_out, g, places)
        elif weight.dim() == 2 and g_out is None and g is not None:
            found = matrix_backward(lines, weight, out, g, places)
        if found is None:
            found = _backward(lines, weight, stage, out, g_out, g, places, wanted[2])
        gu, g_slope, g_gap, g_weight = found
        return gu, g_slope, g_gap, None, g_weight, None


def _backward(
    lines: Lines,
    weight: Tensor,
    stage: Stage,
    out: Tensor | None,
    g_out: Tensor | None,
    g: Tensor | None,
    places: Tensor | None,
    need_lines: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor]:
    """Gradients of u, slope, gap and weight by the layer's own, for the columns that have one."""
    batch, count, n = lines.shape
    if g is not None and out is not None and places is not None:
        g_out = middle_gradient(out, places, g, g_out)
    if g_out is None:
        return None, None, None, torch.zeros_like(weight)
    rows = (g_out != 0).any(2).flatten().nonzero().squeeze(1)
    if rows.numel() == 0:
        return None, None, None, torch.zeros_like(weight)
    v = lines.apply().view(-1, n)
    if rows.numel() == batch * count:
        gv, gw = stage.gradients(g_out.flatten(0, 1), v, weight, need_lines)
    else:
        part, gw = stage.gradients(g_out.flatten(0, 1)[rows], v[rows], weight, need_lines)
        gv = None if part is None else torch.zeros_like(v).index_copy_(0, rows, part)
    if gv is None:
        return None, None, None, gw
    return *lines.backward(gv.view(batch, count, n)), gw


def _block_by_block(lines: Lines, weight: Tensor, stage: Stage, block: int = 8) -> Tensor:
    """A few examples at a time, so that the columns before the layer stay in the cache."""
    batch, count, _ = lines.shape
    out = lines.gap.new_empty(batch, count, math.prod(stage.outside))
    for first in range(0, batch, block):
        at = slice(first, first + block)
        part = Lines(
            None if lines.u is None else lines.u[at],
            None if lines.slope is None else lines.slope[at],
            lines.gap[at],
            lines.noise,
        )
        out[at] = stage.product(part.apply().flatten(0, 1), weight).view(-1, count, out.shape[2])
    return out


def _windows(rest: tuple[Any, ...], inside: torch.Size, outside: torch.Size) -> Windows | None:
    """A convolution as the compiled kernels know it; None with padding, dilation or groups."""
    weight = rest[0]
    settings = dict(zip(("stride", "padding", "dilation", "groups"), rest[2:], strict=False))
    groups = settings.pop("groups", 1)
    sizes = {k: _pair(v) if not isinstance(v, str) else (1, 1) for k, v in settings.items()}
    plain = sizes.get("padding", (0, 0)) == (0, 0) and sizes.get("dilation", (1, 1)) == (1, 1) and groups == 1
    if weight.dim() != 4 or not plain:
        return None
    (c, h, w), (o, oh, ow), (kh, kw) = inside, outside, weight.shape[2:]
    return Windows(h, w, c, oh, ow, o, kh, kw, *sizes.get("stride", (1, 1)))


def _pair(value: Any) -> tuple[int, int]:
    each = [value] if isinstance(value, int) else list(value)
    return int(each[0]), int(each[-1])


def raw(value: Tensor, lead: int) -> Tensor:
    """(*lead, C, *size) as (*lead, size * C), the channel innermost: a view where memory is so already."""
    if value.dim() == lead + 1:
        return value.contiguous()
    return value.movedim(lead, -1).flatten(lead).contiguous()


def _images(rows: Tensor, shape: torch.Size, weight: Tensor) -> Tensor:
    """(N, n) as the layer wants them, with channels on axis 1."""
    if weight.dim() == 2:
        return rows
    return rows.view(-1, *shape[1:], shape[0]).movedim(-1, 1)


def _rows(value: Tensor) -> Tensor:
    return value if value.dim() == 2 else value.movedim(1, -1).flatten(1)


def _scale(columns: Tensor) -> float:
    return _scale_of(columns.shape[1])


def _scale_of(count: int) -> float:
    """What makes the sum of the middle values of so many columns an unbiased estimate."""
    return 1.0 / (median_of_half_cauchy(count) * len(positions(count)))

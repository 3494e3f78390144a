"""A ReLU's lines, a weighted layer and the norms of its values, for columns of random projections, as one operation.

Its gradient is written out, because it is mostly zero: the median of K columns depends on one or two of them, and the
bounds of a ReLU that is stable have no gradient at all. Columns that nothing further on depends on get only that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from surebound.bounds.training.projections.cauchy import middle_gradient, unbiased
from surebound.errors import BoundError
from surebound.kernels.medians import middle
from surebound.kernels.products import Conv
from surebound.kernels.sparse import Live, live, rows_adjoint, rows_product, rows_weight
from surebound.rules.adjoint_gradient import matrix_gradient
from surebound.rules.layouts import WeightedLayer, channels_last


@dataclass(frozen=True)
class Columns:
    """Columns slope u + gap noise (K, B, *value) that are multiplied out only where they are needed.

    Without u they are gap noise, with nothing else they are u. ``flat``: seen as vectors (K, B, n) from now on.
    """

    u: Tensor | None  # (K, B, *value)
    slope: Tensor | None = None  # (B, *value)
    gap: Tensor | None = None  # (B, *value)
    noise: Tensor | None = None  # (K, 1, *value)
    flat: bool = False
    norms: Tensor | None = None  # (B, *value), where they were estimated on the way

    @property
    def tensor(self) -> Tensor:
        """Multiplied out, with gradients."""
        value = self.u if self.u is None or self.slope is None else self.slope * self.u
        if self.gap is not None and self.noise is not None:
            fresh = self.gap * self.noise if value is None else torch.addcmul(value, self.gap, self.noise)
            value = fresh
        if value is None:
            raise BoundError("columns need values or error terms")
        return value.flatten(2) if self.flat else value

    @property
    def settled(self) -> Columns:
        """The same, multiplied out."""
        done = self.slope is None and self.gap is None and not self.flat
        return self if done else Columns(self.tensor)

    def flattened(self) -> Columns:
        """Return the same as vectors."""
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
class LayerStage:
    """A weighted layer, and whether the norms of its values are wanted."""

    conv: Conv | None  # None: a matrix
    inside: torch.Size  # the shape of an operand, (C, *size) or (n,)
    outside: torch.Size
    estimate: bool
    wanted: Tensor | None = None  # (B, *out) bool: units whose norms are of use; None: all, if any

    @classmethod
    def of(
        cls,
        layer: WeightedLayer | None,
        rest: tuple[Any, ...],
        columns: Columns,
        outside: torch.Size,
        estimate: bool,
        wanted: Tensor | None = None,
    ) -> LayerStage | None:
        """Return the stage of a weighted layer with arguments (weight, bias, ...) after its operand, if it has one."""
        inside = columns.value
        if layer is None or not columns.lined or layer.matrix != (columns.flat or len(inside) == 1):
            return None
        return cls(layer.conv, inside, outside, estimate, wanted)

    def apply(self, columns: Columns, weight: Tensor) -> Columns:
        """Return the columns of the layer's value, without its bias."""
        if columns.gap is None or columns.noise is None:
            raise BoundError("a stage starts from lines")
        if columns.flat and len(self.inside) > 1:  # a matrix in the order of the columns in memory
            weight = weight.reshape(-1, *self.inside).movedim(1, -1).flatten(1)
        u, slope = columns.u, columns.slope
        found = _Apply.apply(  # type: ignore[no-untyped-call]
            None if u is None else raw(u, 2),
            None if slope is None else raw(slope, 1),
            raw(columns.gap, 1),
            raw(columns.noise, 2),
            weight,
            self,
        )
        out, *norms = found if self.estimate else (found,)
        return Columns(self._shaped(out, 2), norms=self._shaped(norms[0], 1) if norms else None)

    def product(self, v: Tensor, weight: Tensor) -> Tensor:
        """Return W v (K, B, out) for v (K, B, in)."""
        size = () if self.conv is None else self.outside[1:]
        return _rows(rows_product(self._live(v, self.inside), channels_last(weight), size, self.conv), v)

    def gradients(self, g: Tensor, v: Tensor, weight: Tensor, need_v: bool) -> tuple[Tensor | None, Tensor]:
        """Return the gradients of v and the weight from that g (K, B, out) of the product."""
        of_g, of_v, weight = self._live(g, self.outside), self._live(v, self.inside), channels_last(weight)
        size = () if self.conv is None else self.inside[1:]
        gv = _rows(rows_adjoint(of_g, weight, size, self.conv), g) if need_v else None
        if self.conv is None:
            return gv, matrix_gradient(of_g, of_v)
        return gv, rows_weight(of_g, of_v.rows, weight, self.conv)

    def _live(self, v: Tensor, shape: torch.Size) -> Live:
        rows = v.flatten(0, 1)
        if self.conv is not None:
            rows = rows.view(-1, *shape[1:], shape[0]).movedim(-1, 1)
        return live(rows, v.shape[0] if self.conv is None or self.conv.unpadded else 1)

    def _shaped(self, value: Tensor, lead: int) -> Tensor:
        if len(self.outside) == 1:
            return value
        channels, *size = self.outside
        return value.view(*value.shape[:lead], *size, channels).movedim(-1, lead)


class _Apply(torch.autograd.Function):
    """u (K, B, n) or None, slope, gap (B, n), noise (K, 1, n), weight -> columns (K, B, m) and norms (B, m)."""

    @staticmethod
    def forward(
        ctx: Any,
        u: Tensor | None,
        slope: Tensor | None,
        gap: Tensor,
        noise: Tensor,
        weight: Tensor,
        stage: LayerStage,
    ) -> Any:
        out = stage.product(_lined(u, slope, gap, noise), weight)
        total = places = None
        if stage.estimate:
            total, places = middle(out, None if stage.wanted is None else raw(stage.wanted, 1))
        ctx.stage = stage
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(u, slope, gap, noise, weight, out if stage.estimate else None, places)
        return out if total is None else (out, total * unbiased(noise.shape[0]))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g_out: Tensor | None, g_norms: Tensor | None = None) -> Any:
        u, slope, gap, noise, weight, out, places = ctx.saved_tensors
        if g_norms is not None and bool(g_norms.any()):
            g_out = middle_gradient(out, places, g_norms * unbiased(noise.shape[0]), g_out)
        if g_out is None:
            return (None,) * 6
        v, need_lines = _lined(u, slope, gap, noise), ctx.needs_input_grad[2]
        gv, g_weight = ctx.stage.gradients(g_out.contiguous(), v, weight, need_lines)
        if gv is None:
            return None, None, None, None, g_weight, None
        g_gap = _summed(gv, noise)
        if u is None:
            return None, None, g_gap, None, g_weight, None
        g_slope = _summed(gv, u)
        return gv.mul_(slope), g_slope, g_gap, None, g_weight, None


def _summed(a: Tensor, b: Tensor) -> Tensor:
    """Sum a b (K, B, n) over columns, one after the other: no array of their size is made."""
    total = torch.zeros_like(a[0])
    for one, other in zip(a, b, strict=True):
        total.addcmul_(one, other)
    return total


def _lined(u: Tensor | None, slope: Tensor | None, gap: Tensor, noise: Tensor) -> Tensor:
    """Return slope u + gap noise (K, B, n)."""
    fresh = gap * noise
    return fresh if u is None or slope is None else fresh.addcmul_(slope, u)


def raw(value: Tensor, lead: int) -> Tensor:
    """Return (*lead, C, *size) as (*lead, size * C) in NHWC order: a view where memory is so already."""
    if value.dim() == lead + 1:
        return value.contiguous()
    return value.movedim(lead, -1).flatten(lead).contiguous()


def _rows(value: Tensor, like: Tensor) -> Tensor:
    """Return (K B, C, *size) as (K, B, size * C)."""
    flat = value if value.dim() == 2 else value.movedim(1, -1).flatten(1)
    return flat.reshape(*like.shape[:2], -1)

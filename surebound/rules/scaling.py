"""BatchNorm in training's fast column: y = scale x + shift per channel, with the statistics of the clean batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from surebound.kernels import scaling


@dataclass(frozen=True)
class Norm:
    """A BatchNorm: with given statistics (C,) or, without, with those of the clean batch."""

    eps: float
    mean: Tensor | None = None
    var: Tensor | None = None


@dataclass(frozen=True)
class Scaling:
    """A BatchNorm whose statistics are known; everything (C,)."""

    norm: Norm
    mean: Tensor
    var: Tensor
    inverse: Tensor  # 1 / sqrt(var + eps)
    scale: Tensor
    shift: Tensor
    count: int  # rows that the statistics are of

    @classmethod
    def of(cls, norm: Norm, clean: Tensor, gamma: Tensor | None, beta: Tensor | None) -> Scaling:
        """Return the scaling by given statistics or by those of the clean rows (R, C)."""
        if norm.mean is not None and norm.var is not None:
            mean, var = norm.mean, norm.var
        else:
            mean, var = scaling.column_moments(clean)
        inverse = torch.rsqrt(var + norm.eps)
        scale = inverse if gamma is None else inverse * gamma
        offset = mean * scale
        shift = -offset if beta is None else beta - offset
        return cls(norm, mean, var, inverse, scale, shift, clean.shape[0])

    def apply(self, both: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
        """Scale rows (P R, C) and (R, C)."""
        return (both * self.scale).add_(self.shift), radius * self.scale.abs()

    def backward(
        self, g: Tensor, g_radius: Tensor, both: Tensor, radius: Tensor, on: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the gradients of both, radius, gamma and beta on the live channels ``on``.

        g (P' R, n) and g_radius (R, n) come from the output; both (P R, C), radius (R, C) were the input. P' is 1
        when only the centres went on.
        """
        if on is not None:
            both, radius = both.index_select(1, on), radius.index_select(1, on)
        scale, mean, inverse = (
            v if on is None else v.index_select(0, on) for v in (self.scale, self.mean, self.inverse)
        )
        rows = radius.shape[0]
        g_shift, g_product, g_wide = scaling.column_sums(g, both[-g.shape[0] :], g_radius, radius)
        g_scale = g_product + g_wide * scale.sign() - mean * g_shift  # shift = beta - mean scale
        slope = offset = None
        if self.norm.mean is None:
            # scale = gamma / sqrt(var + eps), and mean and var are means over the clean rows
            slope = -g_scale * scale * inverse.square() / rows
            offset = -scale * g_shift / rows - slope * mean
        g_both = scaling.scaled_gradient(g, both, rows, scale, slope, offset)
        return g_both, g_radius * scale.abs(), g_scale * inverse, g_shift

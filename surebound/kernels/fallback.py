"""What kernels.c does, in PyTorch: any device, any dtype, the same numbers bit for bit.

Rows hold one position of one example, columns are channels (or units). ``both`` stacks the clean rows, if there are
any, over the centres; ``radius`` has as many rows as the centres.
"""

from __future__ import annotations

import torch
from torch import Tensor


def columns_on(
    both: Tensor, radius: Tensor, scale: Tensor | None, shift: Tensor | None, limit: int
) -> Tensor | None:
    """Which columns (C,) have a value or an upper bound that is not <= 0; None if more than ``limit``.

    both (R or 2R, C), radius (R, C); scale and shift (C,) are applied first.
    """
    both, radius = _scaled(both, radius, scale, shift)
    rows = radius.shape[0]
    on = (~(both[-rows:] + radius <= 0)).sum(0) + (~(both[:rows] <= 0)).sum(0) > 0
    return on if int(on.sum()) <= limit else None


def relu(
    both: Tensor, radius: Tensor, scale: Tensor | None, shift: Tensor | None, on: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """ReLU of the columns ``on`` (all if None): both, radius, and a mask (R, n) of bits 1 clean, 2 lower, 4 upper."""
    if on is not None:
        both, radius = both.index_select(1, on), radius.index_select(1, on)
        scale = None if scale is None else scale.index_select(0, on)
        shift = None if shift is None else shift.index_select(0, on)
    both, radius = _scaled(both, radius, scale, shift)
    rows = radius.shape[0]
    center = both[-rows:]
    lower, upper = center - radius, center + radius
    mask = (~(lower <= 0)).to(torch.uint8) * 2 + (~(upper <= 0)).to(torch.uint8) * 4
    lower.relu_(), upper.relu_()
    out = torch.empty_like(both)
    if both.shape[0] > rows:
        mask += ~(both[:rows] <= 0)
        out[:rows] = both[:rows].relu()
    torch.add(lower, upper, out=out[-rows:]).mul_(0.5)
    return out, upper.sub_(lower).mul_(0.5), mask


def relu_of_bounds(center: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """ReLU of [center - radius, center + radius]: the new centre and the new *width*, in their memory."""
    upper = center.add_(radius)
    lower = torch.sub(upper, radius, alpha=2, out=radius)
    width = upper.relu_().sub_(lower.relu_())
    return lower.add_(width, alpha=0.5), width


def relu_backward(
    g_both: Tensor, g_radius: Tensor, mask: Tensor, to: Tensor | None = None, columns: int = 0
) -> tuple[Tensor, Tensor]:
    """Gradients of the inputs from those of the outputs, on the columns that were kept.

    to: the places (n,) of these columns among ``columns``; the others are 0.
    """
    rows = g_radius.shape[0]
    g_center = g_both[-rows:]
    lower = ((g_center - g_radius) * 0.5).masked_fill_((mask & 2) == 0, 0.0)
    upper = ((g_center + g_radius) * 0.5).masked_fill_((mask & 4) == 0, 0.0)
    out = torch.empty_like(g_both)
    if g_both.shape[0] > rows:
        out[:rows] = g_both[:rows].masked_fill((mask & 1) == 0, 0.0)
    torch.add(lower, upper, out=out[-rows:])
    out_radius = upper.sub_(lower)
    if to is None:
        return out, out_radius
    return _placed(out, to, columns), _placed(out_radius, to, columns)


def _placed(value: Tensor, to: Tensor, columns: int) -> Tensor:
    return value.new_zeros(value.shape[0], columns).index_copy_(1, to, value)


def add_signed(a: Tensor, b: Tensor, w: Tensor) -> Tensor:
    """a + b sign(w), in place of a, all of the same shape."""
    return a.addcmul_(b, w.sign())


def fold(windows: Tensor, size: tuple[int, int], stride: tuple[int, int], pad: tuple[int, int]) -> Tensor:
    """Sums of windows (N, OH, OW, kh, kw, C) as images (N, H, W, C): the adjoint of cutting them out.

    Every pixel adds its windows in the order of their positions, that is from the last row and column of a window.
    """
    n, oh, ow, kh, kw, c = windows.shape
    (h, w), (sy, sx), (top, left) = size, stride, pad
    # room for every window, also past the right and lower ends
    full = windows.new_zeros(
        n, max(h + 2 * top, (oh - 1) * sy + kh), max(w + 2 * left, (ow - 1) * sx + kw), c
    )
    for a in range(kh - 1, -1, -1):
        for d in range(kw - 1, -1, -1):
            full[:, a : a + (oh - 1) * sy + 1 : sy, d : d + (ow - 1) * sx + 1 : sx].add_(
                windows[:, :, :, a, d]
            )
    return full[:, top : top + h, left : left + w].contiguous()


def _scaled(
    both: Tensor, radius: Tensor, scale: Tensor | None, shift: Tensor | None
) -> tuple[Tensor, Tensor]:
    if scale is None or shift is None:
        return both, radius
    return (both * scale).add_(shift), radius * scale.abs()  # two roundings, as without a fused multiply-add

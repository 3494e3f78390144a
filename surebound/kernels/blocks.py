"""Passes of a training block over rows of channels, and windows of images: the same bits compiled and in PyTorch.

Rows hold one position of one example, columns are channels (or units). ``both`` stacks the clean rows, if there are
any, over the centres; ``radius`` has as many rows as the centres.
"""

from __future__ import annotations

import torch
from torch import Tensor

from surebound.kernels.build import Entry
from surebound.kernels.kernel import kernel

#: From so many numbers on images are laid out anew by a compiled pass.
WORTH = 1 << 15


def _columns_on(both: Tensor, radius: Tensor, scale: Tensor | None, shift: Tensor | None, limit: int) -> Tensor | None:
    both, radius = _scaled(both, radius, scale, shift)
    rows = radius.shape[0]
    on = (~(both[-rows:] + radius <= 0)).sum(0) + (~(both[:rows] <= 0)).sum(0) > 0
    return on if int(on.sum()) <= limit else None


@kernel(reference=_columns_on, plain="both radius scale shift")
def columns_on(
    scan: Entry, both: Tensor, radius: Tensor, scale: Tensor | None, shift: Tensor | None, limit: int
) -> Tensor | None:
    """Return which columns (C,) have a value or an upper bound that is not <= 0, or None if more than ``limit``.

    both (R or 2R, C), radius (R, C); scale and shift (C,) are applied first. Compiled, it stops reading as soon as the
    limit is passed.
    """
    rows, columns = radius.shape
    on = radius.new_empty(columns, dtype=torch.bool)
    clean, center = _parts(both, rows)
    return on if scan(clean, center, radius, scale, shift, rows, columns, limit, on) >= 0 else None


def _relu(
    both: Tensor,
    radius: Tensor,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    on: Tensor | None = None,
    *,
    owned: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
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


@kernel(reference=_relu, plain="both radius scale shift")
def relu(
    run: Entry,
    both: Tensor,
    radius: Tensor,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    on: Tensor | None = None,
    *,
    owned: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return max(x, 0) of the columns ``on`` (all if None): both, radius, and a mask (R, n) of bits.

    Bits: 1 clean, 2 lower, 4 upper end is not <= 0. ``owned`` arguments may be overwritten.
    """
    rows, columns = radius.shape
    n = columns if on is None else on.shape[0]
    if owned and on is None and scale is None:
        out, out_radius = both, radius
    else:
        out, out_radius = both.new_empty(both.shape[0], n), radius.new_empty(rows, n)
    mask = radius.new_empty(rows, n, dtype=torch.uint8)
    run(
        *_parts(both, rows), radius, scale, shift, on, rows, columns, n, *_parts(out, rows), out_radius, mask
    )  # fmt: skip
    return out, out_radius, mask


def _relu_backward(
    g_both: Tensor, g_radius: Tensor, mask: Tensor, to: Tensor | None = None, columns: int = 0
) -> tuple[Tensor, Tensor]:
    rows = g_radius.shape[0]
    g_center = g_both[-rows:]
    lower = torch.sub(g_center, g_radius).mul_(0.5).masked_fill_((mask & 2) == 0, 0.0)
    upper = torch.add(g_center, g_radius).mul_(0.5).masked_fill_((mask & 4) == 0, 0.0)
    out = torch.empty_like(g_both)
    if g_both.shape[0] > rows:
        out[:rows] = g_both[:rows].masked_fill((mask & 1) == 0, 0.0)
    torch.add(lower, upper, out=out[-rows:])
    out_radius = upper.sub_(lower)
    if to is None:
        return out, out_radius
    return _placed(out, to, columns), _placed(out_radius, to, columns)


@kernel(reference=_relu_backward, plain="g_both g_radius")
def relu_backward(
    run: Entry, g_both: Tensor, g_radius: Tensor, mask: Tensor, to: Tensor | None = None, columns: int = 0
) -> tuple[Tensor, Tensor]:
    """Return the gradients of ``relu``'s inputs from those of its outputs, on the columns that were kept.

    With ``to`` (n,): column j goes to column to[j] of ``columns``, the others being 0.
    """
    rows, n = g_radius.shape
    columns = n if to is None else columns
    out, out_radius = g_both.new_empty(g_both.shape[0], columns), g_radius.new_empty(rows, columns)
    run(*_parts(g_both, rows), g_radius, mask, to, rows, n, columns, *_parts(out, rows), out_radius)
    return out, out_radius


def _add_signed(a: Tensor, b: Tensor, w: Tensor) -> Tensor:
    return a.addcmul_(b, w.sign())


@kernel(reference=_add_signed, alike="a b w")
def add_signed(run: Entry, a: Tensor, b: Tensor, w: Tensor) -> Tensor:
    """Compute a + b sign(w) in the memory of a, all of one shape."""
    run(a, b, w, a.numel())
    return a


def _innermost(x: Tensor) -> bool:
    return x.dim() == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)


def _as_it_is(x: Tensor) -> Tensor:
    return x


@kernel(reference=_as_it_is, alike="x", fits=_innermost, worth=WORTH)
def channels_outermost(run: Entry, x: Tensor) -> Tensor:
    """Return images (B, C, H, W) that lie in NHWC order plane by plane; anything else as it is."""
    images, channels, height, width = x.shape
    out = x.new_empty(x.shape)
    run(x, images, height * width, channels, out)
    return out


def _fold(windows: Tensor, size: tuple[int, int], stride: tuple[int, int], pad: tuple[int, int]) -> Tensor:
    n, oh, ow, kh, kw, c = windows.shape
    (h, w), (sy, sx), (top, left) = size, stride, pad
    # room for every window, also past the right and lower ends
    full = windows.new_zeros(n, max(h + 2 * top, (oh - 1) * sy + kh), max(w + 2 * left, (ow - 1) * sx + kw), c)
    for a in range(kh - 1, -1, -1):
        for d in range(kw - 1, -1, -1):
            full[:, a : a + (oh - 1) * sy + 1 : sy, d : d + (ow - 1) * sx + 1 : sx].add_(windows[:, :, :, a, d])
    return full[:, top : top + h, left : left + w].contiguous()


@kernel(reference=_fold, plain="windows")
def fold(run: Entry, windows: Tensor, size: tuple[int, int], stride: tuple[int, int], pad: tuple[int, int]) -> Tensor:
    """Sum windows (N, OH, OW, kh, kw, C) into images (N, H, W, C): the adjoint of im2col in NHWC order.

    Every pixel adds its windows in the order of their positions, that is from the last row and column of a window.
    """
    out = windows.new_empty(windows.shape[0], *size, windows.shape[-1])
    run(windows, *windows.shape, *size, *stride, *pad, out)
    return out


def _unfold(images: Tensor, window: tuple[int, int], stride: tuple[int, int]) -> Tensor:
    (kh, kw), (sy, sx) = window, stride
    return images.unfold(1, kh, sy).unfold(2, kw, sx).permute(0, 1, 2, 4, 5, 3).contiguous()


@kernel(reference=_unfold, plain="images")
def unfold(run: Entry, images: Tensor, window: tuple[int, int], stride: tuple[int, int]) -> Tensor:
    """Cut images (N, h, w, c) into windows (N, oh, ow, kh, kw, c), without padding: the adjoint of ``fold``."""
    (n, h, w, c), (kh, kw), (sy, sx) = images.shape, window, stride
    oh, ow = (h - kh) // sy + 1, (w - kw) // sx + 1
    windows = images.new_empty(n, oh, ow, kh, kw, c)
    run(images, n, oh, ow, kh, kw, c, h, w, sy, sx, windows)
    return windows


def _placed(value: Tensor, to: Tensor, columns: int) -> Tensor:
    return value.new_zeros(value.shape[0], columns).index_copy_(1, to, value)


def _scaled(both: Tensor, radius: Tensor, scale: Tensor | None, shift: Tensor | None) -> tuple[Tensor, Tensor]:
    if scale is None or shift is None:
        return both, radius
    return (both * scale).add_(shift), radius * scale.abs()  # two roundings, as without a fused multiply-add


def _parts(both: Tensor, rows: int) -> tuple[int | None, int]:
    """Return the addresses of the clean rows, if there are any, and of the centres."""
    start = both.data_ptr()
    stacked = both.shape[0] > rows
    return (start if stacked else None), start + stacked * rows * both.shape[1] * both.element_size()

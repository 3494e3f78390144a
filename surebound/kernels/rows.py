"""Rows of coefficients back through a ReLU's lines and to a box: compiled; None where that is not possible.

Rows (S, B, *value) of B examples, everything else (B, *value). Images may lie with channels innermost or plane by
plane. Sums are taken in another order than PyTorch's.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from surebound.kernels.build import library


def pull(a: Tensor, lower: Tensor | None, upper: Tensor, top: Tensor) -> tuple[Tensor, Tensor] | None:
    """upper a where a > 0, lower a elsewhere (None: upper a), laid out as the slopes; and sums of max(a, 0) top."""
    given = _Given.of(a, lower, upper, top)
    if given is None:
        return None
    back, offset = like(a, given.last), a.new_empty(a.shape[:2])
    failed = given.kernels.surebound_pull(
        a.data_ptr(), at(lower), upper.data_ptr(), top.data_ptr(), *given.sizes, given.planes, back.data_ptr(),
        offset.data_ptr(), torch.get_num_threads(),
    )  # fmt: skip
    return None if failed else (back, offset)


def pull_backward(
    a: Tensor,
    g: Tensor,
    g_offset: Tensor,
    lower: Tensor | None,
    upper: Tensor,
    top: Tensor,
    wanted: tuple[bool, bool, bool],
) -> tuple[Tensor | None, ...] | None:
    """Gradients of a and, as far as wanted, of lower, upper and top."""
    given = _Given.of(a, lower, upper, top)
    if given is None or g.dtype != torch.float32:
        return None
    if given.last:
        g = g.movedim(2, -1).contiguous().movedim(-1, 2)
    g, g_offset = g if given.last else g.contiguous(), g_offset.to(torch.float32).contiguous()
    g_a = torch.empty_like(a)  # dense: the same strides
    found = [torch.empty_like(upper) if want else None for want in wanted]
    failed = given.kernels.surebound_pull_backward(
        a.data_ptr(), g.data_ptr(), g_offset.data_ptr(), at(lower), upper.data_ptr(), top.data_ptr(), *given.sizes,
        given.planes, g_a.data_ptr(), *(at(each) for each in found), torch.get_num_threads(),
    )  # fmt: skip
    return None if failed else (g_a, *found)


def largest(a: Tensor, center: Tensor, radius: Tensor) -> Tensor | None:
    """a.center + |a|.radius (S, B)."""
    kernels = _plain(a, center, radius)
    if kernels is None:
        return None
    best = a.new_empty(a.shape[:2])
    kernels.surebound_largest(
        a.data_ptr(),
        center.data_ptr(),
        radius.data_ptr(),
        *sizes(a),
        best.data_ptr(),
        torch.get_num_threads(),
    )
    return best


def largest_backward(a: Tensor, g: Tensor, center: Tensor, radius: Tensor) -> Tensor | None:
    """The gradient of a from that g (S, B) of ``largest``."""
    kernels = _plain(a, center, radius)
    if kernels is None:
        return None
    g, g_a = g.to(torch.float32).contiguous(), torch.empty_like(a)
    kernels.surebound_largest_backward(
        a.data_ptr(), g.data_ptr(), center.data_ptr(), radius.data_ptr(), *sizes(a), g_a.data_ptr(),
        torch.get_num_threads(),
    )  # fmt: skip
    return g_a


def unfold(images: Tensor, window: tuple[int, int], stride: tuple[int, int]) -> Tensor:
    """images (N, h, w, c) -> windows (N, oh, ow, kh, kw, c), without padding: the adjoint of ``fold``."""
    (n, h, w, c), (kh, kw), (sy, sx) = images.shape, window, stride
    kernels = _plain(images)
    if kernels is None:
        return images.unfold(1, kh, sy).unfold(2, kw, sx).permute(0, 1, 2, 4, 5, 3).contiguous()
    oh, ow = (h - kh) // sy + 1, (w - kw) // sx + 1
    windows = images.new_empty(n, oh, ow, kh, kw, c)
    kernels.surebound_unfold(
        images.data_ptr(), n, oh, ow, kh, kw, c, h, w, sy, sx, windows.data_ptr(), torch.get_num_threads()
    )
    return windows


class _Given:
    """The kernels, and how rows and slopes lie in memory."""

    def __init__(self, kernels: ctypes.CDLL, a: Tensor, *, last: bool, planes: int) -> None:
        self.kernels, self.last, self.planes, self.sizes = kernels, last, planes, sizes(a)

    @classmethod
    def of(cls, a: Tensor, lower: Tensor | None, upper: Tensor, top: Tensor) -> _Given | None:
        slopes = [v for v in (lower, upper, top) if v is not None]
        if any(v.dtype != torch.float32 or v.device.type != "cpu" for v in (a, *slopes)):
            return None
        if any(v.shape != a.shape[1:] for v in slopes):
            return None
        last = not all(v.is_contiguous() for v in slopes)
        if last and not all(v.dim() == 4 and v.movedim(1, -1).is_contiguous() for v in slopes):
            return None
        inner = last and a.movedim(2, -1).is_contiguous()
        kernels = library() if inner or a.is_contiguous() else None
        return (
            None
            if kernels is None
            else cls(kernels, a, last=last, planes=a.shape[2] if last and not inner else 0)
        )


def _plain(a: Tensor, *boxes: Tensor) -> ctypes.CDLL | None:
    plain = all(v.dtype == torch.float32 and v.device.type == "cpu" for v in (a, *boxes))
    fits = (
        plain and all(v.is_contiguous() for v in (a, *boxes)) and all(v.shape == a.shape[1:] for v in boxes)
    )
    return library() if fits else None


def like(a: Tensor, last: bool) -> Tensor:
    """Room for rows (S, B, *value); ``last``: images with channels innermost."""
    if not last:
        return a.new_empty(a.shape)
    s, b, c, h, w = a.shape
    return a.new_empty(s, b, h, w, c).movedim(-1, 2)


def sizes(a: Tensor) -> tuple[int, int, int]:
    """S, B, n."""
    return a.shape[0], a.shape[1], a[0, 0].numel()


def at(value: Tensor | None) -> int | None:
    """Where a kernel finds it; NULL for None."""
    return None if value is None else value.data_ptr()

"""Elementwise passes over the ends of bounds, some with gradients: compiled; None where that is not possible.

All values of a call have one shape and lie in memory in one order without gaps, or PyTorch does it.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from surebound.kernels.build import library

#: From so many numbers on it is worth looking for a compiler.
WORTH = 1 << 12


def chord(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """Slope and intercept of the line above a ReLU, the adaptive slope below, and where both signs are possible."""
    kernels = alike(lower, upper)
    if kernels is None:
        return None
    slope, top, below = (torch.empty_like(lower) for _ in range(3))
    unstable = torch.empty_like(lower, dtype=torch.bool)
    kernels.surebound_chord(
        *at(lower, upper), lower.numel(), *at(slope, top, below, unstable), torch.get_num_threads()
    )
    return slope, top, below, unstable


def chord_backward(
    lower: Tensor, upper: Tensor, g_slope: Tensor, g_top: Tensor
) -> tuple[Tensor, Tensor] | None:
    """Gradients of the ends from those of slope and intercept."""
    g_slope, g_top = as_laid_out(g_slope, lower), as_laid_out(g_top, lower)
    kernels = alike(lower, upper, g_slope, g_top)
    if kernels is None:
        return None
    g_lower, g_upper = torch.empty_like(lower), torch.empty_like(lower)
    kernels.surebound_chord_backward(
        *at(lower, upper, g_slope, g_top), lower.numel(), *at(g_lower, g_upper), torch.get_num_threads()
    )
    return g_lower, g_upper


def within(lower: Tensor, upper: Tensor, center: Tensor, radius: Tensor) -> tuple[Tensor, Tensor] | None:
    """The tighter of known ends and centre -+ radius."""
    center, radius = as_laid_out(center, lower), as_laid_out(radius, lower)
    kernels = alike(lower, upper, center, radius)
    if kernels is None:
        return None
    low, high = torch.empty_like(lower), torch.empty_like(lower)
    kernels.surebound_within(
        *at(lower, upper, center, radius), lower.numel(), *at(low, high), torch.get_num_threads()
    )
    return low, high


def within_backward(
    known: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor], g: tuple[Tensor, Tensor]
) -> tuple[Tensor | None, Tensor | None, Tensor, Tensor] | None:
    """Gradients of known ends (None: there are none), centre and radius from those g of the new ends."""
    low, high = (as_laid_out(each, known[0]) for each in g)
    kernels = alike(*known, *new, low, high)
    if kernels is None:
        return None
    found = [torch.empty_like(low) for _ in range(4)]
    some = kernels.surebound_within_backward(
        *at(*known, *new, low, high), low.numel(), *at(*found), torch.get_num_threads()
    )
    return (found[0] if some else None), (found[1] if some else None), found[2], found[3]


def ball(x: Tensor, radius: float, least: float, most: float) -> tuple[Tensor, Tensor] | None:
    """Ends of [x - radius, x + radius], radius > 0, rounded outwards if at all, within [least, most]."""
    kernels = alike(x) if x.numel() >= WORTH and not x.requires_grad else None
    if kernels is None:
        return None
    low, high = torch.empty_like(x), torch.empty_like(x)
    kernels.surebound_ball(
        x.data_ptr(), x.numel(), radius, least, most, *at(low, high), torch.get_num_threads()
    )
    return low, high


def sizes(weight: Tensor, to: Tensor | None, least: float) -> tuple[Tensor, float, bool] | None:
    """|weight|, in ``to`` if there is one; the largest; is there one in (0, least]? Without gradients."""
    given = () if to is None else (to,)
    trains = torch.is_grad_enabled() and weight.requires_grad
    kernels = alike(weight, *given) if weight.numel() >= WORTH and not trains else None
    if kernels is None:
        return None
    to, most = torch.empty_like(weight) if to is None else to, ctypes.c_float()
    small = kernels.surebound_sizes(
        weight.data_ptr(), weight.numel(), least, to.data_ptr(), ctypes.byref(most), torch.get_num_threads()
    )
    return to, most.value, bool(small)


def paid(center: Tensor, radius: Tensor, rate: float, *, owned: bool) -> Tensor:
    """radius + rate |center|; in the radius's memory, and overwriting the centre, if both are ``owned``."""
    trains = torch.is_grad_enabled() and (center.requires_grad or radius.requires_grad)
    kernels = alike(radius, center) if radius.numel() >= WORTH and not trains else None
    if kernels is None:
        if owned:
            return radius.add_(center.abs_(), alpha=rate)
        return torch.add(radius, center.abs(), alpha=rate)
    to = radius if owned else torch.empty_like(radius)
    kernels.surebound_paid(*at(center, radius), radius.numel(), rate, to.data_ptr(), torch.get_num_threads())
    return to


def entry(lower: Tensor, upper: Tensor, rate: float) -> tuple[Tensor, Tensor, Tensor, int, Tensor] | None:
    """Of bounds (B, ...) the centre; the width + rate |centre|; max(lower, -upper), and how many of these are not 0.

    And the largest |x| of each example (B,). Without gradients.
    """
    trains = torch.is_grad_enabled() and (lower.requires_grad or upper.requires_grad)
    kernels = alike(lower, upper) if lower.numel() >= WORTH and lower.dim() > 1 and not trains else None
    if kernels is None:
        return None
    center, width, clear = (torch.empty_like(lower) for _ in range(3))
    most = lower.new_empty(lower.shape[0])
    count = kernels.surebound_entry(
        *at(lower, upper), lower.shape[0], lower[0].numel(), rate, *at(center, width, clear, most),
        torch.get_num_threads(),
    )  # fmt: skip
    return center, width, clear, count, most


def as_laid_out(value: Tensor, like: Tensor) -> Tensor:
    """The same numbers in the memory order of another tensor of that shape."""
    return value if value.stride() == like.stride() else torch.empty_like(like).copy_(value)


def alike(first: Tensor, *others: Tensor) -> ctypes.CDLL | None:
    """The kernels, if all of these are float32 in main memory, of one shape, in one order and without gaps."""
    dense = first.is_contiguous() or (first.dim() == 4 and first.movedim(1, -1).is_contiguous())
    alike = all(v.shape == first.shape and v.stride() == first.stride() for v in others)
    plain = all(v.dtype == torch.float32 and v.device.type == "cpu" for v in (first, *others))
    return library() if dense and alike and plain else None


def at(*values: Tensor) -> list[int]:
    """Addresses."""
    return [value.data_ptr() for value in values]

"""Windows of images: where they lie, and what they cut out of a value (B, C, H, W)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from surebound.rules.facts import Local


@dataclass(frozen=True)
class Window:
    """Along each of two axes: ``size`` entries from ``stride`` times the position plus ``start`` on."""

    start: tuple[int, int] = (0, 0)
    stride: tuple[int, int] = (1, 1)
    size: tuple[int, int] = (1, 1)

    def before(self, local: Local) -> Window | None:
        """Return the window that a local operator reads to compute this one.

        None if an operator that spreads its input reads other windows at other positions, or nothing here.
        """
        if local.spread is not None:
            return self._spread_before(local, local.spread)
        each = list(
            zip(
                self.start,
                self.stride,
                self.size,
                local.stride,
                local.pad,
                local.kernel,
                local.dilation,
                strict=True,
            )
        )
        return Window(
            _pair([o * s - p for o, _, _, s, p, _, _ in each]),
            _pair([t * s for _, t, _, s, _, _, _ in each]),
            _pair([(n - 1) * s + d * (k - 1) + 1 for _, _, n, s, _, k, d in each]),
        )

    def _spread_before(self, local: Local, spread: tuple[int, ...]) -> Window | None:
        """Return the inputs j with an output i of the window: i + pad = spread j + dilation t, 0 <= t < kernel."""
        start, stride, size = list[int](), list[int](), list[int]()
        for first, step, count, s, p, k, d in zip(
            self.start, self.stride, self.size, spread, local.pad, local.kernel, local.dilation, strict=True
        ):
            low, high = -((d * (k - 1) - first - p) // s), (first + count - 1 + p) // s
            if step % s or high < low:
                return None
            start.append(low)
            stride.append(step // s)
            size.append(high - low + 1)
        return Window(_pair(start), _pair(stride), _pair(size))

    def union(self, other: Window) -> Window | None:
        """Return the smallest window that holds both; None if they move on at different strides."""
        if self.stride != other.stride:
            return None
        start = _pair([min(a, b) for a, b in zip(self.start, other.start, strict=True)])
        ends = [max(a + n, b + m) for a, n, b, m in zip(self.start, self.size, other.start, other.size, strict=True)]
        return Window(start, self.stride, _pair([end - first for end, first in zip(ends, start, strict=True)]))

    def margins(self, inner: Window) -> list[int]:
        """Return how far it reaches beyond a window inside, as ``torch.nn.functional.pad`` takes it."""
        found = []
        for axis in (1, 0):
            first = inner.start[axis] - self.start[axis]
            found += [first, self.size[axis] - inner.size[axis] - first]
        return found


def _pair(values: list[int]) -> tuple[int, int]:
    return values[0], values[1]


@dataclass(frozen=True)
class Places:
    """P positions of a value: which example, row and column."""

    example: Tensor  # (P,)
    row: Tensor
    column: Tensor
    _found: dict[tuple[Window, int, int], tuple[Tensor, Tensor | None]] = field(default_factory=dict, repr=False)

    def cut(self, value: Tensor, window: Window) -> Tensor:
        """Cut the windows (P, C, h, w) out of a value (B, C, H, W), 0 outside, in NHWC order."""
        at, outside = self.pixels(window, *value.shape[2:])
        pixels = value.movedim(1, -1).reshape(-1, value.shape[1])  # (B H W, C)
        cut = pixels.index_select(0, at).view(-1, *window.size, value.shape[1])  # (P, h, w, C)
        if outside is not None:
            cut.masked_fill_(outside.unsqueeze(3), 0)
        return cut.movedim(-1, 1)

    def outside(self, shape: torch.Size, window: Window) -> Tensor | None:
        """Mark where (P, 1, h, w) windows of a value (B, C, H, W) leave it; None: nowhere."""
        outside = self.pixels(window, *shape[2:])[1]
        return None if outside is None else outside.unsqueeze(1)

    def pixels(self, window: Window, height: int, width: int) -> tuple[Tensor, Tensor | None]:
        """Return the pixels (P h w,) of (B, H, W) in windows, and where (P, h, w) there is none (None: nowhere)."""
        key = window, height, width
        if key not in self._found:
            rows, in_rows = _along(self.row, window, 0, height)  # (P, h)
            columns, in_columns = _along(self.column, window, 1, width)
            flat = (self.example.view(-1, 1, 1) * height + rows.unsqueeze(2)) * width + columns.unsqueeze(1)
            outside = ~(in_rows.unsqueeze(2) & in_columns.unsqueeze(1))
            self._found[key] = flat.flatten(), outside if bool(outside.any()) else None
        return self._found[key]


def _along(at: Tensor, window: Window, axis: int, length: int) -> tuple[Tensor, Tensor]:
    """Return indices (P, size) along an axis, moved inside, and which of them were."""
    first = at * window.stride[axis] + window.start[axis]
    index = first.unsqueeze(1) + torch.arange(window.size[axis], device=at.device)
    return index.clamp(0, length - 1), (index >= 0) & (index < length)

"""Columns of random projections through lines, convolutions and medians: compiled, or in PyTorch where they cannot be.

Values (B, K, n): K columns of B examples, an image's entries with the channel innermost. Sums are taken in another
order than PyTorch's, so the two agree to rounding only.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from surebound.kernels.build import library

#: The compiled medians hold so many columns, and number them by a byte.
MOST_COLUMNS = 128


@dataclass(frozen=True)
class Lines:
    """v = slope u + gap noise; without u: v = gap noise. Of all columns of a batch."""

    u: Tensor | None  # (B, K, n)
    slope: Tensor | None  # (B, n)
    gap: Tensor  # (B, n)
    noise: Tensor  # (K, n)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.gap.shape[0], self.noise.shape[0], self.gap.shape[1]

    def apply(self) -> Tensor:
        """v (B, K, n)."""
        kernels = _kernels(self.u, self.slope, self.gap, self.noise)
        if kernels is None:
            fresh = self.gap.unsqueeze(1) * self.noise
            return fresh if self.u is None else torch.addcmul(fresh, self.slope.unsqueeze(1), self.u)  # type: ignore[union-attr]
        v = self.gap.new_empty(self.shape)
        kernels.surebound_lines(*self._at(), *self.shape, v.data_ptr(), torch.get_num_threads())
        return v

    def backward(self, gv: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor]:
        """Gradients of u, slope and gap from those of v."""
        kernels = _kernels(gv, self.u, self.slope, self.gap, self.noise)
        if kernels is None:
            g_gap = torch.einsum("bkn,kn->bn", gv, self.noise)
            if self.u is None or self.slope is None:
                return None, None, g_gap
            return gv * self.slope.unsqueeze(1), (gv * self.u).sum(1), g_gap
        gu, g_slope, g_gap = self._empty()
        u, slope, _, noise = self._at()
        kernels.surebound_lines_backward(
            gv.data_ptr(), u, slope, noise, *self.shape, _at(gu), _at(g_slope), _at(g_gap), torch.get_num_threads()
        )  # fmt: skip
        return gu, g_slope, g_gap

    def _empty(self) -> tuple[Tensor | None, Tensor | None, Tensor]:
        new = self.gap.new_empty
        if self.u is None:
            return None, None, new(self.gap.shape)
        return new(self.shape), new(self.gap.shape), new(self.gap.shape)

    def _at(self) -> tuple[int | None, int | None, int | None, int | None]:
        return _at(self.u), _at(self.slope), _at(self.gap), _at(self.noise)


@dataclass(frozen=True)
class Windows:
    """A convolution without padding: (h, w, c) -> (oh, ow, o) by windows of kh x kw."""

    h: int
    w: int
    c: int
    oh: int
    ow: int
    o: int
    kh: int
    kw: int
    sy: int
    sx: int

    @property
    def sizes(self) -> tuple[int, ...]:
        return (self.h, self.w, self.c, self.oh, self.ow, self.o, self.kh, self.kw, self.sy, self.sx)

    @classmethod
    def matrix(cls, weight: Tensor) -> Windows:
        """A matrix (o, n) as a convolution of one pixel with n channels."""
        return cls(1, 1, weight.shape[1], 1, 1, weight.shape[0], 1, 1, 1, 1)

    def usable(self, lines: Lines) -> bool:
        """Is there a compiled form for these columns on this machine?"""
        return _kernels(lines.u, lines.slope, lines.gap, lines.noise) is not None

    def apply(self, lines: Lines, weight: Tensor) -> Tensor | None:
        """The convolution (B, K, oh ow o) of v, without entries that are 0 in all columns.

        weight (o, c, kh, kw), or that of a matrix.
        """
        kernels = _kernels(lines.gap)
        batch, count, _ = lines.shape
        out = lines.gap.new_empty(batch, count, self.oh * self.ow * self.o)
        packed = weight.contiguous() if weight.dim() == 2 else weight.permute(0, 2, 3, 1).contiguous()
        failed = kernels is None or kernels.surebound_convolve(
            *lines._at(),
            packed.data_ptr(),
            batch,
            count,
            *self.sizes,
            out.data_ptr(),
            torch.get_num_threads(),
        )
        return None if failed else out

    def backward(
        self,
        lines: Lines,
        weight: Tensor,
        u: Tensor | None,
        g_u: Tensor | None,
        g: Tensor | None,
        places: Tensor | None,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor] | None:
        """Gradients of u, slope, gap and weight, from those of the values u and g (B, oh ow o) of the medians' sums.

        Without ``lines.u`` the first three are not wanted.
        """
        kernels = _kernels(lines.gap, g, g_u, u)
        batch, count, _ = lines.shape
        gu, g_slope, g_gap = (None, None, None) if lines.u is None else lines._empty()
        g_weight = weight.new_empty(batch, self.o, self.kh, self.kw, self.c)
        packed = weight.permute(0, 2, 3, 1).contiguous()
        failed = kernels is None or kernels.surebound_convolve_backward(
            _at(g), _at(places), 0 if places is None else places.shape[1], _at(g_u), _at(u), *lines._at(),
            packed.data_ptr(), batch, count, *self.sizes, _at(gu), _at(g_slope), _at(g_gap),
            g_weight.data_ptr(), torch.get_num_threads(),
        )  # fmt: skip
        return None if failed else (gu, g_slope, g_gap, g_weight.sum(0).permute(0, 3, 1, 2))


def matrix_backward(
    lines: Lines, weight: Tensor, u: Tensor, g: Tensor, places: Tensor
) -> tuple[Tensor | None, Tensor | None, Tensor, Tensor] | None:
    """Gradients of u, slope, gap and weight (o, n) from those g (B, o) of the medians' sums; None: not compiled."""
    kernels = _kernels(lines.u, lines.slope, lines.gap, lines.noise, weight, g, u)
    if kernels is None or places.dtype != torch.uint8:
        return None
    threads = torch.get_num_threads()
    gu, g_slope, g_gap = lines._empty()
    g_weight = weight.new_empty(threads, *weight.shape)
    failed = kernels.surebound_matrix_backward(
        g.data_ptr(), places.data_ptr(), places.shape[1], u.data_ptr(), *lines._at(), weight.data_ptr(), *lines.shape,
        weight.shape[0], _at(gu), _at(g_slope), _at(g_gap), g_weight.data_ptr(), threads,
    )  # fmt: skip
    return None if failed else (gu, g_slope, g_gap, g_weight.sum(0))


def medians(
    u: Tensor,
    comparators: tuple[tuple[int, int, bool, bool], ...],
    middle: tuple[int, ...],
    wanted: Tensor | None = None,
) -> tuple[Tensor, Tensor] | None:
    """The sum (B, n) of the middle values of |u| (B, K, n), and the columns (B, middles, n) they are found in.

    ``comparators`` bring them to the places ``middle``; None where there is no compiled form. Infinite, and in any
    column, where it is not ``wanted`` (B, n), bool.
    """
    kernels = _kernels(u)
    batch, count, size = u.shape
    if kernels is None or count > MOST_COLUMNS:
        return None
    network, where = _integers(comparators), _integers((middle,))
    total = u.new_empty(batch, size)
    places = u.new_empty(batch, len(middle), size, dtype=torch.uint8)
    if wanted is not None:
        wanted = wanted.contiguous()
    failed = kernels.surebound_medians(
        u.data_ptr(), _at(wanted), batch, count, size, network.data_ptr(), len(comparators), where.data_ptr(),
        len(middle), total.data_ptr(), places.data_ptr(), torch.get_num_threads(),
    )  # fmt: skip
    return None if failed else (total, places)


@lru_cache
def _integers(rows: tuple[tuple[int, ...], ...]) -> Tensor:
    return torch.tensor(rows, dtype=torch.int32)


def _kernels(*values: Tensor | None) -> ctypes.CDLL | None:
    plain = all(
        v is None or (v.dtype == torch.float32 and v.device.type == "cpu" and v.is_contiguous())
        for v in values
    )
    return library() if plain else None


def _at(value: Tensor | None) -> int | None:
    return None if value is None else value.data_ptr()

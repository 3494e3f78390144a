"""Images that stay in their files: rows are read when they are asked for, and nothing else is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from surebound.errors import InputError


class MappedImages:
    """Memory-mapped arrays (n_i, C*H*W) of bytes, one after the other, as images (N, C, h, w).

    `crop` keeps the central crop x crop window of each image.
    """

    def __init__(
        self, parts: Sequence[NDArray[np.uint8]], shape: tuple[int, int, int], crop: int | None = None
    ) -> None:
        self._parts = tuple(parts)
        self._ends = np.cumsum([len(part) for part in parts])
        self._image = shape
        c, height, width = shape
        h, w = (height, width) if crop is None else (crop, crop)
        top, left = (height - h) // 2, (width - w) // 2
        self._window = (slice(top, top + h), slice(left, left + w))
        self.shape = (int(self._ends[-1]), c, h, w)
        self.dtype = torch.uint8

    def __getitem__(self, indices: Tensor, /) -> Tensor:
        """The images at `indices` (B,): (B, C, h, w), in memory."""
        wanted = indices.cpu().numpy()
        if wanted.size and (wanted.min() < 0 or wanted.max() >= self.shape[0]):
            raise InputError(f"indices must be from 0 to {self.shape[0] - 1}, got {wanted.min()} to {wanted.max()}")
        images = np.empty((len(wanted), *self.shape[1:]), np.uint8)
        owner = np.searchsorted(self._ends, wanted, side="right")
        rows, columns = self._window
        for i in np.unique(owner):
            part, places = self._parts[i], np.flatnonzero(owner == i)
            places = places[np.argsort(wanted[places])]  # in the order of the file: fewer seeks
            found = part[wanted[places] - (self._ends[i] - len(part))].reshape(-1, *self._image)
            images[places] = found[:, :, rows, columns]
        return torch.from_numpy(images)

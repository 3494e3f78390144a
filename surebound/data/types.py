"""The value types of a dataset: `Dataset`, its two `Split`s, and where the data came from.

Images stay as they are stored, usually bytes, on whichever device is asked for; a batch is turned into
float32 in [0, 1] when it is drawn. Normalisation is a layer of the network, so every radius is in pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

import torch
from torch import Tensor

from surebound.data.augment import Augment
from surebound.errors import DataError, InputError


class Status(StrEnum):
    """How far the content of a dataset is known."""

    OFFICIAL = "official"  # images and labels match a published checksum
    UNVERIFIED = "unverified"  # right shapes, counts and labels, but no checksum vouches for the content
    GENERATED = "generated"  # written by `surebound.data.fake`, and marked so
    OWN = "own"  # the user's tensors or image folder: nothing is published to compare with


@dataclass(frozen=True)
class Provenance:
    """Where a dataset came from; `digest` identifies its content, whatever the packaging."""

    status: Status
    digest: str  # sha256 of the decoded images and labels of both splits
    files: tuple[str, ...] = ()
    note: str = ""

    def record(self) -> dict[str, str | list[str]]:
        """Plain values for a run's record."""
        return {
            "status": self.status.value,
            "digest": self.digest,
            "files": list(self.files),
            "note": self.note,
        }


class Pixels(Protocol):
    """What a split asks of images that are not a tensor (memory-mapped files): a shape, and rows by index."""

    @property
    def shape(self) -> Sequence[int]: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def __getitem__(self, indices: Tensor, /) -> Tensor: ...


def to_unit(pixels: Tensor) -> Tensor:
    """float32 images in [0, 1]: x/255, correctly rounded, for bytes; float32 images pass through.

    >>> to_unit(torch.tensor([0, 51, 255], dtype=torch.uint8))
    tensor([0.0000, 0.2000, 1.0000])
    """
    if pixels.dtype != torch.uint8:
        return pixels
    # A tensor divisor: some backends multiply by the reciprocal of a Python scalar, an ulp off x/255.
    return pixels.to(torch.float32).div_(torch.full((), 255.0, device=pixels.device))


@dataclass(frozen=True, eq=False)
class Split:
    """Images (N, C, H, W), uint8 or float32 in [0, 1], with labels (N,) int64.

    >>> split = Split(torch.full((3, 1, 2, 2), 255, dtype=torch.uint8), torch.tensor([0, 1, 2]))
    >>> x, y = split.batch(torch.tensor([2, 0]))
    >>> x.shape, float(x.max()), y.tolist()
    (torch.Size([2, 1, 2, 2]), 1.0, [2, 0])
    """

    images: Tensor | Pixels  # (N, C, H, W)
    labels: Tensor  # (N,)

    def __post_init__(self) -> None:
        shape = tuple(self.images.shape)
        if len(shape) != 4:
            raise InputError(f"images must have the shape (N, C, H, W), got {shape}")
        if self.images.dtype not in (torch.uint8, torch.float32):
            raise InputError(f"images must be uint8, or float32 in [0, 1], got {self.images.dtype}")
        if self.labels.dtype != torch.int64 or tuple(self.labels.shape) != shape[:1]:
            raise InputError(
                f"labels must be int64 of shape {shape[:1]}, one per image, "
                f"got {self.labels.dtype} of shape {tuple(self.labels.shape)}"
            )

    def __len__(self) -> int:
        return int(self.labels.shape[0])

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of one image."""
        _, c, h, w = self.images.shape
        return int(c), int(h), int(w)

    @property
    def device(self) -> torch.device:
        """The device batches are on."""
        return self.labels.device

    def to(self, device: torch.device | str) -> Split:
        """The split with its tensors on `device`; memory-mapped images stay in their files, batches move."""
        images = self.images.to(device) if isinstance(self.images, Tensor) else self.images
        return Split(images, self.labels.to(device))

    def pixels(self, indices: Tensor) -> Tensor:
        """The images at `indices` (B,) as stored, on the split's device: (B, C, H, W)."""
        if isinstance(self.images, Tensor):
            return self.images[indices.to(self.images.device)]
        return self.images[indices].to(self.device)

    def batch(
        self, indices: Tensor, augment: Augment | None = None, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Float images (B, C, H, W) in [0, 1] and labels (B,) at `indices`, augmented if asked."""
        pixels = self.pixels(indices)
        if augment is not None:
            if generator is None:
                raise InputError("augmentation draws at random: pass the torch.Generator to draw from")
            pixels = augment(pixels, generator)
        return to_unit(pixels), self.labels[indices.to(self.device)]

    def batches(self, batch_size: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Every image once, in order, from `start` on; the last batch holds what is left, however few."""
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, got {batch_size}")
        for first in range(start, len(self), batch_size):
            yield self.batch(torch.arange(first, min(first + batch_size, len(self))))

    def subset(self, indices: Tensor) -> Split:
        """The images at `indices` (B,), in that order, as a split of its own held in memory."""
        return Split(self.pixels(indices), self.labels[indices.to(self.device)])

    def take(self, count: int) -> Split:
        """The first `count` images (all of them if there are fewer)."""
        if isinstance(self.images, Tensor):
            return Split(self.images[:count], self.labels[:count])
        return self.subset(torch.arange(min(count, len(self))))


@dataclass(frozen=True, eq=False)
class Dataset:
    """A named classification task on images with pixels in [0, 1].

    `mean` and `std` are the channel statistics a network's first layer should normalise with (None: no
    normalisation, as the paper has it for MNIST); `augment` is the augmentation of the paper's training runs.
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    provenance: Provenance
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    augment: Augment | None = None

    def __post_init__(self) -> None:
        for where, split in (("train", self.train), ("test", self.test)):
            if len(split) == 0:
                raise DataError(f"the {where} split of {self.name!r} is empty; both splits need images")
            low, high = int(split.labels.min()), int(split.labels.max())
            if low < 0 or high >= len(self.classes):
                raise DataError(
                    f"the {where} labels of {self.name!r} run from {low} to {high}, "
                    f"but there are {len(self.classes)} classes: labels must be 0 to {len(self.classes) - 1}"
                )

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of what a network is given: the test images, and the train images once augmented."""
        return self.test.shape

    def holding_out(self, count: int) -> Dataset:
        """Put the last `count` training images in the place of the test images, and train on the others.

        For choices between recipes: whoever chooses by the test images measures how well they chose.
        """
        left = len(self.train) - count
        if count < 1 or left < 1:
            raise DataError(f"{self.name!r} has {len(self.train)} training images: {count} of them cannot be held out")
        if not isinstance(self.train.images, Tensor) or self.train.shape != self.test.shape:
            raise DataError(
                f"training images of {self.name!r} cannot stand for test images: they stay in their files, or are "
                "cropped in training only; hold out images with a data directory of your own"
            )
        last = Split(self.train.images[left:], self.train.labels[left:])
        return replace(self, train=self.train.take(left), test=last)

    def to(self, device: torch.device | str) -> Dataset:
        """The dataset with both splits on `device`."""
        return replace(self, train=self.train.to(device), test=self.test.to(device))

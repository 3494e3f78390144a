"""A dataset from tensors of one's own."""

from __future__ import annotations

import torch
from torch import Tensor

from surebound.data.augment import Augment
from surebound.data.checksum import combined, split_digest
from surebound.data.types import Dataset, Provenance, Split, Status
from surebound.errors import InputError


def from_tensors(
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    *,
    name: str = "own",
    classes: tuple[str, ...] | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    augment: Augment | None = None,
) -> Dataset:
    """A dataset of (images, labels) pairs: images (N, C, H, W) as bytes, or as floats in [0, 1]; labels (N,).

    >>> images, labels = torch.rand(6, 1, 4, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    >>> data = from_tensors((images[:4], labels[:4]), (images[4:], labels[4:]))
    >>> data.classes, len(data.test), data.provenance.status.value
    (('0', '1', '2'), 2, 'own')
    """
    splits = [_split(where, *pair) for where, pair in (("train", train), ("test", test))]
    if splits[0].shape != splits[1].shape:
        raise InputError(f"train images are {splits[0].shape} but test images are {splits[1].shape}")
    if classes is None:
        highest = max(int(split.labels.max()) for split in splits if len(split))
        classes = tuple(str(label) for label in range(highest + 1))
    digest = combined(*(split_digest(split) for split in splits))
    return Dataset(name, splits[0], splits[1], classes, Provenance(Status.OWN, digest), mean, std, augment)


def _split(where: str, images: Tensor, labels: Tensor) -> Split:
    if images.is_floating_point():
        images = images.to(torch.float32)
        if images.numel() and not bool(((images >= 0) & (images <= 1)).all()):  # NaN fails both
            raise InputError(
                f"the {where} images reach from {float(images.min()):g} to {float(images.max()):g}; "
                "float images must be in [0, 1]: divide bytes by 255, "
                "and let the network's first layer normalise"
            )
    if labels.dtype in (torch.int8, torch.int16, torch.int32, torch.uint8):
        labels = labels.to(torch.int64)
    return Split(images, labels)

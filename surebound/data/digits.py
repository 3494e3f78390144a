"""The 8x8 handwritten digits that scikit-learn carries: 1797 images with 17 grey levels, no file to fetch."""

from __future__ import annotations

import torch

from surebound.data.types import Split

GREY_LEVELS = 16.0  # pixels are whole numbers from 0 to 16: sixteenths, exact in float32
FOLD = 5  # of each class, in the order given, every fifth image is for testing


def read() -> tuple[Split, Split]:
    """Both splits (1442 and 355 images), stratified by class, the same on every machine."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.from_numpy(bunch.images).to(torch.float32)[:, None] / GREY_LEVELS  # (N, 1, 8, 8)
    labels = torch.from_numpy(bunch.target).to(torch.int64)
    test = torch.zeros(len(labels), dtype=torch.bool)
    for digit in range(10):
        members = (labels == digit).nonzero()[:, 0]
        test[members[FOLD - 1 :: FOLD]] = True
    return Split(images[~test], labels[~test]), Split(images[test], labels[test])

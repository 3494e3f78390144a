"""The 8x8 handwritten digits that scikit-learn carries: 1797 images with 17 grey levels, no file to fetch."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from surebound.data.types import Split

GREY_LEVELS = 16.0  # pixels are whole numbers from 0 to 16: sixteenths, exact in float32
FOLD = 5  # of each class, in the order given, every fifth image is for testing


def read() -> tuple[Split, Split]:
    """Both splits (1442 and 355 images), stratified by class, the same on every machine."""
    pixels, targets = _table()
    images = torch.from_numpy(pixels).to(torch.float32).reshape(-1, 1, 8, 8) / GREY_LEVELS  # (N, 1, 8, 8)
    labels = torch.from_numpy(targets).to(torch.int64)
    test = torch.zeros(len(labels), dtype=torch.bool)
    for digit in range(10):
        members = (labels == digit).nonzero()[:, 0]
        test[members[FOLD - 1 :: FOLD]] = True
    return Split(images[~test], labels[~test]), Split(images[test], labels[test])


def _table() -> tuple[np.ndarray, np.ndarray]:
    """Return the pixels (N, 64) and the labels (N,), from scikit-learn's file if it is where it is known to be.

    To import scikit-learn takes longer than to train the first steps on these images.
    """
    package = find_spec("sklearn")
    if package is not None and package.origin is not None:
        path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if path.is_file():
            numbers = np.loadtxt(path, delimiter=",")  # (N, 65), the label last
            return numbers[:, :-1], numbers[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return bunch.data, bunch.target

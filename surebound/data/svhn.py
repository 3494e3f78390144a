"""SVHN, cropped digits: MATLAB files with X (32, 32, 3, N) and y (N, 1), where 10 stands for the digit 0."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from surebound.data.files import Found, Layout, reading, refuse
from surebound.data.types import Split

LAYOUTS = (Layout("MATLAB files", (("train_32x32.mat",), ("test_32x32.mat",))),)


def read_split(path: Path) -> Split:
    """One split from its file."""
    from scipy.io import loadmat

    with reading(path):
        content = loadmat(path, variable_names=("X", "y"))
    images, labels = content.get("X"), content.get("y")
    if images is None or labels is None:
        raise refuse(path, "lacks the variable " + ("X" if images is None else "y"), "both X and y")
    if images.ndim != 4 or images.shape[:3] != (32, 32, 3) or images.dtype != np.uint8:
        raise refuse(path, f"has X of {images.dtype} and shape {images.shape}", "bytes of shape (32, 32, 3, N)")
    count = images.shape[3]
    if labels.size != count or labels.dtype.kind not in "iuf":
        raise refuse(path, f"has {labels.size} labels of {labels.dtype}", f"{count} numbers, one for each image")
    digits = labels.reshape(-1).astype(np.int64)
    if digits.min() < 1 or digits.max() > 10:
        raise refuse(path, f"has labels from {digits.min()} to {digits.max()}", "1 to 10, where 10 is the digit 0")
    pixels = np.ascontiguousarray(images.transpose(3, 2, 0, 1))  # (N, 3, 32, 32)
    return Split(torch.from_numpy(pixels), torch.from_numpy(digits % 10))


def read(found: Found) -> tuple[Split, Split]:
    """Both splits."""
    train, test = found.paths
    return read_split(train), read_split(test)

"""Digests of the content of a dataset: decoded images and labels, whatever the packaging.

A copy that was repacked (recompressed, unpacked, converted between the published formats) has the content of
the original and is accepted as official; a copy that merely looks right is not.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from torch import Tensor

from surebound.data.types import Split

# sha256 of the content of (train, test), computed from files with the published checksums.
OFFICIAL: dict[str, tuple[str, str]] = {
    "digits": (
        "c5614935c5738525199748c28a4d3ce5583c6fe2768efb62e9a748e6d48d5ef3",
        "12ab531c03353d2252d6a95fcda5eb6a4f47ca3160a7ffd2c075fb302eccd665",
    ),
    "mnist": (
        "6722f4fb6c801e27b85f5a43b6e75b044300924d840008bdd124bd7f82c54dc1",
        "21dc84e3b9b0ea5d7e15b461343cc651a87973a19435d443025f04d108911e33",
    ),
    "fashion_mnist": (
        "e1420e72013b5ad110fe290c2b75d3a95036ba9a55a9e56bf58a7109255ee235",
        "de386681707a84517d056a16d447b78e85f0f618e4390ba924990cd18db6f294",
    ),
    "cifar10": (
        "168ad38da03b73f8634ec641ee724f23530cffade46311530d9b821841f682cc",
        "84af40a4fd4154201ae397319697d6cc5594b9185b409e3bca56877613269f7d",
    ),
}


STRIDE = 997  # of memory-mapped images, too many to read at every start, the digest covers one in so many


def _feed(digest: hashlib._Hash, array: Tensor) -> None:
    """Feed shape, type and bytes of a tensor, so that no two different arrays feed the same."""
    digest.update(f"{tuple(array.shape)} {array.dtype}\n".encode())
    digest.update(array.contiguous().cpu().numpy().tobytes())


def split_digest(split: Split) -> str:
    """sha256 of the images (N, C, H, W) as stored and the labels as 16-bit numbers."""
    digest = hashlib.sha256()
    if isinstance(split.images, Tensor):
        _feed(digest, split.images)
    else:
        _feed(digest, split.pixels(torch.arange(0, len(split), STRIDE)))
    _feed(digest, split.labels.to(torch.int16))
    return digest.hexdigest()


def combined(train: str, test: str) -> str:
    """One digest for both splits."""
    return hashlib.sha256(f"{train}\n{test}\n".encode()).hexdigest()


def file_md5(path: Path) -> str:
    """md5 of a file: the kind of checksum that the publishers and the common libraries give."""
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()

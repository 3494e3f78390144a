"""The idx format of MNIST and its relatives: a big-endian header (type, dimensions), then the values."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import torch
from torch import Tensor

from surebound.data.files import Found, Layout, reading, refuse
from surebound.data.types import Split

STEMS = (
    *("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    *("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
)
LAYOUTS = (Layout("the four idx files, gzipped or not", tuple((f"{stem}.gz", stem) for stem in STEMS)),)

UNSIGNED_BYTE = 0x08
LIMIT = 1 << 31  # bytes; a header that claims more is not believed


def _open(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def read_idx(path: Path, dimensions: int) -> Tensor:
    """The array of bytes in an idx file, gzipped or not."""
    with reading(path), _open(path) as stream:
        return array_of(stream, dimensions, path)


def array_of(stream: BinaryIO, dimensions: int, path: Path) -> Tensor:
    """The array of bytes in an unpacked idx file; ``path`` is named where it is refused."""
    header = stream.read(4)
    if len(header) < 4 or header[:2] != b"\0\0" or header[2] != UNSIGNED_BYTE or header[3] != dimensions:
        raise refuse(path, f"begins with {header!r}", f"an idx file of bytes with {dimensions} dimension(s)")
    shape = struct.unpack(f">{dimensions}I", stream.read(4 * dimensions))
    size = int(np.prod(shape, dtype=object))
    if size > LIMIT:
        raise refuse(path, f"claims the shape {shape}", f"at most {LIMIT} bytes")
    data = stream.read(size + 1)
    if len(data) != size:
        relation = "more" if len(data) > size else f"{len(data)}, fewer"
        raise refuse(path, f"holds {relation} bytes than its header says", f"{size} for the shape {shape}")
    return torch.from_numpy(np.frombuffer(bytearray(data), np.uint8).reshape(shape))


def read_split(images: Path, labels: Path) -> Split:
    """One split from its two files."""
    pixels, classes = read_idx(images, 3), read_idx(labels, 1)  # (N, H, W), (N,)
    if len(pixels) != len(classes):
        raise refuse(labels, f"holds {len(classes)} labels", f"one for each of the {len(pixels)} images of {images}")
    return Split(pixels[:, None], classes.to(torch.int64))


def read(found: Found) -> tuple[Split, Split]:
    """Both splits from the four files, in the order train images, train labels, test images, test labels."""
    train_images, train_labels, test_images, test_labels = found.paths
    return read_split(train_images, train_labels), read_split(test_images, test_labels)

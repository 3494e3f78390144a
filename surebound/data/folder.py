"""A plain folder of images: train/CLASS/*.png and test/CLASS/*.png."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from surebound.data.checksum import combined, split_digest
from surebound.data.files import reading
from surebound.data.types import Dataset, Provenance, Split, Status
from surebound.errors import CorruptDataError, DataError, MissingDataError

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff"})
TEST_NAMES = ("test", "val", "valid", "validation")
GREY, COLOUR = ("1", "L"), ("RGB", "RGBA", "P", "PA", "LA", "CMYK", "YCbCr")


def load_folder(path: str | os.PathLike[str], size: tuple[int, int] | None = None) -> Dataset:
    """The images under `path`/train/CLASS/ and `path`/test/CLASS/ (or val/), classes in order of their names.

    All images must have one size; with `size` (H, W), each is scaled by area after cutting its longer side.
    Grey if every image is grey, otherwise RGB.
    """
    root = Path(path).expanduser()
    train_root = root / "train"
    test_root = next((root / name for name in TEST_NAMES if (root / name).is_dir()), root / "test")
    classes = _subfolders(train_root)
    if unknown := sorted(set(_subfolders(test_root)) - set(classes)):
        raise DataError(f"{test_root} has classes that {train_root} has not: {', '.join(unknown)}")
    files = [_list_images(folder, classes) for folder in (train_root, test_root)]
    grey = {_is_grey(file) for split in files for file, _ in split}
    decoded = {file: _decode(file, grey == {True}, size) for split in files for file, _ in split}
    _check_one_size(decoded)
    train, test = (_stack(split, decoded) for split in files)
    digest = combined(split_digest(train), split_digest(test))
    return Dataset(f"folder:{root}", train, test, classes, Provenance(Status.OWN, digest, (str(root),)))


def _subfolders(folder: Path) -> tuple[str, ...]:
    try:
        found = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and entry.name[0] != ".")
    except FileNotFoundError:
        found = []
    except OSError as error:
        raise DataError(f"{folder} cannot be listed: {error.strerror}") from error
    if not found:
        raise MissingDataError(
            f"{folder} has no class folders. An image folder looks like "
            "train/CLASS/*.png and test/CLASS/*.png (or val/ for test/)"
        )
    return tuple(found)


def _list_images(folder: Path, classes: tuple[str, ...]) -> list[tuple[Path, int]]:
    found = [
        (file, label)
        for label, name in enumerate(classes)
        for file in sorted((folder / name).glob("*"))
        if file.suffix.lower() in SUFFIXES and not file.name.startswith(".")
    ]
    if not found:
        raise MissingDataError(f"no images under {folder}: there must be files named {', '.join(sorted(SUFFIXES))}")
    return found


def _is_grey(file: Path) -> bool:
    from PIL import Image

    with reading(file), Image.open(file) as image:
        if image.mode not in GREY + COLOUR:
            raise CorruptDataError(f"{file} has the pixel type {image.mode}; save it with 8 bits for each channel")
        return image.mode in GREY


def _decode(file: Path, grey: bool, size: tuple[int, int] | None) -> NDArray[np.uint8]:
    """One image as (H, W) or (H, W, 3) bytes."""
    from PIL import Image, ImageOps

    with reading(file), Image.open(file) as image:
        pixels = image.convert("L" if grey else "RGB")
        if size is not None:
            pixels = ImageOps.fit(pixels, (size[1], size[0]), Image.Resampling.BOX)
        return np.asarray(pixels, np.uint8)


def _check_one_size(decoded: dict[Path, NDArray[np.uint8]]) -> None:
    first, pixels = next(iter(decoded.items()))
    height, width = pixels.shape[:2]
    for file, other in decoded.items():
        if other.shape != pixels.shape:
            raise DataError(
                f"{file} is {other.shape[1]}x{other.shape[0]} but {first} is {width}x{height}: a network "
                "takes images of one size. Scale them, or pass size=(height, width)"
            )


def _stack(files: list[tuple[Path, int]], decoded: dict[Path, NDArray[np.uint8]]) -> Split:
    images = np.stack([decoded.pop(file) for file, _ in files])  # (N, H, W) or (N, H, W, 3)
    images = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
    labels = torch.tensor([label for _, label in files], dtype=torch.int64)
    return Split(torch.from_numpy(np.ascontiguousarray(images)), labels)

"""Images and labels from a .npz or .safetensors file; nothing is ever unpickled."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from surebound.data.types import to_unit
from surebound.errors import InputError
from surebound.train.examples import Examples, TensorExamples

_NEEDED = "the arrays 'images' (N, C, H, W), numbers in [0, 1] or bytes, and 'labels' (N,)"
_UNREADABLE = (SafetensorError, OSError, EOFError, ValueError, TypeError, zipfile.BadZipFile)


def read_arrays(path: Path, clip: tuple[float, float] | None = (0.0, 1.0)) -> Examples:
    """The arrays `images` (N, ...) and `labels` (N,) of a file, the images as float32 inside `clip`.

    float64 images are rounded to the nearest float32, bytes are divided by 255.
    """
    try:
        arrays = load_file(path) if path.suffix == ".safetensors" else _read_npz(path)
    except FileNotFoundError:
        raise InputError(f"the data file {path} does not exist") from None
    except _UNREADABLE as error:
        raise InputError(
            f"the data file {path} cannot be read as arrays: it is damaged, of another format, or holds Python "
            f"objects, which are never unpickled; {_advice(path)}"
        ) from error
    if not {"images", "labels"} <= arrays.keys():
        raise InputError(f"the data file {path} holds {sorted(arrays) or 'nothing'}; it needs {_NEEDED}")
    return TensorExamples(_images(arrays["images"], clip, path), _labels(arrays["labels"], path))


def _advice(path: Path) -> str:
    if path.suffix == ".safetensors":
        return "write it with safetensors.torch.save_file({'images': images, 'labels': labels}, file)"
    return "write it with numpy.savez(file, images=images, labels=labels)"


def _read_npz(path: Path) -> dict[str, Tensor]:
    with np.load(path, allow_pickle=False) as archive:
        return {name: torch.from_numpy(archive[name]) for name in archive.files}


def _images(given: Tensor, clip: tuple[float, float] | None, path: Path) -> Tensor:
    if given.dtype not in (torch.float32, torch.float64, torch.uint8):
        raise InputError(
            f"the images of {path} are {_name(given)}; store them as float32 (float64 is rounded to it) in [0, 1], "
            "or as bytes (uint8)"
        )
    if not given.numel():
        raise InputError(f"the data file {path} holds no images: their shape is {tuple(given.shape)}")
    images = to_unit(given).to(torch.float32)
    low, high = (-math.inf, math.inf) if clip is None else clip
    if not bool(((images >= low) & (images <= high)).all()):  # NaN fails both
        raise InputError(
            f"the images of {path} have values in [{float(images.min()):.6g}, {float(images.max()):.6g}]; they must "
            f"be in [{low:g}, {high:g}]: divide bytes by 255, and let the network's first layer normalise"
        )
    return images


def _labels(given: Tensor, path: Path) -> Tensor:
    labels = given.long() if not given.is_complex() else None
    if labels is None or not torch.equal(labels.to(given.dtype), given):
        raise InputError(
            f"the labels of {path} are {_name(given)} and not all whole numbers; give each image's class, 0, 1, 2, ..."
        )
    return labels


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")

"""Images and labels from a .npz or .safetensors file; nothing is ever unpickled."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from surebound.errors import InputError
from surebound.train.examples import Examples, TensorExamples


def read_arrays(path: Path) -> Examples:
    """The arrays `images` (N, ...), float in [0, 1], and `labels` (N,) of a file."""
    try:
        arrays = load_file(path) if path.suffix == ".safetensors" else _read_npz(path)
    except FileNotFoundError:
        raise InputError(f"the data file {path} does not exist") from None
    except (SafetensorError, OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"the data file {path} cannot be read as arrays ({error})") from error
    if not {"images", "labels"} <= arrays.keys():
        raise InputError(
            f"the data file {path} holds {sorted(arrays) or 'nothing'}; "
            "it needs the arrays 'images' (N, C, H, W), float in [0, 1], and 'labels' (N,)"
        )
    if arrays["images"].dtype == torch.uint8:
        raise InputError(f"the data file {path} holds byte images; store them as float32 in [0, 1]")
    return TensorExamples(arrays["images"], arrays["labels"].long())


def _read_npz(path: Path) -> dict[str, Tensor]:
    with np.load(path, allow_pickle=False) as archive:
        return {name: torch.from_numpy(archive[name]) for name in archive.files}

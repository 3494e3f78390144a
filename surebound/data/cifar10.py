"""CIFAR-10 in its two published versions, binary and Python, unpacked or as the archive.

An archive is read in place: nothing is extracted to disk.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from surebound.data.files import Found, Layout, reading, refuse
from surebound.data.types import Split
from surebound.data.unpickle import load_arrays

STEMS = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
BINARY, PYTHON = "cifar-10-batches-bin", "cifar-10-batches-py"
ROW = 3 * 32 * 32

LAYOUTS = (
    Layout("binary version", tuple((f"{BINARY}/{stem}.bin", f"{stem}.bin") for stem in STEMS)),
    Layout("Python version", tuple((f"{PYTHON}/{stem}", stem) for stem in STEMS)),
    Layout("binary archive", (("cifar-10-binary.tar.gz",),)),
    Layout("Python archive", (("cifar-10-python.tar.gz",),)),
)
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

Batch = tuple[NDArray[np.uint8], NDArray[np.int64]]  # (N, 3, 32, 32), (N,)


def decode_binary(path: Path, data: bytes) -> Batch:
    """Records of a label byte and 3072 pixels: the red plane, the green, the blue, each row by row."""
    if not data or len(data) % (ROW + 1):
        raise refuse(path, f"holds {len(data)} bytes", f"a multiple of {ROW + 1}: a label and {ROW} pixels each")
    records = np.frombuffer(data, np.uint8).reshape(-1, ROW + 1)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64)


def decode_python(path: Path, data: bytes) -> Batch:
    """A pickled dictionary with `data` (N, 3072) and a list of `labels`."""
    content = load_arrays(io.BytesIO(data))
    pixels: Any = content.get("data")
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (ROW,):
        raise refuse(path, "has no array `data` of bytes", f"one of shape (N, {ROW})")
    labels = np.asarray(content.get("labels", ()))
    if labels.shape != (len(pixels),) or labels.dtype.kind not in "iu":
        raise refuse(path, f"has `labels` of shape {labels.shape}", f"{len(pixels)} whole numbers")
    return pixels.reshape(-1, 3, 32, 32), labels.astype(np.int64)


def _from_files(found: Found) -> Iterator[tuple[Path, bytes]]:
    for path in found.paths:
        with reading(path):
            yield path, path.read_bytes()


def _from_archive(found: Found) -> Iterator[tuple[Path, bytes]]:
    """The six batches of an archive in our order; only regular members with published names are read."""
    (path,) = found.paths
    contents: dict[str, bytes] = {}
    with reading(path), tarfile.open(path, "r:gz") as archive:
        for member in archive:
            stem = Path(member.name).name.removesuffix(".bin")
            if stem in STEMS and member.isfile():
                stream = archive.extractfile(member)
                contents[stem] = stream.read() if stream is not None else b""
    for stem in STEMS:
        if stem not in contents:
            raise refuse(path, f"has no member {stem}", "the five training batches and the test batch")
        yield path / stem, contents.pop(stem)


def read(found: Found) -> tuple[Split, Split]:
    """Both splits, from whichever layout was found."""
    decode: Callable[[Path, bytes], Batch] = decode_binary if "binary" in found.layout else decode_python
    contents = _from_archive(found) if "archive" in found.layout else _from_files(found)
    batches = []
    for path, data in contents:
        with reading(path):
            batches.append(decode(path, data))
    train, test = batches[:-1], batches[-1:]
    return _join(train), _join(test)


def _join(batches: list[Batch]) -> Split:
    images = np.concatenate([pixels for pixels, _ in batches])
    labels = np.concatenate([classes for _, classes in batches])
    return Split(torch.from_numpy(images), torch.from_numpy(labels))

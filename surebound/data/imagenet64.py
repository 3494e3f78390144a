"""Downsampled ImageNet, 64x64 (Chrabaszcz et al. 2017): ten training batches and a validation file.

The 15.7 GB of training images are never held in memory. A batch stored plainly inside its .npz is mapped
where it lies; a compressed or pickled one is unpacked once, beside it, one batch at a time, and mapped there.
"""

from __future__ import annotations

import os
import struct
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray

from surebound.data.files import Found, Layout, reading, refuse
from surebound.data.mapped import MappedImages
from surebound.data.types import Split
from surebound.data.unpickle import load_arrays
from surebound.errors import DataError

SHAPE = (3, 64, 64)
ROW = 3 * 64 * 64
CROP = 56
CLASSES = 1000
UNPACKED = "surebound-unpacked"
CHUNK = 1 << 24


def _layout(name: str, archive_suffix: str, suffix: str) -> Layout:
    """The published archives put batches 1-5, 6-10 and the validation file into three folders."""
    files = []
    for i in range(1, 11):
        file = f"train_data_batch_{i}{suffix}"
        files.append((file, f"Imagenet64_train_part{1 if i <= 5 else 2}{archive_suffix}/{file}"))
    files.append((f"val_data{suffix}", f"Imagenet64_val{archive_suffix}/val_data{suffix}"))
    return Layout(name, tuple(files))


LAYOUTS = (
    _layout("npz batches, together or in the folders of the archives", "_npz", ".npz"),
    _layout("pickled batches, together or in the folders of the archives", "", ""),
)


def read(found: Found) -> tuple[Split, Split]:
    """Both splits: training images of 64x64, validation images already cropped to the central 56x56."""
    batches = [_map_batch(path, found.folder / UNPACKED) for path in found.paths]
    return _join(batches[:-1], None), _join(batches[-1:], CROP)


Batch = tuple[NDArray[np.uint8], NDArray[np.int64]]  # (N, 12288) mapped, (N,)


def _join(batches: list[Batch], crop: int | None) -> Split:
    labels = np.concatenate([labels for _, labels in batches])
    return Split(MappedImages([images for images, _ in batches], SHAPE, crop), torch.from_numpy(labels))


def _map_batch(path: Path, unpacked: Path) -> Batch:
    with reading(path):
        images, labels = _map_npz(path, unpacked) if path.suffix == ".npz" else _map_pickle(path, unpacked)
    if images.ndim != 2 or images.shape[1] != ROW or images.dtype != np.uint8:
        raise refuse(path, f"has `data` of {images.dtype} and shape {images.shape}", f"bytes of shape (N, {ROW})")
    if labels.shape != (len(images),) or labels.dtype.kind not in "iu":
        raise refuse(path, f"has `labels` of shape {labels.shape}", f"{len(images)} whole numbers")
    if len(labels) and (labels.min() < 1 or labels.max() > CLASSES):
        raise refuse(path, f"has labels from {labels.min()} to {labels.max()}", f"1 to {CLASSES}")
    return images, labels.astype(np.int64) - 1


def _map_npz(path: Path, unpacked: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: info for info in archive.infolist()}
        for member in ("data.npy", "labels.npy"):
            if member not in members:
                raise refuse(path, f"has no array {member.removesuffix('.npy')!r}", "the arrays data and labels")
        with archive.open("labels.npy") as stream:
            labels = np.lib.format.read_array(stream, allow_pickle=False)
        info = members["data.npy"]
        if info.compress_type == zipfile.ZIP_STORED:
            return _map_npy(path, _member_offset(path, info)), labels
        target = _target(path, unpacked, "data")
        if not target.exists():
            with _replacing(target) as out, archive.open(info) as stream:
                while chunk := stream.read(CHUNK):
                    out.write(chunk)
    return _map_npy(target, 0), labels


def _member_offset(path: Path, info: zipfile.ZipInfo) -> int:
    """Where a stored member's own bytes begin: after its local header, a name and an extra field."""
    with path.open("rb") as stream:
        stream.seek(info.header_offset)
        header = stream.read(30)
    if len(header) < 30 or header[:4] != b"PK\x03\x04":
        raise refuse(path, f"has no local header for {info.filename}", "an intact .npz file")
    name, extra = struct.unpack("<HH", header[26:30])
    return info.header_offset + 30 + int(name) + int(extra)


def _map_npy(path: Path, offset: int) -> NDArray[Any]:
    """The .npy array that begins at `offset` of a file, mapped copy-on-write: the file is never changed."""
    with path.open("rb") as stream:
        stream.seek(offset)
        version = np.lib.format.read_magic(stream)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in readers:
            raise refuse(path, f"uses version {version} of the npy format", "version 1.0 or 2.0")
        shape, fortran, dtype = readers[version](stream)
        start = stream.tell()
    if dtype.hasobject or fortran:
        raise refuse(path, f"holds {dtype} in column order" if fortran else "holds objects", "rows of bytes")
    return np.memmap(path, dtype, "c", start, shape)


def _map_pickle(path: Path, unpacked: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    images, labels = _target(path, unpacked, "data"), _target(path, unpacked, "labels")
    if not (images.exists() and labels.exists()):
        with path.open("rb") as stream:
            content = load_arrays(stream)
        for key, target in (("data", images), ("labels", labels)):
            array = np.asarray(content.pop(key, ()))
            if array.dtype.hasobject:
                raise refuse(path, f"has `{key}` of {array.dtype}", "numbers")
            with _replacing(target) as out:
                np.lib.format.write_array(out, np.ascontiguousarray(array), allow_pickle=False)
    return _map_npy(images, 0), np.load(labels, allow_pickle=False)


def _target(path: Path, unpacked: Path, what: str) -> Path:
    """Where a batch is unpacked to; the name has size and time of the original, so a new one is noticed."""
    state = path.stat()
    return unpacked / f"{path.name}-{state.st_size}-{state.st_mtime_ns}.{what}.npy"


@contextmanager
def _replacing(target: Path) -> Iterator[IO[bytes]]:
    """Write `target` completely or not at all."""
    part = None
    try:
        target.parent.mkdir(exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".", suffix=".part", delete=False) as out:
            part = Path(out.name)
            yield out
        part.chmod(0o644)  # temporary files are their owner's only; a data directory is often shared
        os.replace(part, target)
    except OSError as error:
        raise DataError(
            f"{target} cannot be written: {error.strerror or error}. Compressed and pickled batches are "
            f"unpacked there once, {ROW} bytes for each image; make room, and make "
            f"{target.parent.parent} writable"
        ) from error
    finally:
        if part is not None:
            part.unlink(missing_ok=True)

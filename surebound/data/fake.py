"""Generated data in the published file formats, for tests: small, learnable, and marked as what they are.

Each class is a random pattern under noise, so that training on it goes somewhere. Every writer puts its files
into the dataset's own folder under `data_dir`, with the marker without which their counts would be refused.
"""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from surebound.data import cifar10, idx
from surebound.data.marker import mark_generated

Directory = str | os.PathLike[str]
Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


def make_images(
    count: int, shape: tuple[int, int, int], classes: int, seed: int, split: int = 0
) -> tuple[Images, Labels]:
    """`count` images (N, C, H, W) and labels (N,); patterns depend on the seed, noise on the split."""
    patterns = np.random.default_rng([seed, classes]).integers(0, 256, (min(classes, 64), *shape))
    random = np.random.default_rng([seed, classes, split, count])
    labels = random.permutation(np.arange(count) % classes)
    noise = random.integers(0, 256, (count, *shape))
    return ((3 * patterns[labels % len(patterns)] + noise) // 4).astype(np.uint8), labels


def _folder(data_dir: Directory, name: str, train: int, test: int) -> Path:
    folder = Path(data_dir) / name
    folder.mkdir(parents=True, exist_ok=True)
    mark_generated(folder, train, test)
    return folder


def write_mnist(
    data_dir: Directory,
    train: int = 100,
    test: int = 20,
    *,
    seed: int = 0,
    gz: bool = True,
    name: str = "mnist",
) -> Path:
    """The four idx files of MNIST (or, by `name`, of Fashion-MNIST), gzipped or not."""
    folder = _folder(data_dir, name, train, test)
    arrays = []
    for split, count in enumerate((train, test)):
        images, labels = make_images(count, (1, 28, 28), 10, seed, split)
        arrays += [images[:, 0], labels.astype(np.uint8)]
    for stem, array in zip(idx.STEMS, arrays, strict=True):
        header = bytes((0, 0, idx.UNSIGNED_BYTE, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
        data = header + array.tobytes()
        if gz:
            folder.joinpath(f"{stem}.gz").write_bytes(gzip.compress(data, mtime=0))
        else:
            folder.joinpath(stem).write_bytes(data)
    return folder


def write_fashion_mnist(
    data_dir: Directory, train: int = 100, test: int = 20, *, seed: int = 0, gz: bool = True
) -> Path:
    """The four idx files of Fashion-MNIST."""
    return write_mnist(data_dir, train, test, seed=seed, gz=gz, name="fashion_mnist")


def write_cifar10(
    data_dir: Directory,
    train: int = 100,
    test: int = 20,
    *,
    seed: int = 0,
    version: Literal["binary", "python"] = "binary",
    archive: bool = False,
) -> Path:
    """CIFAR-10's five training batches and test batch, in either version, as files or as the archive."""
    folder = _folder(data_dir, "cifar10", train, test)
    images, labels = make_images(train, (3, 32, 32), 10, seed, 0)
    parts = [*zip(np.array_split(images, 5), np.array_split(labels, 5), strict=True)]
    parts.append(make_images(test, (3, 32, 32), 10, seed, 1))
    encode, inner, suffix = (
        (_cifar10_binary, cifar10.BINARY, ".bin") if version == "binary" else (_cifar10_python, cifar10.PYTHON, "")
    )
    files = {f"{stem}{suffix}": encode(*part) for stem, part in zip(cifar10.STEMS, parts, strict=True)}
    if archive:
        _write_archive(folder / f"cifar-10-{version}.tar.gz", inner, files)
    else:
        folder.joinpath(inner).mkdir(exist_ok=True)
        for file, data in files.items():
            folder.joinpath(inner, file).write_bytes(data)
    return folder


def _cifar10_binary(images: Images, labels: Labels) -> bytes:
    return np.concatenate([labels.astype(np.uint8)[:, None], images.reshape(len(images), -1)], 1).tobytes()


def _cifar10_python(images: Images, labels: Labels) -> bytes:
    content = {
        b"data": images.reshape(len(images), -1),
        b"labels": labels.tolist(),
        b"batch_label": b"generated",
    }
    return pickle.dumps(content, protocol=2)


def _write_archive(path: Path, inner: str, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for file, data in files.items():
            member = tarfile.TarInfo(f"{inner}/{file}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def write_svhn(data_dir: Directory, train: int = 100, test: int = 20, *, seed: int = 0) -> Path:
    """The two MATLAB files of SVHN's cropped digits, where the digit 0 is labelled 10."""
    from scipy.io import savemat

    folder = _folder(data_dir, "svhn", train, test)
    for split, (file, count) in enumerate((("train_32x32.mat", train), ("test_32x32.mat", test))):
        images, labels = make_images(count, (3, 32, 32), 10, seed, split)
        y = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
        savemat(folder / file, {"X": images.transpose(2, 3, 1, 0), "y": y}, do_compression=True)
    return folder


def write_imagenet64(
    data_dir: Directory,
    train: int = 100,
    test: int = 20,
    *,
    seed: int = 0,
    form: Literal["npz", "compressed", "pickle"] = "npz",
) -> Path:
    """Downsampled ImageNet's ten training batches and validation file, labels from 1 to 1000."""
    folder = _folder(data_dir, "imagenet64", train, test)
    images, labels = make_images(train, (3, 64, 64), 1000, seed, 0)
    parts = dict(
        zip(
            (f"train_data_batch_{i}" for i in range(1, 11)),
            zip(np.array_split(images, 10), np.array_split(labels, 10), strict=True),
            strict=True,
        )
    )
    parts["val_data"] = make_images(test, (3, 64, 64), 1000, seed, 1)
    for stem, (pixels, classes) in parts.items():
        rows = pixels.reshape(len(pixels), -1)
        if form == "pickle":
            content = {"data": rows, "labels": (classes + 1).tolist(), "mean": rows.mean(0)}
            folder.joinpath(stem).write_bytes(pickle.dumps(content, protocol=4))
        else:
            save = np.savez if form == "npz" else np.savez_compressed
            save(folder / f"{stem}.npz", data=rows, labels=classes + 1, mean=rows.mean(0))
    return folder


def write_folder(path: Directory, train: int = 20, test: int = 10, *, seed: int = 0, classes: int = 2) -> Path:
    """An image folder of 8x8 colour images: train/CLASS/*.png and test/CLASS/*.png."""
    from PIL import Image

    root = Path(path)
    for split, (where, count) in enumerate((("train", train), ("test", test))):
        images, labels = make_images(count, (3, 8, 8), classes, seed, split)
        for i, (image, label) in enumerate(zip(images, labels, strict=True)):
            folder = root / where / f"class{label}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.transpose(1, 2, 0)).save(folder / f"{i:05}.png")
    return root


WRITERS: dict[str, Callable[..., Path]] = {
    "mnist": write_mnist,
    "fashion_mnist": write_fashion_mnist,
    "cifar10": write_cifar10,
    "svhn": write_svhn,
    "imagenet64": write_imagenet64,
}
"""By dataset: write(data_dir, train, test, seed=...)."""

"""The published file formats, built by hand from their definitions, and what can be wrong with them."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import savemat

from surebound.data import fake, load
from surebound.data.cifar10 import decode_binary
from surebound.data.idx import read_idx
from surebound.data.svhn import read_split
from surebound.errors import CorruptDataError, DataError


def idx_bytes(array: np.ndarray, kind: int = 8) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, kind, array.ndim, *array.shape) + array.tobytes()


@pytest.mark.parametrize("name", ["x-idx3-ubyte", "x-idx3-ubyte.gz"])
def test_idx_by_hand(tmp_path: Path, name: str) -> None:
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    data = idx_bytes(array)
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    assert np.array_equal(read_idx(path, 3).numpy(), array)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "expected an idx file of bytes with 3 dimension"),
        (b"<html>not found</html>", "begins with b'<htm'"),
        (idx_bytes(np.zeros(3, np.uint8)), "with 3 dimension"),
        (idx_bytes(np.zeros((1, 2, 2), np.uint8), kind=9), "an idx file of bytes"),
        (idx_bytes(np.zeros((2, 2, 2), np.uint8))[:-1], r"holds 7, fewer bytes .* expected 8"),
        (idx_bytes(np.zeros((2, 2, 2), np.uint8)) + b"!", r"holds more bytes .* expected 8"),
        (struct.pack(">BBBBIII", 0, 0, 8, 3, 2**31, 2**31, 2**31), "claims the shape"),
        (b"\0\0\x08\x03\0\0", "damaged or truncated"),
    ],
)
def test_idx_that_is_not(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(CorruptDataError, match=message):
        read_idx(path, 3)


@pytest.mark.parametrize("spoil", [lambda d: d[:-9], lambda d: d[: len(d) // 2], lambda d: b"junk" + d])
def test_a_damaged_gzip_is_refused(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "x.gz"
    random = np.random.default_rng(0).integers(0, 256, (9, 9, 9), np.uint8)
    path.write_bytes(spoil(gzip.compress(idx_bytes(random))))
    with pytest.raises(CorruptDataError, match=r"x\.gz is damaged or truncated .*delete it and fetch it again"):
        read_idx(path, 3)


def test_labels_that_do_not_match_the_images_are_refused(tmp_path: Path) -> None:
    folder = fake.write_mnist(tmp_path, gz=False)
    (folder / "t10k-labels-idx1-ubyte").write_bytes(idx_bytes(np.zeros(19, np.uint8)))
    with pytest.raises(CorruptDataError, match="holds 19 labels; expected one for each of the 20 images"):
        load("mnist", tmp_path)


def test_cifar10_binary_by_hand() -> None:
    red, green, blue = (np.arange(1024, dtype=np.uint8) + shift for shift in (0, 1, 2))
    record = bytes([7]) + red.tobytes() + green.tobytes() + blue.tobytes()
    images, labels = decode_binary(Path("x"), record * 2)
    assert labels.tolist() == [7, 7]
    assert images.shape == (2, 3, 32, 32)
    assert np.array_equal(images[1, 1], green.reshape(32, 32))
    assert images[0, 2, 1, 0] == blue[32]  # the second row begins after 32 pixels


def test_cifar10_is_the_same_in_all_its_packages(tmp_path: Path) -> None:
    given = []
    for version in ("binary", "python"):
        for archive in (False, True):
            root = tmp_path / f"{version}{archive}"
            fake.write_cifar10(root, version=version, archive=archive)  # type: ignore[arg-type]
            given.append(load("cifar10", root))
    assert len({data.provenance.digest for data in given}) == 1
    assert all(torch.equal(data.train.labels, given[0].train.labels) for data in given)
    images, labels = fake.make_images(100, (3, 32, 32), 10, 0)
    assert np.array_equal(given[0].train.images[:].numpy(), images)
    assert np.array_equal(given[0].train.labels.numpy(), labels)


@pytest.mark.parametrize("size", [0, 1, 3072, 3074])
def test_cifar10_binary_of_the_wrong_length_is_refused(tmp_path: Path, size: int) -> None:
    folder = fake.write_cifar10(tmp_path)
    (folder / "cifar-10-batches-bin" / "data_batch_3.bin").write_bytes(bytes(size))
    with pytest.raises(CorruptDataError, match=rf"data_batch_3\.bin holds {size} bytes; expected a multiple of 3073"):
        load("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({b"labels": [1]}, "no array `data` of bytes"),
        ({b"data": np.zeros((1, 3072)), b"labels": [1]}, "no array `data` of bytes"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]}, r"`labels` of shape \(1,\); expected 2"),
        ({b"data": np.zeros((1, 3072), np.uint8)}, r"`labels` of shape \(0,\)"),
    ],
)
def test_cifar10_pickles_of_something_else_are_refused(
    tmp_path: Path, content: dict[bytes, object], message: str
) -> None:
    import pickle

    folder = fake.write_cifar10(tmp_path, version="python")
    (folder / "cifar-10-batches-py" / "test_batch").write_bytes(pickle.dumps(content))
    with pytest.raises(CorruptDataError, match=message):
        load("cifar10", tmp_path)


def test_a_truncated_pickle_is_refused(tmp_path: Path) -> None:
    path = fake.write_cifar10(tmp_path, version="python") / "cifar-10-batches-py" / "data_batch_1"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(CorruptDataError, match="data_batch_1 is damaged or truncated"):
        load("cifar10", tmp_path)


def test_a_truncated_archive_is_refused(tmp_path: Path) -> None:
    path = fake.write_cifar10(tmp_path, archive=True) / "cifar-10-binary.tar.gz"
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(CorruptDataError, match=r"cifar-10-binary\.tar\.gz is damaged or truncated"):
        load("cifar10", tmp_path)


def test_an_archive_without_a_batch_is_refused_and_nothing_is_unpacked(tmp_path: Path) -> None:
    folder = fake.write_cifar10(tmp_path, archive=True)
    path = folder / "cifar-10-binary.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name in ("../../escaped/data_batch_1.bin", "test_batch.bin"):
            member = tarfile.TarInfo(name)
            member.size = 3073
            archive.addfile(member, io.BytesIO(bytes(3073)))
        link = tarfile.TarInfo("data_batch_2.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(CorruptDataError, match="has no member data_batch_2"):
        load("cifar10", tmp_path)
    assert not (tmp_path.parent / "escaped").exists()
    assert {entry.name for entry in folder.iterdir()} == {path.name, "surebound-generated.json"}


def test_svhn_by_hand(tmp_path: Path) -> None:
    x = np.zeros((32, 32, 3, 2), np.uint8)
    x[3, 5, 1, 1] = 200  # row 3, column 5, green, second image
    savemat(tmp_path / "x.mat", {"X": x, "y": np.array([[10], [9]], np.uint8)})
    split = read_split(tmp_path / "x.mat")
    assert split.labels.tolist() == [0, 9]
    assert split.images[:].nonzero().tolist() == [[1, 1, 3, 5]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"X": np.zeros((32, 32, 3, 2), np.uint8)}, "lacks the variable y"),
        ({"y": np.ones((2, 1))}, "lacks the variable X"),
        (
            {"X": np.zeros((2, 32, 32, 3), np.uint8), "y": np.ones(2)},
            r"expected bytes of shape \(32, 32, 3, N\)",
        ),
        ({"X": np.zeros((32, 32, 3, 2)), "y": np.ones(2)}, "has X of float64"),
        ({"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.ones(3)}, "has 3 labels of float64; expected 2"),
        (
            {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([0, 1])},
            "labels from 0 to 1; expected 1 to 10",
        ),
        ({"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([1, 11])}, "labels from 1 to 11"),
    ],
)
def test_svhn_files_of_something_else_are_refused(tmp_path: Path, content: dict[str, np.ndarray], message: str) -> None:
    savemat(tmp_path / "x.mat", content)
    with pytest.raises(CorruptDataError, match=message):
        read_split(tmp_path / "x.mat")


@pytest.mark.parametrize("keep", [0, 50, 200, -100])
def test_a_truncated_matlab_file_is_refused(tmp_path: Path, keep: int) -> None:
    path = fake.write_svhn(tmp_path) / "train_32x32.mat"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CorruptDataError, match=r"train_32x32\.mat"):
        load("svhn", tmp_path)


def test_an_unreadable_file_is_no_missing_file(
    open_path: Path, ordinary_rights: Callable[[], AbstractContextManager[None]]
) -> None:
    (fake.write_mnist(open_path) / "train-images-idx3-ubyte.gz").chmod(0)
    with ordinary_rights(), pytest.raises(DataError, match="cannot be read: permission denied"):
        load("mnist", open_path)

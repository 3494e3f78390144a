"""ImageNet 64x64 from its files: mapped, not read; unpacked once, whole or not at all."""

from __future__ import annotations

import errno
import os
import pickle
import resource
import zipfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from surebound.data import Status, fake, imagenet64, load, stream
from surebound.data.mapped import MappedImages
from surebound.data.marker import mark_generated
from surebound.errors import CorruptDataError, DataError, InputError

Form = Literal["npz", "compressed", "pickle"]
FORMS: list[Form] = ["npz", "compressed", "pickle"]


@pytest.mark.parametrize("form", FORMS)
def test_every_image_comes_out_as_it_went_in(tmp_path: Path, form: Form) -> None:
    fake.write_imagenet64(tmp_path, 53, 12, form=form)
    for _ in range(2):  # the second time from what was unpacked
        data = load("imagenet64", tmp_path)
        images, labels = fake.make_images(53, (3, 64, 64), 1000, 0)
        order = torch.randperm(53, generator=stream(0))
        assert np.array_equal(data.train.pixels(order).numpy(), images[order.numpy()])
        assert np.array_equal(data.train.labels.numpy(), labels)
        images, labels = fake.make_images(12, (3, 64, 64), 1000, 0, 1)
        assert np.array_equal(data.test.pixels(torch.arange(12)).numpy(), images[:, :, 4:60, 4:60])
        assert np.array_equal(data.test.labels.numpy(), labels)
    assert data.provenance.status is Status.GENERATED
    assert data.input_shape == (3, 56, 56)
    assert data.train.shape == (3, 64, 64)


def test_training_crops_and_test_images_have_one_shape(tmp_path: Path) -> None:
    fake.write_imagenet64(tmp_path, 30, 5)
    data = load("imagenet64", tmp_path)
    x, _ = data.train.batch(torch.tensor([29, 3]), data.augment, stream(0))
    assert x.shape == (2, 3, 56, 56)
    assert [tuple(x.shape) for x, _ in data.test.batches(4)] == [(4, 3, 56, 56), (1, 3, 56, 56)]
    taken = data.train.take(3)
    assert isinstance(taken.images, torch.Tensor)
    assert len(data.train.to("cpu")) == 30


def test_a_plain_npz_is_mapped_where_it_lies(tmp_path: Path) -> None:
    folder = fake.write_imagenet64(tmp_path, 50, 5)
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    data = load("imagenet64", tmp_path)
    assert isinstance(data.train.images, MappedImages)
    pixels = data.train.pixels(torch.arange(50))
    pixels.fill_(0)  # a batch is one's own
    assert data.train.pixels(torch.arange(50)).any()
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_the_images_are_never_all_in_memory(tmp_path: Path) -> None:
    """10 batches of 6 MB are opened and sampled in far less memory than they have."""
    rows = 500
    folder = tmp_path / "imagenet64"
    folder.mkdir()
    mark_generated(folder, 10 * rows, rows)
    data = np.zeros((rows, 12288), np.uint8)
    for stem in (*(f"train_data_batch_{i}" for i in range(1, 11)), "val_data"):
        np.savez(folder / f"{stem}.npz", data=data, labels=np.ones(rows, np.int64))
    del data
    before = own_bytes()
    split = load("imagenet64", tmp_path).train
    for step in range(5):
        split.batch(torch.arange(step, len(split), 300))
    assert own_bytes() - before < 20e6  # of 68 MB


def own_bytes() -> int:
    """Memory that is the process's own (mapped pages belong to the file cache)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_the_folders_of_the_published_archives_are_found(tmp_path: Path) -> None:
    folder = fake.write_imagenet64(tmp_path)
    for i in range(1, 11):
        part = folder / f"Imagenet64_train_part{1 if i < 6 else 2}_npz"
        part.mkdir(exist_ok=True)
        (folder / f"train_data_batch_{i}.npz").rename(part / f"train_data_batch_{i}.npz")
    (folder / "Imagenet64_val_npz").mkdir()
    (folder / "val_data.npz").rename(folder / "Imagenet64_val_npz" / "val_data.npz")
    assert len(load("imagenet64", tmp_path).train) == 100


def test_a_new_file_is_unpacked_anew(tmp_path: Path) -> None:
    fake.write_imagenet64(tmp_path, seed=0, form="pickle")
    first = load("imagenet64", tmp_path)
    fake.write_imagenet64(tmp_path, seed=1, form="pickle")
    for path in (tmp_path / "imagenet64").glob("*_*"):
        os.utime(path, ns=(1, 1))  # even if it is older
    second = load("imagenet64", tmp_path)
    assert first.provenance.digest != second.provenance.digest


@pytest.mark.parametrize("form", ["compressed", "pickle"])
def test_a_full_disk_while_unpacking_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: Form
) -> None:
    fake.write_imagenet64(tmp_path, form=form)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(imagenet64.os, "replace", full)
        with pytest.raises(DataError, match=r"No space left on device.*make room") as caught:
            load("imagenet64", tmp_path)
    assert not isinstance(caught.value, CorruptDataError)
    assert list((tmp_path / "imagenet64" / imagenet64.UNPACKED).iterdir()) == []
    assert len(load("imagenet64", tmp_path).train) == 100


def test_a_directory_that_cannot_be_unpacked_into(
    open_path: Path, ordinary_rights: Callable[[], AbstractContextManager[None]]
) -> None:
    folder = fake.write_imagenet64(open_path, form="pickle")
    folder.chmod(0o555)
    with ordinary_rights(), pytest.raises(DataError, match=r"cannot be written: Permission denied.*writable"):
        load("imagenet64", open_path)


def replace_batch(folder: Path, **arrays: Any) -> None:
    np.savez(folder / "train_data_batch_4.npz", **arrays)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"labels": np.ones(3, int)}, "has no array 'data'"),
        ({"data": np.zeros((3, 12288), np.uint8)}, "has no array 'labels'"),
        (
            {"data": np.zeros((3, 3072), np.uint8), "labels": np.ones(3, int)},
            r"expected bytes of shape \(N, 12288\)",
        ),
        ({"data": np.zeros((3, 12288)), "labels": np.ones(3, int)}, "has `data` of float64"),
        (
            {"data": np.zeros((3, 12288), np.uint8), "labels": np.ones(2, int)},
            r"`labels` of shape \(2,\); expected 3",
        ),
        (
            {"data": np.zeros((3, 12288), np.uint8), "labels": np.zeros(3, int)},
            "labels from 0 to 0; expected 1 to 1000",
        ),
        (
            {"data": np.asfortranarray(np.zeros((3, 12288), np.uint8)), "labels": np.ones(3, int)},
            "column order",
        ),
        ({"data": np.array([None, {}]), "labels": np.ones(3, int)}, "holds objects"),
    ],
)
def test_batches_of_something_else_are_refused(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    folder = fake.write_imagenet64(tmp_path)
    replace_batch(folder, **arrays)
    with pytest.raises(CorruptDataError, match=message):
        load("imagenet64", tmp_path)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("keep", [0, 100, -200])
def test_truncated_batches_are_refused(tmp_path: Path, form: Form, keep: int) -> None:
    folder = fake.write_imagenet64(tmp_path, form=form)
    path = folder / ("train_data_batch_7" + ("" if form == "pickle" else ".npz"))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CorruptDataError, match="train_data_batch_7"):
        load("imagenet64", tmp_path)


def test_a_damaged_compressed_batch_leaves_nothing(tmp_path: Path) -> None:
    folder = fake.write_imagenet64(tmp_path, form="compressed")
    path = folder / "train_data_batch_1.npz"
    with zipfile.ZipFile(path) as archive:
        start = archive.getinfo("data.npy").header_offset
    data = bytearray(path.read_bytes())
    data[start + 2000 : start + 3000] = bytes(1000)
    path.write_bytes(data)
    with pytest.raises(CorruptDataError, match="damaged or truncated"):
        load("imagenet64", tmp_path)
    assert list((folder / imagenet64.UNPACKED).iterdir()) == []


def test_objects_in_a_pickle_are_refused(tmp_path: Path) -> None:
    folder = fake.write_imagenet64(tmp_path, form="pickle")
    (folder / "val_data").write_bytes(pickle.dumps({"data": [None], "labels": [1]}))
    with pytest.raises(CorruptDataError, match="has `data` of object; expected numbers"):
        load("imagenet64", tmp_path)


def test_indices_beyond_the_end_are_refused() -> None:
    images = MappedImages([np.zeros((3, 12), np.uint8), np.ones((2, 12), np.uint8)], (3, 2, 2))
    assert images.shape == (5, 3, 2, 2)
    assert images[torch.tensor([4, 2, 3])].flatten(1).float().mean(1).tolist() == [1, 0, 1]
    assert images[torch.tensor([], dtype=torch.int64)].shape == (0, 3, 2, 2)
    for wrong in (5, -1):
        with pytest.raises(InputError, match="indices must be from 0 to 4"):
            images[torch.tensor([wrong])]

"""Folders of images."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from surebound.data import Status, fake, load, load_folder
from surebound.errors import CorruptDataError, DataError, MissingDataError


def save(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def test_images_labels_and_classes(tmp_path: Path) -> None:
    fake.write_folder(tmp_path, 20, 10, classes=3)
    data = load(f"folder:{tmp_path}")
    assert data.classes == ("class0", "class1", "class2")
    assert (len(data.train), len(data.test)) == (20, 10)
    assert data.provenance.status is Status.OWN
    images, labels = fake.make_images(20, (3, 8, 8), 3, 0)
    order = np.argsort(labels, kind="stable")  # by class, then by name
    assert np.array_equal(data.train.images[:].numpy(), images[order])
    assert np.array_equal(data.train.labels.numpy(), labels[order])
    assert load_folder(tmp_path).provenance.digest == data.provenance.digest


def test_grey_images_have_one_channel_unless_one_is_coloured(tmp_path: Path) -> None:
    grey = np.arange(16, dtype=np.uint8).reshape(4, 4)
    for where in ("train", "val"):
        for name in ("a", "b"):
            save(tmp_path / where / name / "1.png", grey)
    data = load_folder(tmp_path)
    assert data.input_shape == (1, 4, 4)
    assert np.array_equal(data.test.images[:][0, 0].numpy(), grey)
    save(tmp_path / "val" / "b" / "2.png", np.zeros((4, 4, 3), np.uint8))
    coloured = load_folder(tmp_path)
    assert coloured.input_shape == (3, 4, 4)
    assert torch.equal(coloured.train.images[:][:, 1], data.train.images[:][:, 0])


def test_sizes_must_agree_or_be_given(tmp_path: Path) -> None:
    fake.write_folder(tmp_path)
    big = np.zeros((32, 16, 3), np.uint8)
    big[8:16] = 200  # the upper half of the central square
    save(tmp_path / "test" / "class1" / "big.png", big)
    with pytest.raises(DataError, match=r"big\.png is 16x32 but .* is 8x8: a network takes images of one size"):
        load_folder(tmp_path)
    data = load_folder(tmp_path, size=(4, 4))
    assert data.input_shape == (3, 4, 4)
    assert data.test.images[:][-1, 0].tolist() == [[200] * 4] * 2 + [[0] * 4] * 2


def test_hidden_and_other_files_are_left_alone(tmp_path: Path) -> None:
    fake.write_folder(tmp_path)
    (tmp_path / "train" / "class0" / "notes.txt").write_text("hello")
    (tmp_path / "train" / "class0" / ".hidden.png").write_text("hello")
    (tmp_path / "train" / ".cache").mkdir()
    assert len(load_folder(tmp_path).train) == 20


def test_a_damaged_image_is_named(tmp_path: Path) -> None:
    fake.write_folder(tmp_path)
    path = next((tmp_path / "train" / "class1").iterdir())
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(CorruptDataError, match=f"{path.name} is damaged or truncated"):
        load_folder(tmp_path)
    path.write_bytes(b"no image")
    with pytest.raises(CorruptDataError, match=f"{path.name} is damaged or truncated"):
        load_folder(tmp_path)


def test_pixels_of_16_bits_are_refused(tmp_path: Path) -> None:
    fake.write_folder(tmp_path)
    save(tmp_path / "train" / "class0" / "deep.png", np.zeros((8, 8), np.uint16))
    with pytest.raises(CorruptDataError, match=r"deep\.png has the pixel type I;16; save it with 8 bits"):
        load_folder(tmp_path)


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"train has no class folders\. An image folder looks like"):
        load_folder(tmp_path)
    fake.write_folder(tmp_path)
    (tmp_path / "test" / "class7").mkdir()
    with pytest.raises(DataError, match=r"has classes that .* has not: class7"):
        load_folder(tmp_path)
    (tmp_path / "test" / "class7").rmdir()
    for path in tmp_path.glob("test/*/*"):
        path.unlink()
    with pytest.raises(MissingDataError, match=r"no images under .*test: there must be files named \.bmp"):
        load_folder(tmp_path)


def test_a_folder_that_cannot_be_listed(
    open_path: Path, ordinary_rights: Callable[[], AbstractContextManager[None]]
) -> None:
    fake.write_folder(open_path)
    (open_path / "train").chmod(0)
    with ordinary_rights(), pytest.raises(DataError, match="cannot be listed: Permission denied"):
        load_folder(open_path)
    (open_path / "train").chmod(0o755)

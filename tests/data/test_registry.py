"""`load`: where files are looked for, and what may call itself official."""

from __future__ import annotations

import ast
import dataclasses
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
import torch

from surebound.data import Status, UnverifiedDataWarning, data_directory, digits, fake, load, names, registry, stream
from surebound.data.checksum import OFFICIAL, file_md5, split_digest
from surebound.data.marker import MARKER, mark_generated
from surebound.errors import CorruptDataError, DataError, InputError, MissingDataError


def pretend_published(monkeypatch: pytest.MonkeyPatch, name: str, counts: tuple[int, int] = (100, 20)) -> None:
    """Let the published dataset have as few images as the generated one."""
    source = dataclasses.replace(registry.SOURCES[name], counts=counts)
    monkeypatch.setitem(registry.SOURCES, name, source)
    monkeypatch.setattr(registry, "_said", set())


def unmark(folder: Path) -> None:
    (folder / MARKER).unlink()


def test_the_digits_are_the_same_wherever_they_are_read_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the file, which is known by its place, or by scikit-learn itself."""
    direct = digits.read()
    monkeypatch.setattr(digits, "find_spec", lambda name: None)
    for one, other in zip(direct, digits.read(), strict=True):
        assert torch.equal(one.images, other.images) and torch.equal(one.labels, other.labels)


def test_the_embedded_digits() -> None:
    data = load("digits")
    assert data.provenance.status is Status.OFFICIAL
    assert (len(data.train), len(data.test)) == (1442, 355)
    images = torch.cat([data.train.images[:], data.test.images[:]])
    assert images.dtype == torch.float32
    assert sorted(set((images * 16).flatten().tolist())) == list(range(17))
    for digit in range(10):
        share = int((data.test.labels == digit).sum()) / int((data.train.labels == digit).sum())
        assert share == pytest.approx(0.25, abs=0.02)
    assert data.mean is None
    from sklearn.datasets import load_digits

    bunch = load_digits()  # nothing is lost or doubled: the same images with the same labels
    labels = torch.cat([data.train.labels, data.test.labels])
    given = sorted(zip((images * 16).flatten(1).tolist(), labels.tolist(), strict=True))
    assert given == sorted(zip(bunch.data.tolist(), bunch.target.tolist(), strict=True))


@pytest.mark.parametrize("name", fake.WRITERS)
def test_generated_files_load_and_are_called_generated(tmp_path: Path, name: str) -> None:
    fake.WRITERS[name](tmp_path, 60, 20, seed=1)
    data = load(name, tmp_path)
    assert data.provenance.status is Status.GENERATED
    assert (len(data.train), len(data.test)) == (60, 20)
    x, y = data.train.batch(torch.arange(5), data.augment, stream(0))
    assert x.shape == (5, *data.input_shape)
    assert x.dtype == torch.float32
    assert 0 <= float(x.min()) <= float(x.max()) <= 1
    assert torch.equal(y, data.train.labels[:5])
    assert (data.mean is None) == (data.std is None)
    assert data.mean is None or len(data.mean) == data.input_shape[0]
    assert json.dumps(data.provenance.record())


@pytest.mark.parametrize("name", fake.WRITERS)
def test_without_the_marker_the_published_counts_are_asked_for(tmp_path: Path, name: str) -> None:
    unmark(fake.WRITERS[name](tmp_path, 60, 20))
    count = registry.SOURCES[name].counts[0]
    with pytest.raises(CorruptDataError, match=f"hold 60 images instead of {count}"):
        load(name, tmp_path)


def test_a_marker_that_does_not_match_is_refused(tmp_path: Path) -> None:
    folder = fake.write_mnist(tmp_path)
    mark_generated(folder, 100, 21)
    with pytest.raises(CorruptDataError, match=r"test files of MNIST .* hold 20 images instead of 21"):
        load("mnist", tmp_path)
    (folder / MARKER).write_text('{"train": "100"}')
    with pytest.raises(CorruptDataError, match="expected a record such as"):
        load("mnist", tmp_path)
    (folder / MARKER).write_text("not json")
    with pytest.raises(CorruptDataError, match="damaged"):
        load("mnist", tmp_path)


def test_a_plausible_copy_is_unverified_and_that_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_published(monkeypatch, "mnist")
    unmark(fake.write_mnist(tmp_path))
    with pytest.warns(UnverifiedDataWarning, match="matches no published checksum") as said:
        first = load("mnist", tmp_path)
    assert said[0].filename == __file__  # it points at the caller
    second = load("mnist", tmp_path)  # warnings are errors here: it is not said again
    assert first.provenance == second.provenance
    assert first.provenance.status is Status.UNVERIFIED


def test_a_repackaged_copy_of_the_published_content_is_official(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_published(monkeypatch, "cifar10")
    binary = fake.write_cifar10(tmp_path / "a")
    published = load("cifar10", tmp_path / "a")
    digests = split_digest(published.train), split_digest(published.test)
    monkeypatch.setitem(OFFICIAL, "cifar10", digests)
    unmark(binary)
    unmark(fake.write_cifar10(tmp_path / "b", version="python", archive=True))
    for root in (tmp_path / "a", tmp_path / "b"):
        assert load("cifar10", root).provenance.status is Status.OFFICIAL
    batch = binary / "cifar-10-batches-bin" / "data_batch_5.bin"
    data = bytearray(batch.read_bytes())
    data[-1] ^= 1  # one pixel
    batch.write_bytes(data)
    with pytest.warns(UnverifiedDataWarning):
        assert load("cifar10", tmp_path / "a").provenance.status is Status.UNVERIFIED


def test_published_checksums_of_the_files_make_svhn_official(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_published(monkeypatch, "svhn")
    folder = fake.write_svhn(tmp_path)
    unmark(folder)
    with pytest.warns(UnverifiedDataWarning):
        load("svhn", tmp_path)
    remotes = tuple(
        dataclasses.replace(remote, md5=file_md5(folder / remote.file)) for remote in registry.SOURCES["svhn"].remotes
    )
    monkeypatch.setitem(registry.SOURCES, "svhn", dataclasses.replace(registry.SOURCES["svhn"], remotes=remotes))
    assert load("svhn", tmp_path).provenance.status is Status.OFFICIAL


def test_another_dataset_under_the_same_file_names_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_published(monkeypatch, "fashion_mnist")
    folder = fake.write_mnist(tmp_path)
    digits = load("mnist", tmp_path)
    monkeypatch.setitem(OFFICIAL, "mnist", (split_digest(digits.train), split_digest(digits.test)))
    folder.rename(tmp_path / "fashion_mnist")
    unmark(tmp_path / "fashion_mnist")
    with pytest.raises(CorruptDataError, match=r"files of Fashion-MNIST in .* hold MNIST; put each dataset"):
        load("fashion_mnist", tmp_path)


def test_swapped_splits_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_published(monkeypatch, "svhn", (20, 20))
    folder = fake.write_svhn(tmp_path, 20, 20)
    data = load("svhn", tmp_path)
    monkeypatch.setitem(OFFICIAL, "svhn", (split_digest(data.test), split_digest(data.train)))
    unmark(folder)
    with pytest.raises(CorruptDataError, match="hold its two splits, swapped"):
        load("svhn", tmp_path)


def write_idx(path: Path, array: np.ndarray) -> None:
    path.write_bytes(bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes() + array.tobytes())


def write_whole_mnist(folder: Path, side: int = 28, highest: int = 9) -> None:
    """The published number of blank images."""
    folder.mkdir()
    for stem, count in (("train", 60_000), ("t10k", 10_000)):
        write_idx(folder / f"{stem}-images-idx3-ubyte", np.zeros((count, side, side), np.uint8))
        labels = (np.arange(count) % (highest + 1)).astype(np.uint8)
        write_idx(folder / f"{stem}-labels-idx1-ubyte", labels)


def test_the_published_counts_of_something_else_are_unverified(tmp_path: Path) -> None:
    write_whole_mnist(tmp_path / "mnist")
    with pytest.warns(UnverifiedDataWarning, match="recorded as unverified"):
        data = load("mnist", tmp_path)
    assert data.provenance.status is Status.UNVERIFIED
    assert data.provenance.digest != load("digits").provenance.digest


@pytest.mark.parametrize(
    ("side", "highest", "message"),
    [
        (8, 9, r"hold images of shape \(1, 8, 8\) instead of \(1, 28, 28\)"),
        (28, 10, "hold labels from 0 to 10 instead of 0 to 9"),
        (28, 4, "hold labels of 5 classes instead of all 10"),
    ],
)
def test_wrong_shapes_and_labels_are_refused(tmp_path: Path, side: int, highest: int, message: str) -> None:
    write_whole_mnist(tmp_path / "mnist", side, highest)
    with pytest.raises(CorruptDataError, match=message):
        load("mnist", tmp_path)


@pytest.mark.parametrize(
    ("name", "written", "moved"),
    [
        ("mnist", "mnist", "MNIST/raw"),
        ("fashion_mnist", "fashion_mnist", "FashionMNIST/raw"),
        ("fashion_mnist", "fashion_mnist", "fashion-mnist"),
        ("mnist", "mnist", "."),
        ("svhn", "svhn", "."),
        ("cifar10", "cifar10/cifar-10-batches-bin", "cifar-10-batches-bin"),
        ("cifar10", "cifar10/cifar-10-batches-bin", "."),
    ],
)
def test_other_layouts_are_found(tmp_path: Path, name: str, written: str, moved: str) -> None:
    folder = fake.WRITERS[name](tmp_path / "from")
    files = [*(tmp_path / "from" / written).iterdir(), folder / MARKER]
    target = tmp_path / "to" / moved
    target.mkdir(parents=True)
    for file in files:
        if file.exists():
            file.rename(
                (target.parent if moved == "cifar-10-batches-bin" and file.name == MARKER else target) / file.name
            )
    assert load(name, tmp_path / "to").provenance.status is Status.GENERATED


def test_the_directory_is_the_argument_then_the_environment_then_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUREBOUND_DATA", str(tmp_path / "environment"))
    assert data_directory(tmp_path) == tmp_path
    assert data_directory() == tmp_path / "environment"
    fake.write_mnist(tmp_path / "environment")
    assert load("mnist").provenance.status is Status.GENERATED
    monkeypatch.delenv("SUREBOUND_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_directory().name == "surebound"


@pytest.mark.parametrize("name", registry.SOURCES)
def test_missing_files_are_named_with_the_places_looked_in(tmp_path: Path, name: str) -> None:
    source = registry.SOURCES[name]
    with pytest.raises(MissingDataError) as caught:
        load(name, tmp_path)
    message = str(caught.value)
    for layout in source.layouts:
        assert all(file[0] in message for file in layout.files)
    assert all(str(tmp_path / folder) in message for folder in source.folders)
    assert "SUREBOUND_DATA" in message
    assert ("surebound data fetch" in message) == bool(source.remotes)
    assert list(tmp_path.iterdir()) == []


def test_the_one_missing_file_is_named(tmp_path: Path) -> None:
    lost = fake.write_mnist(tmp_path) / "t10k-labels-idx1-ubyte.gz"
    lost.unlink()
    with pytest.raises(MissingDataError, match=f"Part of it is there; missing: {lost}\n"):
        load("mnist", tmp_path)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(
        InputError, match=r"no dataset is called 'cifar-10'; did you mean 'cifar10'\? There are: digits"
    ):
        load("cifar-10")
    assert set(names()) == {"digits", *fake.WRITERS}


def test_an_unsearchable_directory_is_no_absence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr("surebound.data.files.os.stat", refuse)
        with pytest.raises(DataError, match="permission denied; make its directory readable") as caught:
            load("mnist", tmp_path)
    assert not isinstance(caught.value, MissingDataError)


def test_a_really_unsearchable_directory(
    open_path: Path, ordinary_rights: Callable[[], AbstractContextManager[None]]
) -> None:
    folder = fake.write_mnist(open_path)
    folder.chmod(0)
    with ordinary_rights(), pytest.raises(DataError, match="cannot be looked up: permission denied"):
        load("mnist", open_path)
    folder.chmod(0o755)


def test_heavy_packages_are_imported_only_where_they_are_used() -> None:
    heavy = {"scipy", "sklearn", "pooch", "PIL", "requests"}
    for path in Path(registry.__file__).parent.glob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not heavy & {module.split(".")[0] for module in modules}, path

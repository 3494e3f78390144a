"""The datasets by name, and `load`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from surebound.data import cifar10, digits, idx, svhn
from surebound.data.augment import Augment
from surebound.data.checksum import OFFICIAL, combined, file_md5, split_digest
from surebound.data.files import Found, Layout, by_name, data_directory, locate
from surebound.data.marker import generated_counts
from surebound.data.types import Dataset, Provenance, Split, Status
from surebound.errors import CorruptDataError, InputError

DIGITS = tuple("0123456789")


class UnverifiedDataWarning(UserWarning):
    """A dataset looks right, but its content matches no published checksum."""


@dataclass(frozen=True)
class Source:
    """What is known of a dataset that comes as files."""

    name: str
    title: str
    classes: tuple[str, ...]
    shape: tuple[int, int, int]  # (C, H, W)
    counts: tuple[int, int]  # train, test
    folders: tuple[str, ...]  # under the data directory, in the order they are looked in
    layouts: tuple[Layout, ...]
    read: Callable[[Found], tuple[Split, Split]]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    augment: Augment | None = None
    md5: tuple[tuple[str, str], ...] = ()  # published checksums of files, where no content checksum is known


def _idx_layout() -> tuple[Layout, ...]:
    stems = (
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    )
    return (Layout("idx files", tuple((f"{stem}.gz", stem) for stem in stems)),)


SOURCES = {
    source.name: source
    for source in (
        Source(
            "mnist", "MNIST", DIGITS, (1, 28, 28), (60_000, 10_000),
            ("mnist", "MNIST/raw", "MNIST", "."), _idx_layout(), idx.read,
        ),
        Source(
            "fashion_mnist", "Fashion-MNIST",
            ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
            (1, 28, 28), (60_000, 10_000),
            ("fashion_mnist", "fashion-mnist", "FashionMNIST/raw", "FashionMNIST", "."), _idx_layout(), idx.read,
        ),
        Source(
            "cifar10", "CIFAR-10", cifar10.CLASSES, (3, 32, 32), (50_000, 10_000),
            ("cifar10", "cifar-10", "CIFAR10", "."), cifar10.LAYOUTS, cifar10.read,
            mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010), augment=Augment(pad=4, flip=True),
        ),
        Source(
            "svhn", "SVHN", DIGITS, (3, 32, 32), (73_257, 26_032),
            ("svhn", "SVHN", "."), svhn.LAYOUTS, svhn.read,
            mean=(0.4377, 0.4438, 0.4728), std=(0.1980, 0.2010, 0.1970), augment=Augment(pad=4),
            md5=(
                ("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
                ("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),
            ),
        ),
    )
}  # fmt: skip


def names() -> tuple[str, ...]:
    """The names `load` knows."""
    return ("digits", *SOURCES)


def load(name: str, data_dir: str | os.PathLike[str] | None = None) -> Dataset:
    """The dataset called `name`.

    >>> data = load("digits")
    >>> len(data.train), len(data.test), data.input_shape, data.provenance.status.value
    (1442, 355, (1, 8, 8), 'official')
    """
    if name == "digits":
        return _embedded_digits()
    if name not in SOURCES:
        near = get_close_matches(name, names(), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InputError(f"no dataset is called {name!r}{hint} There are: {', '.join(names())}")
    source = SOURCES[name]
    found = locate(source.title, data_directory(data_dir), source.folders, source.layouts, "")
    train, test = source.read(found)
    provenance = examine(source, found, train, test)
    return Dataset(
        name, train, test, source.classes, provenance, source.mean, source.std, source.augment,
    )  # fmt: skip


def _embedded_digits() -> Dataset:
    train, test = digits.read()
    digests = split_digest(train), split_digest(test)
    status = Status.OFFICIAL if digests == OFFICIAL["digits"] else Status.UNVERIFIED
    return Dataset("digits", train, test, DIGITS, Provenance(status, combined(*digests)))


def examine(source: Source, found: Found, train: Split, test: Split) -> Provenance:
    """Refuse what cannot be `source`; say how far the rest is known to be."""
    counts = generated_counts(found.folder)
    expected = source.counts if counts is None else counts
    for where, split, count in (("train", train, expected[0]), ("test", test, expected[1])):
        _check(source, found, where, split, count)
    digests = split_digest(train), split_digest(test)
    files = tuple(str(path) for path in found.paths)
    if counts is not None:
        return Provenance(Status.GENERATED, combined(*digests), files, "random images written for tests")
    for other, known in OFFICIAL.items():
        if other != source.name and set(known) & set(digests):
            raise CorruptDataError(
                f"the files in {found.folder} are {other}, not {source.name}; use --data-dir to point elsewhere"
            )
    if OFFICIAL.get(source.name) == digests or _files_match(source, found):
        return Provenance(Status.OFFICIAL, combined(*digests), files)
    _say_once(source.title, found.folder, combined(*digests))
    return Provenance(Status.UNVERIFIED, combined(*digests), files, "matches no published checksum")


def _check(source: Source, found: Found, where: str, split: Split, count: int) -> None:
    problem = ""
    if split.shape != source.shape:
        problem = f"images of shape {split.shape} instead of {source.shape}"
    elif len(split) != count:
        problem = f"{len(split)} images instead of {count}"
    elif sorted(set(split.labels.tolist())) != list(range(len(source.classes))) and count >= 1000:
        problem = f"the labels {sorted(set(split.labels.tolist()))} instead of 0 to {len(source.classes) - 1}"
    if problem:
        raise CorruptDataError(f"the {where} files of {source.title} in {found.folder} hold {problem}")


def _files_match(source: Source, found: Found) -> bool:
    paths = by_name(found)
    return bool(source.md5) and all(
        name in paths and file_md5(paths[name]) == md5 for name, md5 in source.md5
    )


_said: set[str] = set()


def _say_once(title: str, folder: Path, digest: str) -> None:
    if digest not in _said:
        _said.add(digest)
        warnings.warn(
            f"the copy of {title} in {folder} has the right shapes, counts and labels but matches no published "
            f"checksum: it is used as an unverified copy, and the run says so",
            UnverifiedDataWarning,
            stacklevel=4,
        )

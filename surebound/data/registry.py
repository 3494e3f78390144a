"""`load`: a dataset by name, found, read, and examined."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import torch

from surebound.data import digits
from surebound.data.checksum import OFFICIAL, combined, file_md5, split_digest
from surebound.data.download import Progress, fetch, silent
from surebound.data.files import Found, data_directory, locate
from surebound.data.folder import load_folder
from surebound.data.marker import generated_counts
from surebound.data.source import DIGITS, SOURCES, Source
from surebound.data.types import Dataset, Provenance, Split, Status
from surebound.errors import CorruptDataError, InputError, MissingDataError, nearest

FOLDER = "folder:"


class UnverifiedDataWarning(UserWarning):
    """A dataset looks right, but its content matches no published checksum."""


def names() -> tuple[str, ...]:
    """The names `load` knows, besides `folder:PATH`."""
    return ("digits", *SOURCES)


def source_of(name: str) -> Source:
    """What is known of the dataset called `name`, or an error that names the nearest."""
    if name in SOURCES:
        return SOURCES[name]
    hint = nearest(name, names())
    raise InputError(f"no dataset is called {name!r}{hint} There are: {', '.join(names())}, and {FOLDER}PATH")


def load(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    download: bool = False,
    progress: Progress = silent,
) -> Dataset:
    """The dataset called `name`: one of `names()`, or `folder:PATH` for a folder of images of your own.

    Files are looked for in `data_dir`, else in $SUREBOUND_DATA, else in the user's cache directory. They are
    downloaded only if `download=True` allows it; otherwise `MissingDataError` says what to put where.

    >>> data = load("digits")
    >>> len(data.train), len(data.test), data.input_shape, data.provenance.status.value
    (1442, 355, (1, 8, 8), 'official')
    """
    if name == "digits":
        return _embedded_digits()
    if name.startswith(FOLDER):
        return load_folder(name.removeprefix(FOLDER))
    source = source_of(name)
    found = find(source, data_directory(data_dir), download=download, progress=progress)
    train, test = source.read(found)
    provenance = examine(source, found, train, test)
    return Dataset(name, train, test, source.classes, provenance, source.mean, source.std, source.augment)


def find(source: Source, root: Path, *, download: bool = False, progress: Progress = silent) -> Found:
    """The files of `source` under `root`, fetched first if they are missing and that is allowed."""
    try:
        return locate(source.title, root, source.folders, source.layouts, _hint(source))
    except MissingDataError:
        if not (download and source.remotes):
            raise
    fetch(source, root / source.folders[0], progress)
    return locate(source.title, root, source.folders, source.layouts, _hint(source))


def _hint(source: Source) -> str:
    if source.remotes:
        return f"To download it: surebound data fetch {source.name}, or load({source.name!r}, download=True)."
    return f"Its publisher wants its terms accepted first: {source.page}."


def _embedded_digits() -> Dataset:
    train, test = digits.read()
    digests = split_digest(train), split_digest(test)
    known = digests == OFFICIAL["digits"]
    provenance = Provenance(Status.OFFICIAL if known else Status.UNVERIFIED, combined(*digests))
    return Dataset("digits", train, test, DIGITS, provenance)


def examine(source: Source, found: Found, train: Split, test: Split) -> Provenance:
    """Refuse what cannot be `source`; say how far the rest is known to be it."""
    generated = generated_counts(found.folder)
    expected = source.counts if generated is None else generated
    for where, split, count in zip(("train", "test"), (train, test), expected, strict=True):
        if problem := _problem(source, where, split, count, complete=generated is None):
            raise CorruptDataError(
                f"the {where} files of {source.title} in {found.folder} hold {problem}; "
                "replace them with the published ones"
            )
    digests = split_digest(train), split_digest(test)
    content = combined(*digests)
    files = tuple(str(path) for path in found.paths)
    if generated is not None:
        return Provenance(Status.GENERATED, content, files, "generated images, for tests only")
    _refuse_other(source, found, digests)
    if OFFICIAL.get(source.name) == digests or _files_are_official(source, found):
        return Provenance(Status.OFFICIAL, content, files)
    _say_once(source.title, found.folder, content)
    return Provenance(Status.UNVERIFIED, content, files, "matches no published checksum")


def _problem(source: Source, where: str, split: Split, count: int, *, complete: bool) -> str:
    """What is wrong with a split, in words; empty if nothing is."""
    shape = source.shape if where == "train" else source.test_shape
    if split.shape != shape:
        return f"images of shape {split.shape} instead of {shape}"
    if len(split) != count:
        return f"{len(split)} images instead of {count}"
    labels, classes = torch.unique(split.labels), len(source.classes)  # sorted
    if labels[0] < 0 or labels[-1] >= classes:
        return f"labels from {labels[0]} to {labels[-1]} instead of 0 to {classes - 1}"
    if complete and len(labels) != classes:
        return f"labels of {len(labels)} classes instead of all {classes}"
    return ""


def _refuse_other(source: Source, found: Found, digests: tuple[str, str]) -> None:
    """MNIST and Fashion-MNIST have the same file names; training and test files can be swapped."""
    for other, known in OFFICIAL.items():
        if set(known) & set(digests) and (other != source.name or known == digests[::-1]):
            what = SOURCES[other].title if other != source.name else "its two splits, swapped"
            raise CorruptDataError(
                f"the files of {source.title} in {found.folder} hold {what}; put each dataset into "
                "its own folder under its published file names"
            )


def _files_are_official(source: Source, found: Found) -> bool:
    """Where no checksum of the content is known: the published checksums of the very files."""
    if source.name in OFFICIAL or not source.remotes:
        return False
    published = {remote.file: remote.md5 for remote in source.remotes}
    return all(published.get(path.name) == file_md5(path) for path in found.paths)


_said: set[str] = set()


def _say_once(title: str, folder: Path, digest: str) -> None:
    if digest not in _said:
        _said.add(digest)
        warnings.warn(
            f"the copy of {title} in {folder} has the right shapes, counts and labels but matches no "
            "published checksum; it is used, and recorded as unverified",
            UnverifiedDataWarning,
            stacklevel=4,
        )

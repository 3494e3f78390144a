"""Finding a dataset's files; whatever goes wrong while reading them becomes an error that says what to do."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from surebound.errors import CorruptDataError, DataError, MissingDataError

ENVIRONMENT = "SUREBOUND_DATA"


def data_directory(given: str | os.PathLike[str] | None = None) -> Path:
    """Where datasets are looked for: the argument, else $SUREBOUND_DATA, else the user's cache directory."""
    if given is not None:
        return Path(given).expanduser()
    if from_environment := os.environ.get(ENVIRONMENT):
        return Path(from_environment).expanduser()
    import pooch

    return Path(pooch.os_cache("surebound"))


@dataclass(frozen=True)
class Layout:
    """One published packaging: files that together hold the whole dataset, each under any of its names."""

    name: str
    files: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Found:
    """The files of a layout, in its order, and the folder they were found from."""

    layout: str
    folder: Path
    paths: tuple[Path, ...]


def is_file(path: Path) -> bool:
    """Whether `path` is a file; a directory that may not be searched is an error, not an absence."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except PermissionError as error:
        raise DataError(f"{path} cannot be looked up: permission denied; make its directory readable") from error
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return False
        raise DataError(f"{path} cannot be looked up: {error.strerror}") from error


def locate(title: str, root: Path, folders: Sequence[str], layouts: Sequence[Layout], hint: str) -> Found:
    """The first complete layout in the first of `folders` under `root` that has one."""
    nearest: tuple[int, list[str]] = (0, [])
    for folder in (root / name for name in folders):
        for layout in layouts:
            choices = [next((folder / n for n in names if is_file(folder / n)), None) for names in layout.files]
            present = [path for path in choices if path is not None]
            if len(present) == len(choices):
                return Found(layout.name, folder, tuple(present))
            if len(present) > nearest[0]:
                absent = [str(folder / n[0]) for n, path in zip(layout.files, choices, strict=True) if path is None]
                nearest = (len(present), absent)
    raise MissingDataError(_missing(title, root, folders, layouts, nearest[1], hint))


def _missing(
    title: str, root: Path, folders: Sequence[str], layouts: Sequence[Layout], absent: list[str], hint: str
) -> str:
    lines = [f"{title} was not found under {root}."]
    if absent:
        lines.append("Part of it is there; missing: " + ", ".join(absent))
    lines.append(f"Put into {root / folders[0]} one of:")
    for layout in layouts:
        lines.append(f"  - {layout.name}: " + ", ".join(names[0] for names in layout.files))
    lines.append("Also looked in: " + ", ".join(str(root / folder) for folder in folders[1:]))
    lines.append(f"Another directory: --data-dir, data_dir=, or ${ENVIRONMENT}. {hint}".rstrip())
    return "\n".join(lines)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """A file that cannot be read becomes a `DataError`, one that cannot be decoded a `CorruptDataError`."""
    try:
        yield
    except (DataError, MemoryError):
        raise
    except PermissionError as error:
        raise DataError(f"{path} cannot be read: permission denied; make it readable") from error
    except OSError as error:
        if error.errno is not None:
            raise DataError(f"{path} cannot be read: {error.strerror}") from error
        raise _damaged(path, error) from error  # gzip and tarfile raise OSErrors without a number
    except Exception as error:  # decoders of damaged input raise about anything
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> CorruptDataError:
    reason = str(error) or type(error).__name__
    return CorruptDataError(f"{path} is damaged or truncated ({reason}); delete it and fetch it again")


def refuse(path: Path, problem: str, accepted: str) -> CorruptDataError:
    """The error for a file that is readable but holds something else."""
    return CorruptDataError(f"{path} {problem}; expected {accepted}. Replace it with the published file")

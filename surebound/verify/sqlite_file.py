"""The SQLite file under a results store: opening, checking that it is ours and intact, errors in words."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import zlib
from collections.abc import Iterator
from pathlib import Path

from surebound.errors import StoreError

_APPLICATION = 0x53424E44  # "SBND": tells our files from other SQLite databases
_SCHEMA = 1
_BUSY_SECONDS = 30.0
_ROOM = 1 << 16  # bytes: what a small transaction takes

_TABLES = """
CREATE TABLE subject (
    id INTEGER PRIMARY KEY, weights TEXT NOT NULL, spec TEXT NOT NULL, UNIQUE (weights, spec)
);
CREATE TABLE result (
    subject INTEGER NOT NULL REFERENCES subject (id),
    eps TEXT NOT NULL, idx INTEGER NOT NULL, example TEXT NOT NULL,
    label INTEGER NOT NULL, prediction INTEGER NOT NULL,
    status TEXT NOT NULL, stage TEXT NOT NULL, bound REAL, float_sound INTEGER NOT NULL,
    seconds REAL NOT NULL, stage_seconds TEXT NOT NULL, detail TEXT NOT NULL, witness BLOB,
    cascade TEXT NOT NULL, code TEXT NOT NULL, written REAL NOT NULL, read_as INTEGER,
    PRIMARY KEY (subject, eps, idx)
) WITHOUT ROWID;
"""


def connect(path: Path) -> sqlite3.Connection:
    """Open or create the file for reading and writing."""
    with translated(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        return sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Create the tables if the file is new; refuse a file that is not ours."""
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    with transaction(connection):
        empty = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
        if empty:
            for statement in _TABLES.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            connection.execute(f"PRAGMA user_version = {_SCHEMA}")
    check(connection, path)
    if not has_read_as(connection):
        connection.execute("ALTER TABLE result ADD COLUMN read_as INTEGER")


def has_read_as(connection: sqlite3.Connection) -> bool:
    """Say whether the file knows what counterexamples are read as: those of the first releases do not."""
    return any(row[1] == "read_as" for row in connection.execute("PRAGMA table_info(result)"))


def check(connection: sqlite3.Connection, path: Path) -> None:
    """Raise unless the file is an intact results store of this schema."""
    if connection.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION:
        raise StoreError(f"{path} is an SQLite database, but not a results store. Choose another file.")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != _SCHEMA:
        raise StoreError(
            f"{path} has schema version {version}; this release reads {_SCHEMA}. "
            "Read it with the release that wrote it, or verify into a new directory."
        )
    found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise StoreError(f"{path} is corrupt ({found}). Restore a copy, or delete it and verify again.")


def connect_readonly(path: Path) -> sqlite3.Connection:
    """Open an existing file for reading, on read-only media too."""
    base = path.resolve().as_uri()
    # A WAL database wants to create its -shm file; where that is impossible and no log is pending, the file
    # cannot change under us and may be read as it is.
    for mode in ("mode=ro", "mode=ro&immutable=1"):
        if "immutable" in mode and path.with_name(path.name + "-wal").exists():
            break
        connection = sqlite3.connect(f"{base}?{mode}", uri=True, timeout=_BUSY_SECONDS, isolation_level=None)
        try:
            connection.execute("SELECT count(*) FROM sqlite_master")
        except sqlite3.OperationalError:
            connection.close()
            continue
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # what SQLite says of a damaged file is no text
            connection.close()
            raise _explained(path, error) from error
        return connection
    raise StoreError(f"{path} cannot be opened for reading. Check its permissions.")


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Make what is written one transaction, rolled back on any exception."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        with contextlib.suppress(sqlite3.Error):  # a full disk may have rolled back already
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn what SQLite and the file system raise into StoreError, with what to do."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise _explained(path, error) from error
    except (ValueError, KeyError, zlib.error, EOFError) as error:
        raise StoreError(
            f"{path} is corrupt (unreadable row: {error}). Restore a copy, or delete it and verify again."
        ) from error


def _explained(path: Path, error: Exception) -> StoreError:
    text = str(error)
    if "full" in text or "No space" in text or ("disk I/O" in text and _has_no_room(path)):
        advice = "The disk is full: free some space and run again; what was decided is kept."
    elif "readonly" in text or "read-only" in text or "Permission" in text or "unable to open" in text:
        advice = "It is not writable: check permissions, or write to another directory."
    elif "malformed" in text or "not a database" in text or isinstance(error, UnicodeDecodeError):
        advice = "It is corrupt: restore a copy, or delete it and verify again."
    elif "locked" in text:
        advice = f"Another process kept it locked for {_BUSY_SECONDS:.0f} s: wait for it, then run again."
    else:
        advice = "Check the file and its disk."
    return StoreError(f"results store {path}: {text}. {advice}")


def _has_no_room(path: Path) -> bool:
    """Say whether the disk is full: of the file that processes share, SQLite only says that it cannot be written."""
    try:
        return shutil.disk_usage(path.parent).free < _ROOM
    except OSError:
        return False

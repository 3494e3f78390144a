"""The results store: one SQLite file per run, written as examples are decided, safe to kill and to share.

What is trusted: SQLite's transactions (WAL, ``synchronous=FULL``). What is checked here: that the file is
ours and intact, that its results belong to the same weights, question and code, and that no example is both
robust and falsified.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from types import TracebackType

from surebound.errors import StoreError
from surebound.search.record import Record
from surebound.verdict import Status
from surebound.verify.identity import Identity, other_regions
from surebound.verify.sqlite_file import check, connect, connect_readonly, has_read_as, prepare, transaction, translated
from surebound.verify.store_rows import COLUMNS, opened, pack, radius_of, sealed


class Store:
    """Results of one run. Use as a context manager.

    ``Store.open`` reads and writes; ``Store.read`` only reads. Several processes may have one store open.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, identity: Identity | None) -> None:
        self.path = path
        self._connection = connection
        self._identity = identity
        self._subject: int | None = None

    @classmethod
    def open(cls, path: str | Path, identity: Identity, *, mix: bool = False) -> Store:
        """Open or create the store at ``path`` for results of ``identity``.

        A store that holds results of other weights, another specification or other code is refused unless
        ``mix`` is given. Then results of other code count as done; results of other weights or of another
        specification lie side by side and are never used for each other.
        """
        path = Path(path)
        connection = connect(path)
        store = cls(path, connection, identity)
        try:
            with translated(path):
                prepare(connection, path)
                store._subject = store._admit(identity, mix)
        except BaseException:
            connection.close()
            raise
        return store

    @classmethod
    def read(cls, path: str | Path) -> Store:
        """Open an existing store for queries; works on read-only media."""
        path = Path(path)
        if not path.is_file():
            raise StoreError(f"no results store at {path}. Run `surebound verify` first.")
        connection = connect_readonly(path)
        try:
            with translated(path):
                check(connection, path)
        except BaseException:
            connection.close()
            raise
        return cls(path, connection, None)

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; everything added is already on disk."""
        self._connection.close()

    # -- writing ---------------------------------------------------------------------------------------------

    def add(self, records: Sequence[Record], cascade: str) -> None:
        """Write records in one transaction; they are on disk when this returns.

        A decision is never overwritten by a non-decision on the same example. Two opposite decisions on one example
        raise: one of them is wrong, and silence would hide which. What was found about another example under the
        same number (a file that was overwritten) is replaced.
        """
        if self._identity is None:
            raise StoreError(f"{self.path} was opened for reading. Use Store.open to add results.")
        with translated(self.path), transaction(self._connection):
            for record in records:
                self._put(record, cascade, self._identity.code)

    def _put(self, record: Record, cascade: str, code: str) -> None:
        verdict = record.verdict
        old = self._connection.execute(
            "SELECT status, stage, float_sound FROM result WHERE subject = ? AND eps = ? AND idx = ? AND example = ?",
            (self._subject, str(record.eps), record.index, record.example),
        ).fetchone()
        if old is not None:
            before = Status(old[0])
            if before.decided and verdict.status.decided and before is not verdict.status:
                raise StoreError(
                    f"contradiction on example {record.index} at eps {record.eps}: {before.value} by stage "
                    f"{old[1]!r} in {self.path}, {verdict.status.value} by stage {verdict.stage!r} now. "
                    "One of them is wrong: please report this with the store and the network."
                )
            weaker = bool(old[2]) and not verdict.float_sound
            if before.decided and (not verdict.status.decided or weaker):
                return
        row = (
            record.index, record.label, record.prediction, str(record.eps), verdict.status.value, verdict.stage,
            float(verdict.bound), int(verdict.float_sound), float(verdict.seconds), record.stage_seconds,
            verdict.detail, pack(verdict.witness), record.example, cascade, code, time.time(), verdict.read_as,
        )  # fmt: skip
        self._connection.execute(
            f"INSERT OR REPLACE INTO result (subject, {COLUMNS}, read_as) VALUES ({', '.join('?' * (len(row) + 1))})",
            (self._subject, *sealed(self._owner(), row)),
        )

    # -- reading ---------------------------------------------------------------------------------------------

    def done(self, eps: Fraction, cascade: str) -> dict[int, str]:
        """Index -> example hash of what need not be run again.

        Decisions are done whatever cascade found them; unknowns and timeouts are done for the cascade that
        left them so; errors are never done.
        """
        with translated(self.path):
            rows = self._connection.execute(
                f"SELECT {self._columns()} FROM result WHERE subject = ? AND eps = ? AND "
                "(status IN ('robust', 'falsified') OR (status IN ('unknown', 'timeout') AND cascade = ?))",
                (self._one_subject(), str(eps), cascade),
            ).fetchall()
            records = self._opened(rows)
        return {record.index: record.example for record in records}

    def version(self) -> int:
        """Return a number that changes when another process has written to the file."""
        with translated(self.path):
            return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def weights(self) -> str:
        """Return the hash of the weights that the results are about (``identity.weights_hash``)."""
        with translated(self.path):
            row = self._connection.execute(
                "SELECT weights FROM subject WHERE id = ?", (self._one_subject(),)
            ).fetchone()
        return "" if row is None else str(row[0])

    def subject(self) -> tuple[str, str]:
        """Return what the results are about: the hash of the weights, and the specification (``Identity``)."""
        with translated(self.path):
            return self._owner()

    def regions(self) -> str:
        """Name the regions that the results are about if they are not l-infinity balls of one radius; else ""."""
        return other_regions(self.subject()[1])

    def codes(self) -> list[str]:
        """Return the code versions that the results come from."""
        with translated(self.path):
            rows = self._connection.execute(
                "SELECT DISTINCT code FROM result WHERE subject = ? ORDER BY code", (self._one_subject(),)
            ).fetchall()
        return [row[0] for row in rows]

    def radii(self) -> list[Fraction]:
        """Return the radii that have results, in ascending order."""
        with translated(self.path):
            rows = self._connection.execute(
                "SELECT DISTINCT eps FROM result WHERE subject = ?", (self._one_subject(),)
            ).fetchall()
            return sorted(radius_of(row[0]) for row in rows)

    def records(
        self, *, eps: Fraction | None = None, status: Iterable[Status] | None = None, stage: str | None = None
    ) -> Iterator[Record]:
        """Stored records in the order of radius and index, optionally filtered."""
        where = ["subject = ?"]
        arguments: list[object] = [self._one_subject()]
        if eps is not None:
            where.append("eps = ?")
            arguments.append(str(eps))
        if status is not None:
            names = [each.value for each in status]
            where.append(f"status IN ({', '.join('?' * len(names))})")
            arguments.extend(names)
        if stage is not None:
            where.append("stage = ?")
            arguments.append(stage)
        with translated(self.path):
            rows = self._connection.execute(
                f"SELECT {self._columns()} FROM result WHERE {' AND '.join(where)} ORDER BY idx", arguments
            ).fetchall()
            records = self._opened(rows)
        return iter(sorted(records, key=lambda record: record.eps))

    # -- identity --------------------------------------------------------------------------------------------

    def _columns(self) -> str:
        """Return what is read of a row; stores of earlier releases did not keep the class of a witness."""
        return f"{COLUMNS}, {'read_as' if has_read_as(self._connection) else 'NULL'}"

    def _opened(self, rows: Sequence[Sequence[object]]) -> list[Record]:
        owner = self._owner()
        return [opened(owner, row) for row in rows]

    def _owner(self) -> tuple[str, str]:
        """Return the weights and the specification that the rows are about."""
        row = self._connection.execute(
            "SELECT weights, spec FROM subject WHERE id = ?", (self._one_subject(),)
        ).fetchone()
        return ("", "") if row is None else (str(row[0]), str(row[1]))

    def _one_subject(self) -> int:
        if self._subject is not None:
            return self._subject
        rows = self._connection.execute("SELECT id, weights, spec FROM subject ORDER BY id").fetchall()
        if len(rows) > 1:
            listed = "; ".join(f"weights {row[1][:12]}, {row[2]}" for row in rows)
            raise StoreError(
                f"{self.path} mixes results of {len(rows)} subjects ({listed}). "
                "Open it with the identity of one of them: Store.open(path, identity, mix=True)."
            )
        if rows and not isinstance(rows[0][0], int):
            raise StoreError(f"{self.path} is corrupt (a subject without a number). Restore a copy, or verify again.")
        return rows[0][0] if rows else -1

    def _admit(self, identity: Identity, mix: bool) -> int:
        with transaction(self._connection):
            rows = self._connection.execute("SELECT id, weights, spec FROM subject").fetchall()
            codes = [row[0] for row in self._connection.execute("SELECT DISTINCT code FROM result")]
            if not mix:
                _refuse_foreign(self.path, identity, rows, codes)
            for key, weights, spec in rows:
                if (weights, spec) == (identity.weights, identity.spec):
                    return int(key)
            cursor = self._connection.execute(
                "INSERT INTO subject (weights, spec) VALUES (?, ?)", (identity.weights, identity.spec)
            )
            return int(cursor.lastrowid or 0)


def _refuse_foreign(
    path: Path, identity: Identity, subjects: Sequence[tuple[int, str, str]], codes: Sequence[str]
) -> None:
    advice = "Write to another directory, or pass mix=True (--mix) to keep both in one store."
    for _, weights, spec in subjects:
        if weights != identity.weights:
            raise StoreError(
                f"{path} holds results of other weights (sha256 {weights[:12]}, now {identity.weights[:12]}). {advice}"
            )
        if "; architecture " in spec and "; architecture " not in identity.spec:
            raise StoreError(
                f"{path} was written when results named a network by its weights and what it prints, which does not "
                f"tell every two networks apart. Its results can still be read and reported. {advice}"
            )
        if spec != identity.spec:
            raise StoreError(f"{path} holds results of another specification ({spec}; now {identity.spec}). {advice}")
    for code in codes:
        if code != identity.code:
            raise StoreError(f"{path} holds results of another code version ({code}, now {identity.code}). {advice}")

"""The results store: what was decided stays, what does not belong is refused, what is broken is named."""

from __future__ import annotations

import dataclasses
import os
import sqlite3
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from surebound.errors import StoreError
from surebound.search.record import Record
from surebound.verdict import Status, Verdict
from surebound.verify.identity import Identity
from surebound.verify.store import Store

SELF = Identity(weights="a" * 64, spec="label stays, inputs in [0, 1]", code="1.0+abc")
EPS = Fraction(3, 10)


def record(index: int, status: Status = Status.ROBUST, **more: object) -> Record:
    witness = torch.rand(1, 2, 3) if status is Status.FALSIFIED else None
    bound = -1.0 if status is Status.ROBUST else float("inf")
    verdict = Verdict(status, "interval", bound, witness, seconds=0.5, detail="why")
    filled = Record(index, 3, 4, EPS, verdict, example=f"hash{index}", stage_seconds=(("clean", 0.25),))
    return dataclasses.replace(filled, **more)  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "results.db"


def test_records_come_back_as_they_went_in(path: Path) -> None:
    written = [record(index, status) for index, status in enumerate(Status)]
    with Store.open(path, SELF) as store:
        store.add(written, "default")
    with Store.read(path) as store:
        read = list(store.records())
    assert len(read) == len(written)
    for old, new in zip(written, read, strict=True):
        for name in ("index", "label", "prediction", "eps", "example", "stage_seconds"):
            assert getattr(new, name) == getattr(old, name)
        for name in ("status", "stage", "bound", "seconds", "float_sound", "detail"):
            assert getattr(new.verdict, name) == getattr(old.verdict, name)
        if old.verdict.witness is not None:
            assert torch.equal(new.verdict.witness, old.verdict.witness)
            assert new.verdict.witness.dtype == torch.float32


def test_a_store_written_before_still_loads(path: Path) -> None:
    """By a version whose code is gone: its results are read, and no others are put beside them unasked."""
    path.parent.mkdir(exist_ok=True)
    connection = sqlite3.connect(path)
    connection.executescript(Path(__file__).with_name("store_2a7b64a.sql").read_text(encoding="utf-8"))
    ((weights, spec),) = connection.execute("SELECT weights, spec FROM subject").fetchall()
    connection.close()
    with Store.read(path) as store:
        records = sorted(store.records(), key=lambda each: (each.eps, each.index))
    assert [(str(each.eps), each.index, each.verdict.status.value, each.verdict.stage) for each in records] == [
        ("1/100", 7, "robust", "interval"),
        ("1/10", 0, "falsified", "clean"),
        ("1/10", 7, "falsified", "pgd"),
        ("1/10", 8, "robust", "crown"),
    ]
    witness, last = records[2].verdict.witness, records[3].verdict
    assert witness is not None and witness.shape == (1, 8, 8)
    assert last.float_sound and last.bound == pytest.approx(-5.388e-3, 1e-3)
    with pytest.raises(StoreError, match="still be read and reported"):
        Store.open(path, Identity(weights, spec.partition("; architecture")[0], SELF.code))


def test_a_store_of_the_first_releases_is_read_and_continued(path: Path) -> None:
    """It has no column for what counterexamples are read as."""
    with Store.open(path, SELF) as store:
        store.add([record(1, Status.FALSIFIED)], "c")
    connection = sqlite3.connect(path)
    connection.execute("ALTER TABLE result DROP COLUMN read_as")
    connection.commit()
    connection.close()
    with Store.read(path) as old:
        assert [each.verdict.read_as for each in old.records()] == [None]
    with Store.open(path, SELF) as store:
        found = record(2, Status.FALSIFIED)
        store.add([dataclasses.replace(found, verdict=dataclasses.replace(found.verdict, read_as=7))], "c")
        assert [each.verdict.read_as for each in store.records()] == [None, 7]


def test_done_is_decided_or_left_open_by_the_same_cascade(path: Path) -> None:
    with Store.open(path, SELF) as store:
        store.add([record(index, status) for index, status in enumerate(Status)], "fast")
        names = list(Status)
        done = {names[index] for index in store.done(EPS, "fast")}
        assert done == set(Status) - {Status.ERROR}
        other = {names[index] for index in store.done(EPS, "default")}
        assert other == {Status.ROBUST, Status.FALSIFIED}
        assert store.done(Fraction(1, 10), "fast") == {}
        assert store.done(EPS, "fast")[0] == "hash0"


def test_a_decision_is_never_replaced_by_a_shrug(path: Path) -> None:
    with Store.open(path, SELF) as store:
        store.add([record(0, Status.ROBUST)], "fast")
        store.add([record(0, Status.TIMEOUT), record(1, Status.ERROR)], "default")
        store.add([record(1, Status.ROBUST)], "default")
        assert [each.verdict.status for each in store.records()] == [Status.ROBUST, Status.ROBUST]


def proof(index: int, stage: str, *, sound: bool) -> Record:
    verdict = Verdict(Status.ROBUST, stage, -1.0, seconds=0.5, float_sound=sound)
    return dataclasses.replace(record(index), verdict=verdict)


def test_a_proof_for_floats_is_not_replaced_by_one_within_a_tolerance(path: Path) -> None:
    with Store.open(path, SELF) as store:
        store.add([proof(0, "interval", sound=True), proof(1, "mip", sound=False)], "fast")
        store.add([proof(0, "mip", sound=False), proof(1, "interval", sound=True)], "default")
        kept = {each.index: each.verdict for each in store.records()}
    assert {index: (each.stage, each.float_sound) for index, each in kept.items()} == {
        0: ("interval", True),
        1: ("interval", True),
    }


def test_what_was_found_about_another_example_is_replaced(path: Path) -> None:
    with Store.open(path, SELF) as store:
        store.add([record(0, Status.ROBUST)], "fast")
        store.add([record(0, Status.ERROR, example="another")], "fast")
        assert [each.verdict.status for each in store.records()] == [Status.ERROR]
        store.add([record(0, Status.FALSIFIED, example="a third")], "fast")  # no contradiction
        assert [each.verdict.status for each in store.records()] == [Status.FALSIFIED]


def test_a_radius_that_is_no_number_is_a_corrupt_row(path: Path) -> None:
    with Store.open(path, SELF) as store:
        store.add([record(0)], "fast")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE result SET eps = '1/0'")
    connection.close()
    with Store.read(path) as store:
        for read in (store.radii, lambda: list(store.records())):
            with pytest.raises(StoreError, match="is corrupt .unreadable row: eps '1/0' is no number"):
                read()


def test_contradictions_are_loud(path: Path) -> None:
    with Store.open(path, SELF) as store:
        store.add([record(0, Status.ROBUST)], "fast")
        with pytest.raises(StoreError, match="contradiction on example 0 at eps 3/10: robust"):
            store.add([record(1), record(0, Status.FALSIFIED)], "fast")
        assert len(list(store.records())) == 1  # the transaction was undone as a whole


def test_filters_and_radii(path: Path) -> None:
    with Store.open(path, SELF) as store:
        store.add([record(0), record(1, Status.UNKNOWN), record(1, eps=Fraction(1, 10))], "fast")
        assert store.radii() == [Fraction(1, 10), EPS]
        assert [each.eps for each in store.records()] == [Fraction(1, 10), EPS, EPS]
        assert [each.index for each in store.records(eps=EPS, status=[Status.UNKNOWN])] == [1]
        assert list(store.records(stage="mip")) == []


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("weights", "b" * 64, "results of other weights .sha256 aaaaaaaaaaaa, now bbbbbbbbbbbb"),
        ("spec", "something else", "another specification"),
        ("code", "1.1+def", "another code version .1.0.abc, now 1.1.def"),
    ],
)
def test_foreign_results_are_refused_unless_told(path: Path, field: str, value: str, message: str) -> None:
    with Store.open(path, SELF) as store:
        store.add([record(0)], "fast")
    other = dataclasses.replace(SELF, **{field: value})
    with pytest.raises(StoreError, match=message):
        Store.open(path, other)
    with Store.open(path, other, mix=True) as store:
        # Only results of the same weights and question can count as done.
        assert list(store.done(EPS, "fast")) == ([0] if field == "code" else [])
        store.add([record(5)], "fast")
    if field != "code":
        with Store.read(path) as store, pytest.raises(StoreError, match="mixes results of 2 subjects"):
            list(store.records())


def test_missing_foreign_and_newer_files(path: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no results store at .* Run `surebound verify` first"):
        Store.read(path)
    foreign = tmp_path / "foreign.db"
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    with pytest.raises(StoreError, match="not a results store"):
        Store.open(foreign, SELF)
    Store.open(path, SELF).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreError, match="schema version 99"):
        Store.read(path)


def test_corruption_is_named(path: Path) -> None:
    with Store.open(path, SELF) as store:
        store.add([record(index, Status.FALSIFIED) for index in range(200)], "fast")
    content = path.read_bytes()
    path.write_bytes(b"rubbish" * 1000)
    with pytest.raises(StoreError, match="corrupt"):
        Store.open(path, SELF)
    with pytest.raises(StoreError, match="corrupt"):
        Store.read(path)
    broken = bytearray(content)
    broken[8192:20480] = b"\x55" * 12288
    path.write_bytes(bytes(broken))
    with pytest.raises(StoreError, match="corrupt"):
        Store.read(path)
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(StoreError, match="corrupt"):
        Store.open(path, SELF)


def test_an_edited_row_cannot_claim_a_proof(path: Path) -> None:
    with Store.open(path, SELF) as store:
        store.add([record(0, Status.UNKNOWN)], "fast")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE result SET status = 'robust'")
    connection.close()
    with (
        Store.read(path) as store,
        pytest.raises(StoreError, match="unreadable row: a robust verdict"),
    ):
        list(store.records())


def test_a_full_disk_is_named_and_keeps_what_was_decided(path: Path) -> None:
    with Store.open(path, SELF) as store:
        store.add([record(0)], "fast")
        pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
        store._connection.execute(f"PRAGMA max_page_count = {pages}")  # SQLite's own "disk is full"
        many = [record(index, Status.FALSIFIED) for index in range(1, 500)]
        with pytest.raises(StoreError, match="disk is full: free some space"):
            store.add(many, "fast")
        assert [each.index for each in store.records()] == [0]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_directories(path: Path) -> None:
    Store.open(path, SELF).close()
    path.parent.chmod(0o555)
    path.chmod(0o444)
    try:
        with pytest.raises(StoreError, match="not writable"):
            Store.open(path, SELF)
        with Store.read(path) as store:
            assert list(store.records()) == []
    finally:
        path.parent.chmod(0o755)


def test_a_read_only_connection_says_so(path: Path) -> None:
    with Store.open(path, SELF) as store:
        store._connection.execute("PRAGMA query_only = ON")
        with pytest.raises(StoreError, match="not writable"):
            store.add([record(0)], "fast")
    with Store.read(path) as store, pytest.raises(StoreError, match="opened for reading"):
        store.add([record(0)], "fast")


def test_a_directory_that_cannot_exist(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="results store"):
        Store.open(tmp_path / "file" / "results.db", SELF)


_WRITER = """
import sys
from fractions import Fraction
from surebound.verdict import Status, Verdict
from surebound.verify.identity import Identity
from surebound.search.record import Record
from surebound.verify.store import Store
path, start = sys.argv[1], int(sys.argv[2])
identity = Identity("a" * 64, "label stays, inputs in [0, 1]", "1.0+abc")
with Store.open(path, identity) as store:
    for index in range(start, start + 100):
        verdict = Verdict(Status.ROBUST, "interval", -1.0)
        store.add([Record(index, 0, 0, Fraction(3, 10), verdict)], "fast")
    print("done")
"""


def test_two_processes_on_one_store(path: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", _WRITER, str(path), start], stdout=subprocess.PIPE)
        for start in ("0", "50")
    ]
    assert [writer.communicate(timeout=60)[0] for writer in writers] == [b"done\n", b"done\n"]
    with Store.read(path) as store:
        assert [each.index for each in store.records()] == list(range(150))


@pytest.mark.parametrize(
    "change",
    [
        "eps = '9/10'",
        "label = 1 - label",
        "bound = bound - 1",
        "float_sound = 1",
        "stage = 'other'",
        "example = 'ffffffffffffffff'",
        "cascade = 'other'",
        "stage_seconds = replace(stage_seconds, '0.5', '0.7')",
    ],
)
def test_a_row_that_was_tampered_with_is_refused(change: str, tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    verdict = Verdict(Status.ROBUST, "mip", bound=-0.5, seconds=0.5)
    with Store.open(path, SELF) as store:
        store.add([Record(3, 0, 0, Fraction(1, 10), verdict, "0123456789abcdef", (("mip", 0.5),))], "c")
        assert [record.index for record in store.records()] == [3]
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE result SET {change}")
    connection.close()
    with Store.read(path) as store, pytest.raises(StoreError, match="is not what was written"):
        list(store.records())
    with Store.open(path, SELF) as store, pytest.raises(StoreError, match="is not what was written"):
        (store.done(Fraction(9, 10), "c"), store.done(Fraction(1, 10), "c"))


def test_rows_without_a_seal_are_those_of_earlier_stores(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    with Store.open(path, SELF) as store:
        store.add([Record(3, 0, 0, Fraction(1, 10), Verdict(Status.UNKNOWN, "mip"), "01", (("mip", 0.5),))], "c")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE result SET stage_seconds = '[[\"mip\", 0.5]]'")
    connection.close()
    with Store.read(path) as store:
        assert [record.stage_seconds for record in store.records()] == [(("mip", 0.5),)]

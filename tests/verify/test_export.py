"""CSV, JSON and Parquet say the same; witnesses are plain arrays."""

from __future__ import annotations

import csv
import io
import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from surebound.errors import InputError, StoreError
from surebound.search.record import Record
from surebound.verdict import Status, Verdict
from surebound.verify.export import COLUMNS, render, write_witnesses

EPS = Fraction(8, 255)
RECORDS = [
    Record(0, 7, 7, EPS, Verdict(Status.ROBUST, "interval", -0.5, seconds=0.1, float_sound=True)),
    Record(3, 2, 2, EPS, Verdict(Status.FALSIFIED, "pgd", witness=torch.full((1, 2, 2), 0.25))),
    Record(4, 1, 1, EPS, Verdict(Status.TIMEOUT, "mip", 0.75, seconds=60.0)),
]


def test_the_three_formats_agree() -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    from_json = json.loads(render(RECORDS, "json"))
    from_parquet = pq.read_table(io.BytesIO(render(RECORDS, "parquet"))).to_pylist()
    assert from_json == from_parquet
    lines = list(csv.DictReader(io.StringIO(render(RECORDS, "csv").decode())))
    assert tuple(lines[0]) == COLUMNS
    for line, values in zip(lines, from_json, strict=True):
        for name in COLUMNS:
            expected = "" if values[name] is None else str(values[name])
            assert line[name].lower() == expected.lower()
    assert [line["eps"] for line in lines] == ["8/255"] * 3


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(InputError, match="'xml' is not known; choose one of: csv, json, parquet"):
        render(RECORDS, "xml")


def test_witnesses_are_npy_files(tmp_path: Path) -> None:
    assert write_witnesses(RECORDS, tmp_path / "w") == 1
    array = np.load(tmp_path / "w" / "3.npy", allow_pickle=False)
    assert array.dtype == np.float32
    assert array.shape == (1, 2, 2)
    other = Record(3, 2, 2, Fraction(1, 10), Verdict(Status.FALSIFIED, "pgd", witness=torch.zeros(1, 2, 2)))
    write_witnesses([*RECORDS, other], tmp_path / "v")
    assert (tmp_path / "v" / "1_10" / "3.npy").is_file()
    assert (tmp_path / "v" / "8_255" / "3.npy").is_file()


def test_an_unwritable_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="Choose another directory"):
        write_witnesses(RECORDS, tmp_path / "file" / "w")

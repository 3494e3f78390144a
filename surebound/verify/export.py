"""Records as CSV, JSON or Parquet, and witnesses as .npy files."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from surebound.errors import InputError, MissingExtraError, StoreError
from surebound.search.record import Record

COLUMNS = (
    "index",
    "label",
    "prediction",
    "eps",
    "status",
    "stage",
    "margin_bound",
    "float_sound",
    "seconds",
    "read_as",
)
FORMATS = ("csv", "json", "parquet")


def row(record: Record) -> dict[str, Any]:
    """Return the columns of one record: an unknown bound is None, the radius an exact fraction as text.

    ``read_as`` is the class that the network gives the counterexample.
    """
    verdict = record.verdict
    asked = record.index, record.label, record.prediction, str(record.eps)
    bound = verdict.bound if math.isfinite(verdict.bound) else None
    found = verdict.status.value, verdict.stage, bound, verdict.float_sound, verdict.seconds, verdict.read_as
    return dict(zip(COLUMNS, (*asked, *found), strict=True))


def render(records: Iterable[Record], format: str) -> bytes:
    """Render the records in one of ``FORMATS``.

    >>> render([], "csv").decode().strip()
    'index,label,prediction,eps,status,stage,margin_bound,float_sound,seconds,read_as'
    """
    rows = [row(record) for record in records]
    if format == "csv":
        return _csv(rows)
    if format == "json":
        return (json.dumps(rows, indent=1, allow_nan=False) + "\n").encode()
    if format == "parquet":
        return _parquet(rows)
    raise InputError(f"format {format!r} is not known; choose one of: {', '.join(FORMATS)}")


def _csv(rows: Sequence[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for values in rows:
        writer.writerow({**values, "float_sound": str(values["float_sound"]).lower()})
    return text.getvalue().encode()


def _parquet(rows: Sequence[dict[str, Any]]) -> bytes:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingExtraError("pyarrow", "parquet", "Parquet export") from error
    kinds = (
        pa.int64(), pa.int64(), pa.int64(), pa.string(), pa.string(),
        pa.string(), pa.float64(), pa.bool_(), pa.float64(), pa.int64(),
    )  # fmt: skip
    schema = pa.schema(list(zip(COLUMNS, kinds, strict=True)))
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), buffer)
    return buffer.getvalue()


def write_witnesses(records: Iterable[Record], directory: str | Path) -> int:
    """Write each counterexample as INDEX.npy, float32 (C, H, W); with several radii, in EPS/INDEX.npy.

    Returns how many were written. The radius in a directory's name has its fraction bar as an underscore.
    """
    found = [record for record in records if record.verdict.witness is not None]
    directory = Path(directory)
    several = len({record.eps for record in found}) > 1
    try:
        for record in found:
            folder = directory / str(record.eps).replace("/", "_") if several else directory
            folder.mkdir(parents=True, exist_ok=True)
            witness = record.verdict.witness
            if witness is not None:
                np.save(folder / f"{record.index}.npy", witness.numpy(), allow_pickle=False)
    except OSError as error:
        raise StoreError(
            f"witnesses could not be written to {directory}: {error}. Choose another directory."
        ) from error
    return len(found)

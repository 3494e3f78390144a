"""How a record lies in a row of the results store."""

from __future__ import annotations

import hashlib
import io
import json
import zlib
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import torch

from surebound.search.record import Record
from surebound.verdict import Status, Verdict

COLUMNS = (
    "idx, label, prediction, eps, status, stage, bound, float_sound, seconds, stage_seconds, detail, witness, example, "
    "cascade, code, written"
)

#: Where the times of the stages stand, which hold the seal.
_TIMES = 9


def sealed(subject: tuple[str, str], row: Sequence[object]) -> list[object]:
    """Return a row, ``COLUMNS`` and the class of its witness, with a seal of all of it beside the stages' times.

    SQLite notices a damaged page only where its structure suffers; a digit of a radius is not structure.
    """
    kept = list(row)
    kept[_TIMES] = json.dumps({"times": row[_TIMES], "seal": _seal(subject, row)})
    return kept


def opened(subject: tuple[str, str], row: Sequence[object]) -> Record:
    """Return the record of a stored row; raise ValueError if it makes none, or is not what was written.

    Rows of earlier stores have no seal.
    """
    plain, found = list(row), json.loads(str(row[_TIMES]))
    plain[_TIMES] = found["times"] if isinstance(found, dict) else found
    record = _record_of(plain)
    if isinstance(found, dict) and found["seal"] != _seal(subject, plain):
        raise ValueError(f"the row of example {row[0]} at eps {row[3]} is not what was written")
    return record


def _seal(subject: tuple[str, str], row: Sequence[object]) -> str:
    # NaN becomes NULL in SQLite; lists and tuples are the same in JSON.
    plain = [None if value != value else value for value in row]
    plain[_TIMES] = json.dumps(row[_TIMES])
    return hashlib.sha256(repr((tuple(subject), plain)).encode()).hexdigest()[:32]


def pack(witness: torch.Tensor | None) -> bytes | None:
    """Encode a witness as a compressed .npy."""
    if witness is None:
        return None
    buffer = io.BytesIO()
    np.save(buffer, witness.detach().cpu().numpy(), allow_pickle=False)
    return zlib.compress(buffer.getvalue())


def unpack(blob: bytes | None) -> torch.Tensor | None:
    """Decode what ``pack`` encoded."""
    if blob is None:
        return None
    return torch.from_numpy(np.load(io.BytesIO(zlib.decompress(blob)), allow_pickle=False))


def radius_of(text: object) -> Fraction:
    """Read a stored radius; raise ValueError when it is none."""
    try:
        return Fraction(str(text))
    except ZeroDivisionError:
        raise ValueError(f"eps {text!r} is no number") from None


def _record_of(row: Sequence[object]) -> Record:
    idx, label, prediction, eps, status, stage, bound, sound, seconds, times, detail, witness, example = row[:13]
    read_as = row[16]
    verdict = Verdict(
        status=Status(status),
        stage=str(stage),
        bound=float("inf") if bound is None else float(str(bound)),
        witness=unpack(witness if isinstance(witness, bytes) else None),
        seconds=float(str(seconds)),
        float_sound=bool(sound),
        detail=str(detail),
        read_as=None if read_as is None else int(str(read_as)),
    )
    spent = tuple((str(name), float(value)) for name, value in _pairs(times))
    return Record(
        index=int(str(idx)),
        label=int(str(label)),
        prediction=int(str(prediction)),
        eps=radius_of(eps),
        verdict=verdict,
        example=str(example),
        stage_seconds=spent,
    )


def _pairs(times: object) -> list[tuple[object, float]]:
    if not isinstance(times, list):
        raise ValueError(f"times {times!r} are no list")
    return [(name, value) for name, value in times]

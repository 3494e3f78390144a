"""How a record lies in a row of the results store."""

from __future__ import annotations

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
    "idx, label, prediction, eps, status, stage, bound, float_sound, seconds, stage_seconds, detail, witness, example"
)


def pack(witness: torch.Tensor | None) -> bytes | None:
    """A witness as a compressed .npy."""
    if witness is None:
        return None
    buffer = io.BytesIO()
    np.save(buffer, witness.detach().cpu().numpy(), allow_pickle=False)
    return zlib.compress(buffer.getvalue())


def unpack(blob: bytes | None) -> torch.Tensor | None:
    """The inverse of ``pack``."""
    if blob is None:
        return None
    return torch.from_numpy(np.load(io.BytesIO(zlib.decompress(blob)), allow_pickle=False))


def radius_of(text: object) -> Fraction:
    """A stored radius; raises ValueError when it is none."""
    try:
        return Fraction(str(text))
    except ZeroDivisionError:
        raise ValueError(f"eps {text!r} is no number") from None


def record_of(row: Sequence[object]) -> Record:
    """A record from ``COLUMNS`` and the class of its witness; raises ValueError when they do not make one."""
    idx, label, prediction, eps, status, stage, bound, sound, seconds, times, detail, witness, example, read_as = row
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
    spent = tuple((str(name), float(value)) for name, value in json.loads(str(times)))
    return Record(
        index=int(str(idx)),
        label=int(str(label)),
        prediction=int(str(prediction)),
        eps=radius_of(eps),
        verdict=verdict,
        example=str(example),
        stage_seconds=spent,
    )

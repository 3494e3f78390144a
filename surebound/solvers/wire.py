"""Problems and outcomes as bytes between a process and its solver: arrays and text, nothing is unpickled."""

from __future__ import annotations

import dataclasses
import io
import json
import math
from typing import Any

import numpy as np
import scipy  # its parts are loaded when they are used: `sparse` takes as long as a small query
from numpy.typing import NDArray

from surebound.solvers.outcome import SolverOutcome, SolverStatus
from surebound.solvers.problem import Limits, MathProgram

LENGTH_BYTES = 8
_ARRAYS = ("objective", "row_lower", "row_upper", "lower", "upper", "integral")


def frame(payload: bytes) -> bytes:
    """Return a message with its length in front."""
    return len(payload).to_bytes(LENGTH_BYTES, "big") + payload


def encode_request(problem: MathProgram, limits: Limits) -> bytes:
    """Encode a problem and its limits."""
    arrays = {name: getattr(problem, name) for name in _ARRAYS}
    matrix = problem.matrix
    arrays.update(indptr=matrix.indptr, indices=matrix.indices, data=matrix.data, shape=np.array(matrix.shape))
    arrays["offset"] = np.array(problem.offset)
    seconds = limits.seconds if math.isfinite(limits.seconds) else None
    return _pack(arrays, {**dataclasses.asdict(limits), "seconds": seconds})


def decode_request(payload: bytes) -> tuple[MathProgram, Limits]:
    """Decode what ``encode_request`` encoded."""
    arrays, fields = _unpack(payload)
    matrix = scipy.sparse.csr_array(
        (arrays["data"], arrays["indices"], arrays["indptr"]), shape=tuple(int(n) for n in arrays["shape"])
    )
    problem = MathProgram(matrix=matrix, offset=float(arrays["offset"]), **{name: arrays[name] for name in _ARRAYS})
    seconds = fields.pop("seconds")
    return problem, Limits(seconds=math.inf if seconds is None else seconds, **fields)


def encode_outcome(outcome: SolverOutcome) -> bytes:
    """Encode a solver's answer."""
    arrays = {"numbers": np.array([outcome.objective, outcome.dual_bound])}
    for name in ("point", "row_duals"):
        value = getattr(outcome, name)
        if value is not None:
            arrays[name] = value
    return _pack(arrays, {"status": outcome.status.name, "detail": outcome.detail})


def decode_outcome(payload: bytes) -> SolverOutcome:
    """Decode what ``encode_outcome`` encoded."""
    arrays, fields = _unpack(payload)
    return SolverOutcome(
        SolverStatus[fields["status"]],
        objective=float(arrays["numbers"][0]),
        dual_bound=float(arrays["numbers"][1]),
        point=arrays.get("point"),
        row_duals=arrays.get("row_duals"),
        detail=fields["detail"],
    )


def _pack(arrays: dict[str, NDArray[Any]], fields: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    text = np.frombuffer(json.dumps(fields).encode(), dtype=np.uint8)
    np.savez(buffer, allow_pickle=False, fields=text, **arrays)
    return buffer.getvalue()


def _unpack(payload: bytes) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    with np.load(io.BytesIO(payload), allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    return arrays, json.loads(arrays.pop("fields").tobytes())

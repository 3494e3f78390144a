"""Is a counterexample one? Inside the box of the query, and wrong in onnxruntime, whoever found it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnxruntime

#: A point may leave the box by the rounding of its own decimal form, no more.
_ROUNDING = 1e-6
_VALUE = re.compile(r"\(\s*X_(\d+)\s+([-+.\deE]+)\s*\)")
_BOUND = re.compile(r"\((<=|>=)\s+X_(\d+)\s+([-+.\deE]+)\)")


def checked(verdict: str, answer: str, onnx: Path, vnnlib: Path, label: int) -> str:
    """ "confirmed" or what is wrong with a sat answer; nothing for others (they are compared with each other)."""
    if verdict != "sat":
        return ""
    point = {int(i): float(v) for i, v in _VALUE.findall(answer)}
    lower, upper = _box(vnnlib)
    if set(point) != set(range(len(lower))):
        return "wrong: no counterexample was given"
    x = np.array([point[i] for i in range(len(lower))], dtype=np.float32)
    if (x < lower - _ROUNDING).any() or (x > upper + _ROUNDING).any():
        return "wrong: the counterexample is outside the box"
    session = onnxruntime.InferenceSession(str(onnx), providers=["CPUExecutionProvider"])
    entry = session.get_inputs()[0]
    outputs = session.run(None, {entry.name: x.reshape([d if isinstance(d, int) else 1 for d in entry.shape])})
    y = np.asarray(outputs[0]).reshape(-1)
    margin = float(np.delete(y, label).max() - y[label])
    return "confirmed" if margin >= 0 else f"wrong: the label wins by {-margin:g}"


def _box(vnnlib: Path) -> tuple[np.ndarray, np.ndarray]:
    bounds: dict[str, dict[int, float]] = {"<=": {}, ">=": {}}
    for relation, place, value in _BOUND.findall(vnnlib.read_text(encoding="utf-8")):
        bounds[relation][int(place)] = float(value)
    size = range(len(bounds["<="]))
    return np.array([bounds[">="][i] for i in size]), np.array([bounds["<="][i] for i in size])

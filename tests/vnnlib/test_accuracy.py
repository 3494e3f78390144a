"""onnxruntime's own functions lie within the errors that the rules state: what float32 proofs about ONNX rest on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from surebound.bounds.interval import propagate
from surebound.graph.onnx.file import parse_model
from surebound.graph.onnx.importer import network_of
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.vnnlib.runtime import Session
from tests.vnnlib.onnx_cases import Case, one

COUNT = 4000
FUNCTIONS: list[tuple[str, int, dict[str, Any]]] = [
    *[(name, 13, {}) for name in (
        "Sigmoid", "Tanh", "Exp", "Erf", "Softplus", "Elu", "Selu", "Softsign", "Sin", "Cos", "Atan", "Sinh", "Cosh",
        "Asinh", "HardSigmoid", "Log", "Sqrt", "Reciprocal", "Softmax", "LogSoftmax",
    )],
    ("Celu", 13, {"alpha": 0.7}), ("LeakyRelu", 13, {"alpha": 0.3}), ("Gelu", 20, {}), ("Mish", 18, {}),
    ("HardSwish", 14, {}), ("Swish", 24, {}),
]  # fmt: skip


def inside(case: Case, x: np.ndarray) -> torch.Tensor:
    """Where onnxruntime's value lies in our bounds over the point, or has overflowed: (N,) bool."""
    model = parse_model(case.model())
    y = torch.from_numpy(Session(model).run({"x": x})["y"].reshape(1, -1).copy())
    point = torch.from_numpy(x[:, :] if x.ndim == 2 else x)
    bounds = propagate(network_of(model).program, Interval.point(point), Soundness.DEPLOYED)
    return bounds.contains(y) | ~y.isfinite()


@pytest.mark.parametrize(("name", "opset", "attributes"), FUNCTIONS, ids=lambda v: v if isinstance(v, str) else None)
def test_functions(name: str, opset: int, attributes: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    for scale in (1e-6, 1e-3, 1.0, 10.0, 40.0):
        x = (rng.normal(size=(1, COUNT)) * scale).astype(np.float32)
        if name in ("Log", "Sqrt", "Reciprocal"):
            x = np.abs(x) + np.float32(1e-7)
        assert bool(inside(one(name, (1, COUNT), opset=opset, **attributes), x).all()), scale


def test_batch_norm_with_large_means() -> None:
    rng = np.random.default_rng(0)
    scale, shift = rng.normal(size=(2, 64)).astype(np.float32)
    mean = (rng.normal(size=64) * 1000).astype(np.float32)
    var = rng.uniform(1e-4, 4, 64).astype(np.float32)
    x = (mean + rng.normal(size=64)).astype(np.float32)[None]
    assert bool(inside(one("BatchNormalization", (1, 64), scale, shift, mean, var), x).all())


def test_long_sums() -> None:
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(3000, 20)).astype(np.float32) * 100
    x = (rng.normal(size=(1, 3000)) * 100).astype(np.float32)
    assert bool(inside(one("Gemm", (1, 3000), weight), x).all())

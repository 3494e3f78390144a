"""Quantised networks: what onnxruntime computes in whole numbers, fused or not, lies within the bounds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnxruntime
import pytest
import torch
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from torch import Tensor

import surebound as sb
from tests.graph.test_quantised import IMAGES, assert_within_bounds, network

pytestmark = pytest.mark.filterwarnings("ignore")  # the quantiser's own


class Calibration(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, name: str) -> None:
        self.rows: Iterator[dict[str, np.ndarray]] = iter([{name: x[None].numpy()} for x in IMAGES])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.rows, None)


@pytest.mark.parametrize("kind", ["int8", "uint8", "per channel", "dynamic"])
def test_executions_lie_within_the_bounds(kind: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    plain, path = str(tmp_path / "float.onnx"), str(tmp_path / "whole.onnx")
    sb.vnnlib.write_network(network(), IMAGES[:1], plain)
    name = onnxruntime.InferenceSession(plain).get_inputs()[0].name
    if kind == "dynamic":
        quantize_dynamic(plain, path)
    else:
        type_ = QuantType.QUInt8 if kind == "uint8" else QuantType.QInt8
        quantize_static(plain, path, Calibration(name), quant_format=QuantFormat.QDQ, per_channel=kind == "per channel",
                        activation_type=type_, weight_type=type_)  # fmt: skip
    net, fused = sb.load(path), onnxruntime.InferenceSession(path)  # with all of its optimisations

    def run(points: Tensor) -> Tensor:
        return torch.cat([torch.from_numpy(fused.run(None, {name: p[None].numpy()})[0]) for p in points])

    assert_within_bounds(net, IMAGES[:3], run)


def test_a_quantised_network_is_proved(tmp_path) -> None:  # type: ignore[no-untyped-def]
    plain, path = str(tmp_path / "float.onnx"), str(tmp_path / "whole.onnx")
    sb.vnnlib.write_network(network(), IMAGES[:1], plain)
    quantize_static(plain, path, Calibration(onnxruntime.InferenceSession(plain).get_inputs()[0].name))
    net, x = sb.load(path), IMAGES[:6]
    records = sb.verify(net, sb.LinfBall(x, "1/500", (0, 1)), net(x).argmax(1), timeout=10)
    assert sum(record.verdict.status is sb.Status.ROBUST for record in records) >= 3

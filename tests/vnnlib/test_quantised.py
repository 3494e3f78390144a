"""Quantised networks: what onnxruntime computes in whole numbers, fused or not, lies within the bounds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnxruntime
import pytest
import torch
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from torch import nn

import surebound as sb

IMAGES = torch.rand(24, 1, 5, 5, generator=torch.Generator().manual_seed(0))

pytestmark = pytest.mark.filterwarnings("ignore")  # the quantiser's own


class Calibration(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, name: str) -> None:
        self.rows: Iterator[dict[str, np.ndarray]] = iter([{name: x[None].numpy()} for x in IMAGES])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.rows, None)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(75, 8), nn.ReLU(), nn.Linear(8, 3)
    return nn.Sequential(*layers).requires_grad_(False).eval()


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
    x = IMAGES[:3]
    spec = sb.LinearSpec(torch.cat([torch.eye(3), -torch.eye(3)]))
    draw = torch.Generator().manual_seed(1)
    for eps, width in (("0", 0.05), ("1/50", 1.0)):
        region = sb.LinfBall(x, eps, (0, 1))
        interval, box = sb.interval_bounds(net, region), region.interval()
        crown = sb.worst_margins(net, region, spec=spec, method="crown")
        assert float((crown[:, :3] + crown[:, 3:]).max()) < width
        for number in range(20):
            share = torch.rand(x.shape, generator=draw)
            points = box.lower + (share.round() if number % 2 else share) * (box.upper - box.lower)
            z = torch.cat([torch.from_numpy(fused.run(None, {name: p[None].numpy()})[0]) for p in points])
            assert bool(((interval.lower <= z) & (z <= interval.upper)).all())
            assert bool((torch.cat([z, -z], 1) <= crown).all())


def test_a_quantised_network_is_proved(tmp_path) -> None:  # type: ignore[no-untyped-def]
    plain, path = str(tmp_path / "float.onnx"), str(tmp_path / "whole.onnx")
    sb.vnnlib.write_network(network(), IMAGES[:1], plain)
    quantize_static(plain, path, Calibration(onnxruntime.InferenceSession(plain).get_inputs()[0].name))
    net, x = sb.load(path), IMAGES[:6]
    records = sb.verify(net, sb.LinfBall(x, "1/500", (0, 1)), net(x).argmax(1), timeout=10)
    assert sum(record.verdict.status is sb.Status.ROBUST for record in records) >= 3

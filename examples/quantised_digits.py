"""Certify a network of whole numbers: digits, trained for proofs in float32, quantised to 8 bits by onnxruntime.

Run it with `python examples/quantised_digits.py` (needs `surebound[onnx]`). What is proved of the quantised network is
proved of its file as it is: through rounding to whole numbers, saturation and the scales, for every execution. Both
networks are asked the same question.
"""

from __future__ import annotations

import tempfile
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from torch import Tensor, nn

import surebound as sb


class Calibration(CalibrationDataReader):  # type: ignore[misc]
    """Training images, one by one, from which onnxruntime chooses the scales."""

    def __init__(self, images: Tensor, name: str) -> None:
        self._feeds = iter([{name: image[None].numpy()} for image in images])

    def get_next(self) -> dict[str, Any] | None:
        return next(self._feeds, None)


def quantised(net: nn.Module, images: Tensor, folder: Path) -> nn.Module:
    """Write a network as ONNX, quantise weights and values to 8 bits, and load the file."""
    plain, small = folder / "float.onnx", folder / "quantised.onnx"
    sb.vnnlib.write_network(net, images[:1], plain)
    name = onnxruntime.InferenceSession(plain).get_inputs()[0].name
    quantize_static(
        plain,
        small,
        Calibration(images, name),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    return sb.load(small)


def main(steps: int = 1500, images: int = 60, eps: str = "1/50") -> dict[str, tuple[float, float]]:
    """Train and quantise; return, for both networks, the shares of test images that are classified and proved."""
    digits = sb.data.load("digits")
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 10))
    plan = sb.Plan(steps=steps, eps_train=Fraction(1, 20), warmup=steps // 10, ramp=steps // 2)
    sb.train(net, digits, sb.training.IBP(), plan)
    net.eval().requires_grad_(False)
    x, labels = digits.test.batch(torch.arange(images))
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        small = quantised(net, digits.train.batch(torch.arange(100))[0], Path(folder))
        for name, network in (("float32", net), ("8 bits", small)):
            summary = sb.verify(network, sb.LinfBall(x, eps, clip=(0, 1)), labels, timeout=10).summary()
            found[name] = 1 - summary.clean_error, 1 - summary.verified_error
            right, proved = (f"{share:.1%}" for share in found[name])
            print(f"{name}: {right} of {images} digits right, {proved} proved when every pixel may change by {eps}")
        same = float(np.mean((net(x).argmax(1) == small(x).argmax(1)).numpy()))
        print(f"the two agree on {same:.1%} of them")
    return found


if __name__ == "__main__":
    main()

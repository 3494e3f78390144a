"""PyTorch's quantised programs: their executions, and what they mean in exact arithmetic, lie within the bounds."""

from __future__ import annotations

import copy
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn
from torch.ao.quantization import (
    MinMaxObserver,
    PerChannelMinMaxObserver,
    QConfig,
    QConfigMapping,
    get_default_qat_qconfig_mapping,
)
from torch.ao.quantization.quantize_fx import (
    _convert_to_reference_decomposed_fx,
    convert_fx,
    convert_to_reference_fx,
    prepare_fx,
    prepare_qat_fx,
)

import surebound as sb
from surebound.errors import GraphError, UnsupportedOperatorError

IMAGES = torch.rand(24, 1, 5, 5, generator=torch.Generator().manual_seed(0))
OF_WEIGHTS = {
    "per channel": PerChannelMinMaxObserver.with_args(dtype=torch.qint8, qscheme=torch.per_channel_symmetric),
    "per tensor": MinMaxObserver.with_args(dtype=torch.qint8, qscheme=torch.per_tensor_symmetric),
}

pytestmark = pytest.mark.filterwarnings("ignore")  # the quantiser's own


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(75, 8), nn.ReLU(), nn.Linear(8, 3)
    return nn.Sequential(*layers).requires_grad_(False).eval()


def prepared(kind: str) -> nn.Module:
    setting = QConfig(MinMaxObserver.with_args(dtype=torch.quint8), OF_WEIGHTS[kind])
    made: nn.Module = prepare_fx(copy.deepcopy(network()), QConfigMapping().set_global(setting), (IMAGES[:1],))
    made(IMAGES)
    return made


def assert_within_bounds(net: nn.Module, x: Tensor, run: Callable[[Tensor], Tensor]) -> None:
    """What ``run`` computes at points and corners of balls around images lies within narrow bounds of the network."""
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
            z = run(points)
            assert bool(((interval.lower <= z) & (z <= interval.upper)).all())
            assert bool((torch.cat([z, -z], 1) <= crown).all())


@pytest.mark.parametrize("kind", OF_WEIGHTS)
def test_executions_lie_within_the_bounds(kind: str) -> None:
    net, x = _convert_to_reference_decomposed_fx(prepared(kind)), IMAGES[:3]
    assert float((net(x) - network()(x)).abs().max()) > 1e-5, "it is another network than the float one"
    assert_within_bounds(net, x, net)


def test_a_quantised_network_is_proved() -> None:
    net, x = _convert_to_reference_decomposed_fx(prepared("per channel")), IMAGES[:6]
    records = sb.verify(net, sb.LinfBall(x, "1/500", (0, 1)), net(x).argmax(1), timeout=10)
    assert sum(record.verdict.status is sb.Status.ROBUST for record in records) >= 3


class Calls(nn.Module):
    """A value that is quantised and read again, per tensor or for each of its columns."""

    def __init__(self, dtype: torch.dtype, channels: bool, fake: bool) -> None:
        super().__init__()
        self.dtype, self.channels, self.fake = dtype, channels, fake
        self.ends = (-128, 127) if dtype is torch.int8 else (0, 255)
        self.register_buffer("scales", torch.tensor([0.03, 0.05, 0.11] if channels else [0.03]))
        self.register_buffer("zeros", torch.tensor([3, -7, 0] if channels else [3], dtype=torch.int32))
        if dtype is torch.uint8:
            self.zeros = self.zeros.abs()

    def forward(self, x: Tensor) -> Tensor:
        calls, given = torch.ops.quantized_decomposed, (self.scales, self.zeros)
        if self.channels:
            if self.fake:
                return torch.fake_quantize_per_channel_affine(x, *given, 1, *self.ends)
            q = calls.quantize_per_channel(x, *given, 1, *self.ends, self.dtype)
            return calls.dequantize_per_channel(q, *given, 1, *self.ends, self.dtype)  # type: ignore[no-any-return]
        if self.fake:
            return torch.fake_quantize_per_tensor_affine(x, 0.03, 3, *self.ends)
        q = calls.quantize_per_tensor(x, 0.03, 3, *self.ends, self.dtype)
        return calls.dequantize_per_tensor(q, 0.03, 3, *self.ends, self.dtype)  # type: ignore[no-any-return]


def meant(net: Calls, x: float, column: int) -> Fraction:
    """Return (clip(round(x / s) + z) - z) s in fractions; halves are rounded to even ones."""
    at = column if net.channels else 0
    scale, zero = Fraction(float(net.scales[at])), int(net.zeros[at])
    whole = min(max(round(Fraction(x) / scale) + zero, net.ends[0]), net.ends[1])
    return (whole - zero) * scale


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize("fake", [False, True])
def test_rounding_and_saturation_are_exact(dtype: torch.dtype, channels: bool, fake: bool) -> None:
    net = Calls(dtype, channels, fake)
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(2)) * 6  # some beyond the type's ends
    for eps in (0, Fraction(1, 25)):
        bounds = sb.interval_bounds(net, sb.LinfBall(x, eps))
        for share in (-1, 0, 1):
            for row in range(len(x)):
                for column in range(3):
                    at = Fraction(float(x[row, column])) + share * Fraction(eps)
                    exact = meant(net, at, column)  # type: ignore[arg-type]
                    slack = abs(exact) * Fraction(1, 2**22)  # 0.03 as a float32 number, or as the code's
                    low, high = (Fraction(float(end[row, column])) for end in (bounds.lower, bounds.upper))
                    assert low - slack <= exact <= high + slack
        z = net(x)
        assert bool(((bounds.lower <= z) & (z <= bounds.upper)).all())
        if eps == 0:
            assert float((bounds.upper - bounds.lower).max()) < 1e-3, "one whole number, where nothing varies"


def test_unfinished_and_packed_networks_say_what_to_do() -> None:
    region = sb.LinfBall(IMAGES[:1], "1/50")
    trained = prepare_qat_fx(network().train(), get_default_qat_qconfig_mapping("fbgemm"), (IMAGES[:1],)).eval()
    for net, message in (
        (prepared("per tensor"), "prepared for quantisation, not converted"),
        (trained, "prepared for quantisation, not converted"),
        (convert_fx(prepared("per tensor")), "packed integers"),
        (convert_to_reference_fx(prepared("per tensor")), "aten.quantize_per_tensor"),
        (convert_to_reference_fx(prepared("per channel")), "tensors of quantised dtypes"),
    ):
        with pytest.raises(
            (GraphError, UnsupportedOperatorError), match=message + r"[\s\S]*convert_pt2e.*quantise an ONNX export"
        ):
            sb.interval_bounds(net, region)

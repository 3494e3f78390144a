"""Spellings of real networks: what tracing makes of modules and functionals has rules, and the bounds hold."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import surebound as sb
from surebound.bounds import propagate
from surebound.graph import trace

Function = Callable[[Tensor, Tensor], Tensor]


class Many(nn.Module):
    """Many functions of one input side by side, so that one trace covers all of them."""

    def __init__(self, functions: list[Function]) -> None:
        super().__init__()
        self.functions = functions
        self.w = nn.Parameter(torch.linspace(0.5, 2.0, 16).reshape(4, 4), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([f(x, self.w).reshape(x.shape[0], -1) for f in self.functions], 1)


def _write_column(x: Tensor) -> Tensor:
    x = x.clone()
    x[:, 1] = 0.0
    x[:, 2:4] = x[:, :2] * 2
    return x


def _write_view(x: Tensor) -> Tensor:
    x = x.clone()
    view = x[:, :2]
    view.relu_()
    return x


ACTIVATIONS: list[Function] = [
    *[
        lambda x, w, f=f: f(x - 1)
        for f in (
            F.relu, F.leaky_relu, F.elu, F.selu, F.celu, F.sigmoid, F.tanh, F.hardtanh, F.relu6, F.hardsigmoid,
            F.hardswish, F.softplus, F.silu, F.mish, F.logsigmoid, F.softsign, F.gelu, F.hardshrink, F.softshrink,
            F.tanhshrink, torch.exp, torch.abs, torch.square, torch.sin, torch.cos, torch.erf, torch.atan, torch.sign,
        )
    ],
    *[lambda x, w, f=f: f(x) for f in (torch.log, torch.log1p, torch.sqrt, torch.rsqrt, torch.reciprocal)],
    lambda x, w: F.gelu(x - 1, approximate="tanh"),
    lambda x, w: F.prelu(x - 1, w[0]),
    lambda x, w: F.threshold(x, 0.5, 0.25),
    lambda x, w: F.softmax(input=x, dim=1),
    lambda x, w: F.log_softmax(x, dim=-1),
    lambda x, w: F.softmin(x, 1),
    lambda x, w: torch.logsumexp(x, 1),
    lambda x, w: F.glu(x, 1),
    lambda x, w: x**2 + x**0.5 - x.pow(3) + x**-1 + 2**x + x ** w[0],
    lambda x, w: torch.sqrt((x - 0.5).square().sum(1)) + ((x - 0.5) ** 2).mean(1).div(4).sqrt(),
    lambda x, w: ((x - 0.5) ** 2 + (x - 0.25) ** 2).mul(2).sqrt() + torch.log(torch.exp(x).sum(1, keepdim=True)),
    lambda x, w: F.normalize(x, dim=1) + x.norm(dim=1, keepdim=True),
]  # fmt: skip

ARITHMETIC: list[Function] = [
    lambda x, w: x + w[0] + 1 - (1 - x) + (w[1] - x) + torch.rsub(x, w[0]),
    lambda x, w: torch.add(input=x, other=w[0], alpha=2) - torch.sub(x, other=x * 0.5, alpha=3),
    lambda x, w: 2 * x * w[0] / 3 / w[1] + 3 / x + w[0] / x + x * x - x / (x + 2) - (-x),
    lambda x, w: x.clone().add_(1).mul_(2).sub_(w[0]).div_(4),
    lambda x, w: x * torch.tensor(2.0) + torch.full_like(x, 2) * torch.ones_like(x) - torch.zeros_like(x),
    lambda x, w: x + x.new_zeros(x.shape) + torch.relu(torch.ones_like(x)),
    lambda x, w: torch.minimum(x, w[0]) + torch.maximum(x, w[1]) + torch.max(x, w[0]) + torch.clamp(x, 0.2, 0.7),
    lambda x, w: x.clamp(min=0.3) + x.clamp_max(0.6) + x.clamp(w[0] - 1, w[1]) + torch.clip(x, max=0.5),
    lambda x, w: torch.where(w[0] > 1, x, w[1]) + torch.where(w[0] > 1, x, 0.0) + x.masked_fill(w[0] > 1, 2.0),
    lambda x, w: torch.where(x > 0.5, x, w[0]) + (x > 0.25).float() * x + (x > 0.5) * x,
    lambda x, w: x.sum(1) + x.mean(dim=1) + x.amax(1) + x.amin(1) + x.max(1).values + x.min(dim=1)[0],
    lambda x, w: x.max() + x.min() + x.sum() + x.mean() + x.cumsum(1) + x.topk(2)[0][:, :1] + x.sort()[0],
]

LINEAR: list[Function] = [
    lambda x, w: F.linear(x, w, w[0]) + x @ w + torch.mm(x, w) + torch.addmm(w[0], x, w),
    lambda x, w: (x @ w[0]).unsqueeze(1) + torch.mv(x, w[1]).unsqueeze(1),
    lambda x, w: (w @ x.unsqueeze(2)).squeeze(2) + torch.einsum("bi,ji->bj", x, w),
    lambda x, w: torch.bmm(x.unsqueeze(1), w.expand(x.shape[0], 4, 4)).squeeze(1),
    lambda x, w: x.unsqueeze(2) @ x.unsqueeze(1),
]

SHAPES: list[Function] = [
    lambda x, w: torch.cat([x, x, w[:1].expand(x.shape[0], 4)], dim=1),
    lambda x, w: torch.stack([x, -x], 1).flatten(1),
    lambda x, w: x.split(2, 1)[1] + x.chunk(2, 1)[0] + x.split([1, 3], 1)[1][:, :2],
    lambda x, w: x.unbind(1)[0] + x[:, 1] + x[:, -1],
    lambda x, w: torch.cat([x[:, 1:3], x[:, ::2], x[:, [0, 2]], x[:, torch.tensor([True, False, True, False])]], 1),
    lambda x, w: F.pad(x, (1, 2)) + F.pad(x, (2, 1), value=3.0),
    lambda x, w: F.pad(x.unsqueeze(1), (1, 1), mode="reflect") + F.pad(x.unsqueeze(1), (1, 1), mode="replicate"),
    lambda x, w: x.flip(1) + x.roll(1, 1) + x.repeat(1, 2)[:, :4] + x.unsqueeze(1).expand(-1, 3, -1).sum(1),
    lambda x, w: x.gather(1, torch.zeros(x.shape[0], 1, dtype=torch.long)) + x.index_select(1, torch.tensor([3])),
    lambda x, w: x.view(-1, 2, 2).transpose(1, 2).reshape(x.shape[0], -1) + x.unflatten(1, (2, 2)).flatten(1),
    lambda x, w: _write_column(x) + _write_view(x - 0.5),
    lambda x, w: F.dropout(x, 0.5, training=False).detach().to(torch.float32).contiguous(),
]

IMAGES: list[Function] = [
    lambda x, w: F.max_pool2d(x, 3, 2, 1),
    lambda x, w: F.max_pool2d(x, 2, ceil_mode=True),
    lambda x, w: F.avg_pool2d(x, 2) + F.adaptive_avg_pool2d(x, 3) + F.adaptive_max_pool2d(x, 3),
    lambda x, w: x.mean((2, 3)) + F.adaptive_avg_pool2d(x, 1).flatten(1),
    lambda x, w: F.interpolate(x, scale_factor=2) + F.interpolate(x, size=(12, 12), mode="bilinear"),
    lambda x, w: F.pixel_shuffle(x, 2),
    lambda x, w: x.permute(0, 2, 3, 1).flatten(1) + x.mT.flatten(1) + x.movedim(1, -1).flatten(1),
    lambda x, w: F.local_response_norm(x, 2),
    lambda x, w: F.conv2d(x, w.reshape(4, 4, 1, 1), padding="same") + F.unfold(x, 1).reshape(-1, 4, 6, 6),
    lambda x, w: F.batch_norm(x, w[0], w[1], w[2], w[3]),
]

MODULES: list[tuple[str, nn.Module, tuple[int, ...]]] = [
    (
        "1d",
        nn.Sequential(
            nn.Conv1d(2, 3, 3, 2, 1),
            nn.BatchNorm1d(3),
            nn.ELU(),
            nn.AvgPool1d(2),
            nn.MaxPool1d(2, 1),
            nn.ConvTranspose1d(3, 2, 2),
            nn.AdaptiveMaxPool1d(2),
            nn.Upsample(scale_factor=2),
        ),
        (2, 12),
    ),
    (
        "3d",
        nn.Sequential(
            nn.Conv3d(1, 2, 2, padding=1),
            nn.BatchNorm3d(2),
            nn.PReLU(2),
            nn.MaxPool3d(2),
            nn.ConvTranspose3d(2, 2, 2),
            nn.AvgPool3d(2),
            nn.AdaptiveAvgPool3d(1),
            nn.Flatten(),
        ),
        (1, 4, 4, 5),
    ),
    (
        "2d",
        nn.Sequential(
            nn.ReflectionPad2d(1),
            nn.Conv2d(1, 4, 3, groups=1),
            nn.InstanceNorm2d(4, track_running_stats=True),
            nn.Softplus(),
            nn.ZeroPad2d(1),
            nn.ReplicationPad2d(1),
            nn.PixelShuffle(2),
            nn.Dropout2d(),
            nn.UpsamplingBilinear2d(5),
            nn.Flatten(),
            nn.Linear(25, 3),
            nn.LogSoftmax(1),
        ),
        (1, 6, 6),
    ),
]


def _holds(network: nn.Module, low: Tensor, high: Tensor) -> None:
    network.eval()
    program = trace(network, low)
    for mode in (sb.Soundness.REAL, sb.Soundness.DEPLOYED):
        found = propagate(program, sb.Interval(low, high), mode)
        assert not found.lower.isnan().any() and found.upper.isfinite().all()
        g = torch.Generator().manual_seed(2)
        for i in range(8):
            t = torch.rand(low.shape, generator=g)
            x = torch.where(t > 0.5, high, low) if i % 2 else low + (high - low) * t
            with torch.no_grad():
                assert bool(found.contains(network(x)).all())


@pytest.mark.parametrize(
    "functions",
    [ACTIVATIONS, ARITHMETIC, LINEAR, SHAPES],
    ids=["activations", "arithmetic", "linear", "shapes"],
)
def test_functionals(functions: list[Function]) -> None:
    low = torch.linspace(0.1, 0.8, 8).reshape(2, 4)
    _holds(Many(functions), low, low + 0.125)


def test_functionals_of_images() -> None:
    low = torch.rand(2, 4, 6, 6, generator=torch.Generator().manual_seed(0))
    _holds(Many(IMAGES), low, low + 0.25)


@pytest.mark.parametrize(("name", "network", "shape"), MODULES, ids=[m[0] for m in MODULES])
def test_modules(name: str, network: nn.Module, shape: tuple[int, ...]) -> None:
    low = torch.rand((2, *shape), generator=torch.Generator().manual_seed(1))
    _holds(network, low, low + 0.125)


def test_a_square_is_recognised() -> None:
    """x * x of one tensor is never negative; of two tensors with the same bounds it may be."""

    class Product(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * x

    box = sb.Box(-torch.ones(1, 2), torch.ones(1, 2))
    assert bool((sb.interval_bounds(Product(), box).lower >= 0).all())


def test_conversion_between_dtypes_is_followed() -> None:
    class Mixed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x.double() * 3).to(torch.float32) + 1

    x = torch.full((1, 2), 0.1)
    _holds(Mixed(), x, x + 0.5)

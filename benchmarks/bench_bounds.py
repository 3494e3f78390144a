"""Interval bounds against the plain forward pass, batch 100, MNIST shapes, no gradients: time and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

import surebound as sb
from benchmarks.common import Benchmark, Measure, Race, peak_bytes, seconds
from surebound.graph import trace

BATCH = 100
SHAPE = (1, 28, 28)
NETS: dict[str, Callable[[], nn.Module]] = {
    "small": sb.models.small,
    "medium": sb.models.medium,
    "large": sb.models.large,
}


def benchmarks() -> Iterator[Benchmark]:
    """For each of the paper's networks; then tracing, and memory by depth."""
    x = torch.rand(BATCH, *SHAPE)
    region = sb.LinfBall(x, eps="1/10", clip=(0, 1))
    for name, build in NETS.items():
        model = build().eval()
        yield Race(
            name,
            {
                "forward": partial(forward, model, x),
                "bounds": partial(bounds, model, region, "none"),
                "deployed": partial(bounds, model, region, "deployed"),
            },
            {"bounds / forward": 2.3, "deployed / bounds": 1.3},
        )
    for name, build in NETS.items():
        yield Measure(f"{name}: tracing", "s", partial(tracing, build, x), limit=5.0)
    deep = {f"{depth} convolutions": partial(chain, depth) for depth in (4, 32)}
    for name, build in (NETS | deep).items():
        for soundness in ("none", "deployed"):
            sample = partial(activations_worth, build().eval(), region, soundness)
            yield Measure(f"{name}: peak memory, {soundness}", "largest activations", sample, limit=4.0, times=1)


@torch.no_grad()
def forward(model: nn.Module, x: Tensor) -> Tensor:
    """The baseline."""
    return model(x)  # type: ignore[no-any-return]


@torch.no_grad()
def bounds(model: nn.Module, region: sb.LinfBall, soundness: str) -> Tensor:
    """Bounds of all outputs, ready to be read."""
    return sb.interval_bounds(model, region, soundness).upper


def tracing(build: Callable[[], nn.Module], x: Tensor) -> float:
    """From a module to a Program, checks included."""
    model = build().eval()
    return seconds(lambda: trace(model, x))


def activations_worth(model: nn.Module, region: sb.LinfBall, soundness: str) -> float:
    """Peak memory of the bounds, in units of the largest tensor that the plain forward pass makes."""
    largest = 0

    def note(module: nn.Module, args: object, output: Tensor) -> None:
        nonlocal largest
        largest = max(largest, output.numel() * output.element_size())

    handles = [m.register_forward_hook(note) for m in model.modules() if not list(m.children())]
    forward(model, region.x)
    for handle in handles:
        handle.remove()
    return peak_bytes(lambda: bounds(model, region, soundness)) / largest


def chain(depth: int, channels: int = 16) -> nn.Module:
    """Equal convolutions one after the other: memory must not grow with their number."""
    layers: list[nn.Module] = [nn.Conv2d(1, channels, 3, padding=1), nn.ReLU()]
    for _ in range(depth - 1):
        layers += [nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * 28 * 28, 10))

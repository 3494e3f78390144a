"""Linear bounds: cost against a forward pass and against interval margins, by method, network and soundness."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

import surebound as sb
from benchmarks.common import Benchmark, Race, Work
from surebound.bounds.linear.crown import Crown
from surebound.kernels import keep_memory

#: Examples per call. CROWN with bounds of its own is timed on one.
BATCH = 100


def _net(name: str) -> nn.Module:
    torch.manual_seed(0)
    makers = {"small": sb.models.small, "medium": sb.models.medium, "large": sb.models.large}
    return makers[name]((1, 28, 28), 10).eval().requires_grad_(False)


def _images(count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(count, 1, 28, 28, generator=generator), torch.randint(10, (count,), generator=generator)


def _bound(net: nn.Module, count: int, method: str | Crown, soundness: str, eps: str = "1/10") -> Work:
    x, labels = _images(count)
    region = sb.LinfBall(x, eps, clip=(0, 1))
    return lambda: sb.worst_margins(net, region, labels, method=method, soundness=soundness)


def benchmarks() -> Iterator[Benchmark]:
    """The cost of the modes, of the methods on one network, and of both kinds of intermediate bounds on all three."""
    keep_memory()  # as the command does
    net = _net("small")
    for name, count in {"small": BATCH, "medium": 20, "large": 4}.items():
        yield Race(
            f"crown-ibp margins, {name}, {count} images",
            {mode: _bound(_net(name), count, "crown-ibp", mode) for mode in ("none", "real", "deployed")},
            limits={"deployed / none": 1.15},
        )
    yield Race(
        "crown margins, small, 2 images",
        {
            "none": _bound(net, 2, "crown", "none", "1/50"),
            "deployed": _bound(net, 2, "crown", "deployed", "1/50"),
        },
        limits={"deployed / none": 1.15},
    )
    for name, count in {"small": BATCH, "medium": BATCH, "large": 4}.items():
        net, x = _net(name), _images(count)[0]
        yield Race(
            f"margins, {name}, {count} images",
            {
                "forward": partial(net, x),
                "interval": _bound(net, count, "interval", "deployed"),
                "crown-ibp": _bound(net, count, "crown-ibp", "deployed"),
            },
        )
    for name, eps in {"small": "1/50", "medium": "1/1000", "large": "1/1000"}.items():
        net, x = _net(name), _images(1)[0]
        yield Race(
            f"margins, {name}, 1 image, radius {eps}",
            {
                "forward": partial(net, x),
                "crown-ibp": _bound(net, 1, "crown-ibp", "deployed", eps),
                "crown": _bound(net, 1, "crown", "deployed", eps),
            },
        )

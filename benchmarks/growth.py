"""How costs grow: with width, depth, classes, radius (and so unstable ReLUs) and batch; one table, one figure.

    python -m benchmarks.growth results/growth.json
    python docs/figures.py

A plain convolutional network is made larger in one way at a time. Bounds and training steps are counted in forward
passes of the same network on as many images, both by the CPU's clock of one thread and in turns, medians of single
rounds: the ratios carry over to other machines, the milliseconds do not.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

import surebound as sb
from benchmarks.common import Work, versions
from surebound.bounds.linear.intermediate import relax
from surebound.data import Split
from surebound.graph import program_of
from surebound.numerics import Soundness
from surebound.rules.relax.lines import Lines
from surebound.train.loop import Loop
from surebound.train.methods import IBP, Method, Nominal
from surebound.train.plan import Plan
from surebound.train.task import Task

SIDE = 28  # of the images, one channel
FEWEST, MOST = 3, 40  # rounds


@dataclass(frozen=True)
class Point:
    """A network, a radius and a number of images."""

    width: int = 16  # channels of every convolution
    depth: int = 3  # convolutions: the first halves the image, the others keep its size
    classes: int = 10
    eps: Fraction = Fraction(1, 100)
    batch: int = 16

    def net(self) -> nn.Sequential:
        """Make the network, with the same weights every time."""
        torch.manual_seed(0)
        layers: list[nn.Module] = [nn.Conv2d(1, self.width, 3, stride=2, padding=1), nn.ReLU()]
        for _ in range(self.depth - 1):
            layers += [nn.Conv2d(self.width, self.width, 3, padding=1), nn.ReLU()]
        layers += [nn.Flatten(), nn.Linear(self.width * (SIDE // 2) ** 2, self.classes)]
        return nn.Sequential(*layers)

    def images(self) -> tuple[Tensor, Tensor]:
        """Draw images and labels."""
        draws = torch.Generator().manual_seed(0)
        return torch.rand(self.batch, 1, SIDE, SIDE, generator=draws), torch.randint(
            self.classes, (self.batch,), generator=draws
        )


#: What is made larger, one thing at a time.
SWEEPS: dict[str, tuple[Point, ...]] = {
    "width": tuple(Point(width=width) for width in (4, 8, 16, 32, 64)),
    "depth": tuple(Point(depth=depth) for depth in (1, 2, 3, 5)),
    "classes": tuple(Point(classes=classes) for classes in (2, 10, 100, 1_000)),
    "eps": tuple(Point(eps=Fraction(1, part)) for part in (1_000, 300, 100, 30, 10)),
    "batch": tuple(Point(batch=batch) for batch in (1, 4, 16, 64)),
}

#: Beyond these CROWN's own bounds take minutes and tell nothing new.
CROWN_IMAGES = 16


def unstable(point: Point) -> float:
    """Count ReLUs of either sign by CROWN's bounds, per image."""
    x, _ = point.images()
    net = point.net().eval().requires_grad_(False)
    box = sb.LinfBall(x[:1], point.eps, clip=(0, 1)).interval(Soundness.DEPLOYED)
    with torch.no_grad():
        root = relax(program_of(net, x[:1]), box, Soundness.DEPLOYED, own=True)
    steps = [root.steps[name] for name in root.activations]
    return float(sum(int(step.free.sum()) for step in steps if isinstance(step, Lines) and step.free is not None))


def contenders(point: Point) -> dict[str, Work]:
    """Return what is timed: the forward pass first, then bounds and steps on the same number of images."""
    x, labels = point.images()
    net = point.net().eval().requires_grad_(False)
    region = sb.LinfBall(x, point.eps, clip=(0, 1))
    timed: dict[str, Work] = {
        "forward": partial(net, x),
        "interval": partial(sb.worst_margins, net, region, labels),
        "crown-ibp": partial(sb.worst_margins, net, region, labels, method="crown-ibp"),
    }
    if point.batch <= CROWN_IMAGES:
        timed["crown"] = partial(sb.worst_margins, net, region, labels, method="crown")
    return timed | {"nominal step": _step(point, Nominal()), "IBP step": _step(point, IBP())}


def _step(point: Point, method: Method) -> Callable[[], object]:
    x, labels = point.images()
    data = Split((255 * x).round().to(torch.uint8), labels)
    plan = Plan(steps=10**9, batch_size=point.batch, eps_train=point.eps, kappa_start=0.5, kappa_final=0.5)
    loop = Loop(Task(point.net(), data, method, plan))
    loop.prepare()
    loop.task.model.train()
    return loop.advance


def measure(point: Point, seconds: float) -> dict[str, object]:
    """Time everything at one point in turns: milliseconds and, round by round, forward passes."""
    timed = contenders(point)
    times: dict[str, list[float]] = {who: [] for who in timed}
    for work in timed.values():
        work()  # traces, compiles
    repeats = {who: max(1, round(0.01 / max(_cpu(work, 1), 1e-6))) for who, work in timed.items()}
    end = time.process_time() + seconds
    while len(times["forward"]) < FEWEST or (time.process_time() < end and len(times["forward"]) < MOST):
        for who, work in timed.items():
            times[who].append(_cpu(work, repeats[who]))
    forward = times["forward"]
    return {
        **{field.name: str(getattr(point, field.name)) for field in dataclasses.fields(point)},
        "unstable": unstable(point),
        "forward_ms": 1e3 * statistics.median(forward),
        "rounds": len(forward),
        "passes": {who: _ratio(times[who], forward) for who in timed if who != "forward"},
        "IBP / nominal": _ratio(times["IBP step"], times["nominal step"]),
    }


def _cpu(work: Work, repeats: int) -> float:
    began = time.process_time()
    for _ in range(repeats):
        work()
    return (time.process_time() - began) / repeats


def _ratio(times: Sequence[float], base: Sequence[float]) -> float:
    return statistics.median(each / unit for each, unit in zip(times, base, strict=True))


def table(found: dict[str, list[dict[str, object]]]) -> Iterator[str]:
    """Write the table of the documentation, line by line."""
    methods = ("interval", "crown-ibp", "crown", "nominal step", "IBP step")
    yield f"| grows | unstable | forward, ms | {' | '.join(methods)} |"
    yield f"| --- | ---: | ---: | {' | '.join(['---:'] * len(methods))} |"
    for name, points in found.items():
        for point in points:
            passes = point["passes"]
            assert isinstance(passes, dict)
            cells = [f"{passes[each]:.3g}" if each in passes else "" for each in methods]
            yield (
                f"| {name} {point[name]} | {point['unstable']:,.0f} | {point['forward_ms']:.2f} | {' | '.join(cells)} |"
            )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="JSON of all points; what is there is only printed")
    parser.add_argument("--seconds", type=float, default=3.0, help="CPU seconds for each point (default: 3)")
    given = parser.parse_args(arguments)
    if not given.out.exists():
        torch.set_num_threads(1)
        found: dict[str, list[dict[str, object]]] = {}
        for name, points in SWEEPS.items():
            for point in points:
                found.setdefault(name, []).append(measure(point, given.seconds))
                print(json.dumps(found[name][-1]), flush=True)
        record = {"command": f"python -m benchmarks.growth {given.out}", "versions": versions(1), "sweeps": found}
        given.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print("\n".join(table(json.loads(given.out.read_text(encoding="utf-8"))["sweeps"])))


if __name__ == "__main__":
    main()

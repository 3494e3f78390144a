"""The toy problem of section 4.3: thirteen points in the plane, a 2-100-100-100-2 network, its polytope and its box.

The paper asks for points at an l-infinity distance of at least 0.08, the radius itself. Balls of points of different
classes may then overlap, and no network is robust on both; points are drawn here at twice that distance.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from surebound import models
from surebound.bounds import interval_bounds, worst_margins
from surebound.errors import InputError
from surebound.region import LinfBall
from surebound.train.evaluate import Evaluation
from surebound.train.examples import TensorExamples
from surebound.train.loop import Loop
from surebound.train.methods import IBP
from surebound.train.plan import Plan
from surebound.train.task import Task

EPS = "0.08"
POINTS, POSITIVE = 13, 5


def toy_points(seed: int, distance: float = 0.16) -> tuple[Tensor, Tensor]:
    """Points (13, 2) in the unit square, at least `distance` apart, and labels (13,): the first five are positive."""
    generator = torch.Generator().manual_seed(seed)
    chosen: list[Tensor] = []
    for _ in range(100_000):
        point = torch.rand(2, generator=generator)
        if all(float((point - other).abs().max()) >= distance for other in chosen):
            chosen.append(point)
        if len(chosen) == POINTS:
            break
    else:
        raise InputError(f"no {POINTS} points at a distance of {distance} were found; use a smaller one")
    labels = (torch.arange(POINTS) < POSITIVE).long()
    return torch.stack(chosen), labels


def evolution(steps: tuple[int, ...], *, side: int = 150, seed: int = 0) -> dict[str, Any]:
    """Outputs over the ball of one positive point, and their box, after each of `steps` training steps."""
    points, labels = toy_points(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = models.toy()
    plan = Plan(steps=max(steps), batch_size=POINTS, eps_train=EPS, ramp=max(steps) // 2, seed=seed)  # type: ignore[arg-type]
    task = Task(model, TensorExamples(points, labels), IBP(), plan, clip=None, evaluation=Evaluation())
    loop = Loop(task)
    loop.prepare()
    model.train()
    frames = []
    for step in range(max(steps) + 1):
        if step in steps:
            frames.append({"step": step, **_frame(model, points, labels, side)})
        if step < max(steps):
            loop.advance()
    return {
        "eps": EPS, "seed": seed, "points": points.tolist(), "labels": labels.tolist(), "frames": frames
    }  # fmt: skip


def _frame(model: nn.Module, points: Tensor, labels: Tensor, side: int) -> dict[str, Any]:
    """The image of a grid over the first point's ball (side*side, 2), its box, and how much of it the grid fills."""
    x = points[:1]
    line = torch.linspace(-1, 1, side)
    grid = torch.cartesian_prod(line, line) * float(LinfBall(x, EPS, None).eps)  # (G, 2)
    with torch.no_grad():
        outputs = model(x + grid)  # (G, 2)
        box = interval_bounds(model, LinfBall(x, EPS, None))
        right = model(points).argmax(1) == labels
        margins = worst_margins(model, LinfBall(points, EPS, None), labels)
    lower, upper = box.lower[0], box.upper[0]
    return {
        "outputs": [[round(v, 5) for v in row] for row in outputs.tolist()],
        "lower": lower.tolist(),
        "upper": upper.tolist(),
        "sampled": [outputs.amin(0).tolist(), outputs.amax(0).tolist()],
        "correct": int(right.sum()),
        "proved": int((right & (margins <= 0).all(1)).sum()),
    }

"""Look for an execution that violates a claim: points inside a region, random, at corners and by ascent."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import torch
from torch import Tensor, nn

from surebound.attack.box import InnerBox
from surebound.audit.draw import Draw
from surebound.region import Region, project


class Executions:
    """Points of a region and what the network answers there: batch by batch, as the caller would run them."""

    def __init__(self, net: nn.Module, region: Region, draw: Draw, *, apart: bool, count: int = 60) -> None:
        self._net, self._box, self._draw = net, InnerBox.of(region), draw
        self._apart = apart  # may examples be run in any company?
        self.points = torch.stack([self._point(i) for i in range(count)])  # (N, B, ...)
        self.outputs = self._run(self.points)  # (N, B, K)

    def _point(self, number: int) -> Tensor:
        """Draw one point of every example: the reference, then corners, random points, and edges between."""
        box = self._box
        if number == 0:
            return box.reference
        share = self._draw.uniform_tensor(box.lower.shape).to(box.lower)
        if number % 3 == 0:
            share = share.round()
        elif number % 3 == 1:
            share = torch.where(self._draw.uniform_tensor(share.shape) < 0.7, share.round(), share)
        return project(box.lower + share * (box.upper - box.lower), box.lower, box.upper)

    @torch.no_grad()
    def _run(self, points: Tensor) -> Tensor:
        if self._apart:
            with suppress(RuntimeError, IndexError):  # a network may not take another batch size
                return self._together(points)
        return torch.stack([self._net(each.clone()) for each in points])

    def _together(self, points: Tensor) -> Tensor:
        """Run all points in one batch; raise if the first answers otherwise than in its own batch, but for rounding."""
        first = self._net(points[0].clone())
        outputs: Tensor = self._net(points.flatten(0, 1).clone())
        outputs = outputs.reshape(len(points), -1, *outputs.shape[1:])
        if outputs[0].shape != first.shape or not torch.allclose(outputs[0], first, 1e-3, 1e-4, equal_nan=True):
            raise RuntimeError("examples meet")
        outputs[0] = first
        return outputs

    @property
    def constant(self) -> bool:
        """Does the network ignore its input? Values that do not depend on it are trusted (docs/soundness.md)."""
        return torch.allclose(self.outputs, self.outputs[:1, :1].expand_as(self.outputs), 1e-5, 1e-6, equal_nan=True)

    def ascend(self, objective: Callable[[Tensor], Tensor], steps: int = 12) -> None:
        """Add points along an ascent of an objective (B, K) -> (B,) from the best point of every example."""
        box, best = self._box, objective(self.outputs.flatten(0, 1)).reshape(len(self.points), -1).argmax(0)
        x = self.points[best, torch.arange(len(best))]
        found = []
        with suppress(RuntimeError):  # no gradients
            for step in range(steps):
                x = x.detach().clone().requires_grad_(True)
                with torch.enable_grad():
                    (gradient,) = torch.autograd.grad(objective(self._net(x)).sum(), x, materialize_grads=True)
                move = 0.4 * 0.8**step * (box.upper - box.lower) * gradient.sign()
                x = project(x.detach() + move, box.lower, box.upper)
                found.append(x)
        if found:
            more = torch.stack(found)
            self.points = torch.cat([self.points, more])
            self.outputs = torch.cat([self.outputs, self._run(more)])

    def outside(self, lower: Tensor, upper: Tensor) -> tuple[int, int] | None:
        """Return (number, example) of a point whose outputs are not within bounds (B, K); None if there is none.

        NaN lies in no bounds but those that claim nothing.
        """
        lower, upper = lower.masked_fill(lower.isnan(), -torch.inf), upper.masked_fill(upper.isnan(), torch.inf)
        inside = (self.outputs >= lower) & (self.outputs <= upper) | ((lower == -torch.inf) & (upper == torch.inf))
        return first(~inside)

    def margins(self, labels: Tensor) -> Tensor:
        """Return z_k - z_true (N, B, K), in float64, where differences of float32 numbers are exact enough."""
        z = self.outputs.double()
        return z - z.gather(2, labels.reshape(1, -1, 1).expand(len(z), -1, 1))


def first(wrong: Tensor) -> tuple[int, int] | None:
    """Return the first two indices of an entry (N, B, ...) that is True; None if there is none."""
    found = wrong.nonzero()
    return (int(found[0, 0]), int(found[0, 1])) if len(found) else None

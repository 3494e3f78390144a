"""Ranges of a network's outputs over a ball, and of its margins, by several methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from surebound.bounds import worst_margins
from surebound.errors import BoundError, UnsupportedOperatorError
from surebound.graph import forward
from surebound.numerics import proved
from surebound.region import LinfBall
from surebound.spec import LinearSpec

QUICK = ("interval", "crown-ibp", "crown")
METHODS = (*QUICK, "alpha-crown")


@dataclass(frozen=True, eq=False)
class OutputRanges:
    """What one method says of B images."""

    lower: Tensor  # (B, K)
    upper: Tensor  # (B, K)
    margins: Tensor  # (B, K) upper bounds of z_k - z_label

    def as_json(self, number: int) -> dict[str, Any]:
        """Return one image's numbers for the page, and whether they are a proof; the digits are for reading."""
        return {
            "lower": short(self.lower[number]),
            "upper": short(self.upper[number]),
            "margin": short(self.margins[number]),
            "proved": bool(proved(self.margins[number]).all()),
        }


def output_ranges(
    model: nn.Module, ball: LinfBall, labels: Tensor, methods: Sequence[str] = METHODS
) -> dict[str, OutputRanges]:
    """Bound every output and every margin over balls (B, ...) with labels (B,), by the methods that can."""
    found: dict[str, OutputRanges] = {}
    with torch.no_grad():
        classes = forward(model, ball.x[:1]).shape[1]
        rows = torch.eye(classes, dtype=ball.x.dtype).expand(len(labels), -1, -1)  # (B, K, K)
        own = rows.gather(1, labels.view(-1, 1, 1).expand(-1, 1, classes))  # (B, 1, K)
        spec = LinearSpec(torch.cat([rows, -rows, rows - own], 1))
        for method in methods:
            try:
                bounds = worst_margins(model, ball, spec=spec, method=method)
            except (UnsupportedOperatorError, BoundError):
                continue
            upper, lower, margins = torch.split(bounds, classes, 1)
            margins = margins.scatter(1, labels.view(-1, 1), 0.0)  # a class is not beaten by itself
            found[method] = OutputRanges(-lower, upper, margins)
    return found


def short(values: Tensor) -> list[float | None]:
    """Return numbers with the digits that a page shows; what is no number is None."""
    return [float(f"{v:.5g}") if abs(v) < 1e30 else None for v in values.tolist()]

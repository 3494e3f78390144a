"""Labels as questions: every other class is a case of one row, z_k - z_true > 0."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from surebound.attack.box import InnerBox
from surebound.attack.objective import Classification
from surebound.bounds.margins import worst_margins
from surebound.graph import Program
from surebound.numerics import Soundness
from surebound.region import Region
from surebound.search.question import Cases, Confirm
from surebound.search.workspace import Workspace


@dataclass(frozen=True, eq=False)
class Labels:
    """The question whether the label stays the largest output: N = K cases, of which the label's own asks nothing."""

    workspace: Workspace
    labels: Tensor  # (B,) int64
    predictions: Tensor  # (B,) int64, of the examples themselves
    classes: int

    def bounds(self, program: Program, region: Region, method: str, mode: Soundness) -> Tensor:
        """Bound z_k - z_true from above: (B, K)."""
        with torch.no_grad():
            found = worst_margins(program, region, self.labels, method=method, soundness=mode)
        return without_true_class(found, self.labels)

    def cases(self, i: int, region: Region, mode: Soundness) -> Cases:
        """Return the K cases of one example."""
        eye = torch.eye(self.classes, dtype=region.reference.dtype, device=self.labels.device)
        rows = (eye - eye[self.labels[i]]).unsqueeze(1)
        return Cases.over(region[i : i + 1].interval(mode), rows, rows.new_zeros(rows.shape[:2]))

    def confirm(self, i: int, region: Region) -> Confirm:
        """Return the check of points: moved to floats that lie in the exact region, then run through the network."""
        own = region[i : i + 1]
        box, label = InnerBox.of(own), self.labels[i : i + 1]

        def check(point: Tensor, _: int) -> Tensor | None:
            x = box.settled(point.detach().to(box.lower.dtype).reshape(box.lower.shape))
            logits = self.workspace.logits(x)
            violated = bool(Classification(label).violated(logits))
            # A tie is no violation inside the region; but an example that is not predicted as its label is wrong.
            wrong = torch.equal(x, own.reference) and int(logits.argmax(1)) != int(label)
            return x[0] if violated or wrong else None

        return check

    def read_as(self, i: int, witness: Tensor) -> int | None:
        """Return the largest of the other outputs at a witness (C, H, W)."""
        logits = self.workspace.logits(witness.unsqueeze(0))[0].clone()
        logits[self.labels[i]] = -math.inf
        return int(logits.argmax())

    def take(self, index: Tensor) -> Labels:
        """Return the labels of some of the examples."""
        return Labels(self.workspace, self.labels[index], self.predictions[index], self.classes)


def without_true_class(margins: Tensor, labels: Tensor) -> Tensor:
    """Return margins (B, K) as float64 with -inf in the true class's column: nothing is asked of it."""
    return margins.detach().double().scatter(1, labels.unsqueeze(1), -math.inf)

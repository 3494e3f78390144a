"""What goes into a stage and what comes out of it: questions about a batch, findings about each example."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from surebound.errors import BoundError
from surebound.region import Region
from surebound.spec import LinearSpec, classification


@dataclasses.dataclass(frozen=True, eq=False)
class Query:
    """Examples that no stage has decided yet: does the label stay the largest output over the region?

    ``margins`` are the smallest upper bounds of z_k - z_true known so far, whatever they rest on; -inf in the
    true class's column. A stage need not work on rows that are <= 0 already.
    """

    region: Region  # of B examples
    labels: Tensor  # (B,) int64
    margins: Tensor  # (B, K) float64
    indices: Tensor  # (B,) int64: the examples' numbers, for random draws
    seed: int = 0
    seconds: float = math.inf  # that a stage may spend on each example

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def spec(self) -> LinearSpec:
        """Rows z_k - z_true <= 0, one per class: c (B, K, K)."""
        return classification(self.labels, self.margins.shape[1], self.region.reference.dtype)

    @property
    def open_rows(self) -> Tensor:
        """Rows that are not proved yet: (B, K) bool. NaN is not proved."""
        return ~(self.margins <= 0)

    def take(self, index: Tensor) -> Query:
        """Some of the examples: index (N,)."""
        return dataclasses.replace(
            self,
            region=self.region[index],
            labels=self.labels[index],
            margins=self.margins[index],
            indices=self.indices[index],
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Finding:
    """What a stage found out about one example; none of it is a verdict yet.

    ``margins`` (K,): upper bounds of z_k - z_true; ``float_sound`` says whether they hold for every float32
    execution. ``witness`` (C, H, W): a point believed to break the label: it is moved into the region and re-run
    before anybody believes it.
    """

    margins: Tensor | None = None
    float_sound: bool = False
    witness: Tensor | None = None
    timed_out: bool = False
    given_up: bool = False  # more sub-problems than allowed: with more room it might be decided
    detail: str = ""


def without_true_class(margins: Tensor, labels: Tensor) -> Tensor:
    """Margins (B, K) as float64 with -inf in the true class's column: nothing is asked of it."""
    return margins.detach().double().scatter(1, labels.unsqueeze(1), -math.inf)


def nothing(count: int) -> list[Finding]:
    """No news about any example."""
    return [Finding() for _ in range(count)]


def margins_of(findings: Tensor, float_sound: bool) -> list[Finding]:
    """Findings from bounds (B, K)."""
    if not isinstance(findings, Tensor):
        raise BoundError(f"{type(findings).__name__} is no bound: a finding needs a tensor of upper bounds")
    return [Finding(margins=row, float_sound=float_sound) for row in torch.unbind(findings)]

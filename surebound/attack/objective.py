"""The objective of an attack: the rows c.z + d of a specification, violated as soon as one is not <= 0.

A NaN output is not <= 0 either: a network that returns NaN inside the region is not robust there, and counts
as broken. A network that diverged scores 100 % error, never 0 %.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from surebound.errors import SpecError
from surebound.numerics import gamma
from surebound.spec import LinearSpec, check_labels


class Objective(abc.ABC):
    """The specification of a batch of rows."""

    @abc.abstractmethod
    def values(self, logits: Tensor) -> Tensor:
        """Return c.z + d: (R, S), differentiable; -inf for a row that cannot be violated."""

    @abc.abstractmethod
    def violated(self, logits: Tensor) -> Tensor:
        """Say where a row is certainly not <= 0 for these logits, whatever the rounding of c.z + d: (R,)."""

    @abc.abstractmethod
    def __getitem__(self, index: Tensor) -> Objective: ...


@dataclass(frozen=True)
class Classification(Objective):
    """Margins z_k - z_true of the other classes."""

    labels: Tensor  # (R,) int64

    def values(self, logits: Tensor) -> Tensor:
        true = self.labels.unsqueeze(1)
        return (logits - logits.gather(1, true)).scatter(1, true, -torch.inf)

    def violated(self, logits: Tensor) -> Tensor:
        # The sign of a float difference is exact.
        return broken(worst(self.values(logits)))

    def __getitem__(self, index: Tensor) -> Classification:
        return Classification(self.labels[index])


@dataclass(frozen=True)
class LinearObjective(Objective):
    """The rows of a LinearSpec."""

    spec: LinearSpec

    def values(self, logits: Tensor) -> Tensor:
        return _affine(self.spec, logits)

    def violated(self, logits: Tensor) -> Tensor:
        wide = LinearSpec(self.spec.c.double(), None if self.spec.d is None else self.spec.d.double())
        size = LinearSpec(wide.c.abs(), None if wide.d is None else wide.d.abs())
        slack = gamma(wide.c.shape[-1] + 2, torch.float64) * _affine(size, logits.double().abs())
        return broken(worst(_affine(wide, logits.double()) - slack))

    def __getitem__(self, index: Tensor) -> LinearObjective:
        return LinearObjective(self.spec[index])


def objective_of(labels: Tensor | None, spec: LinearSpec | None, batch: int, outputs: int) -> Objective:
    """Return the objective of labels or of a specification: exactly one of the two."""
    if (labels is None) == (spec is None):
        raise SpecError("give labels or a spec: one of them, and not both, says what must hold")
    if labels is not None:
        if outputs < 2 and batch:
            raise SpecError(f"the network has {outputs} output: there is no other class; give a spec=LinearSpec(c, d)")
        return Classification(check_labels(labels, batch, outputs))
    if spec is None:  # pragma: no cover - excluded above; tells the type checker
        raise SpecError("no specification")
    spec.rows(batch, outputs)  # its checks; the rows themselves stay shared where they are
    if spec.c.dim() == 3 and spec.c.shape[0] == 1:
        spec = LinearSpec(spec.c[0], None if spec.d is None else spec.d.view(-1))
    return LinearObjective(spec)


def worst(values: Tensor) -> Tensor:
    """Return the value of the row that is closest to being violated; NaN if there is one: (R,)."""
    return values.max(1).values


def broken(worst_value: Tensor) -> Tensor:
    """Say where the worst row is not known to be <= 0: (R,) bool."""
    return ~(worst_value <= 0)


def _affine(spec: LinearSpec, logits: Tensor) -> Tensor:
    """Return c.z + d with shared (S, K) or own (R, S, K) coefficients: (R, S)."""
    c = spec.c.to(logits)
    product = logits @ c.T if c.dim() == 2 else torch.einsum("rsk,rk->rs", c, logits)
    return product if spec.d is None else product + spec.d.to(logits)


def _margin(values: Tensor) -> Tensor:
    """Return the largest margin (Carlini and Wagner 2017, f_6, without its cap: success ends the search anyway)."""
    return values.max(1).values


def _cross_entropy(values: Tensor) -> Tensor:
    """Return log(1 + sum_k exp(z_k - z_true)): the cross-entropy of the true class, extended to any rows."""
    return torch.nn.functional.softplus(values.logsumexp(1))


LOSSES: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {"margin": _margin, "cross-entropy": _cross_entropy}
)
"""What gradient steps climb: from the specification's values (R, S) to one number per row (R,)."""

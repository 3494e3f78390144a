"""The semidefinite bound for one hidden layer, trained with its dual variables (Raghunathan et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from surebound.bounds.semidefinite.certificate import first_dual
from surebound.bounds.semidefinite.form import HiddenForm
from surebound.bounds.semidefinite.two_layers import TwoLayers
from surebound.errors import ConfigError
from surebound.graph import Program
from surebound.interval import Interval
from surebound.train.losses import LOSSES, verified_error
from surebound.train.methods.base import Batch, Loss, Method


class PairDuals(nn.Module):
    """Dual variables and, to start from, the last top eigenvectors of every pair of classes (P, N)."""

    dual: Tensor
    scale: Tensor
    vectors: Tensor
    first: Tensor
    second: Tensor

    def __init__(self, program: Program) -> None:
        super().__init__()
        shape = [n or 1 for n in program.graph.input_shape]
        pairs = torch.triu_indices(program.outputs, program.outputs, 1, device=program.device)
        self.register_buffer("first", pairs[0], persistent=False)
        self.register_buffer("second", pairs[1], persistent=False)
        point = torch.zeros(1, *shape[1:], dtype=program.graph.dtype, device=program.device)
        with torch.no_grad():
            form = self.form(TwoLayers.of(program, Interval(point, point)))
            dual = first_dual(form)
        self.register_buffer("scale", dual.mean())  # in units of which the optimiser's steps are of the right size
        self.register_parameter("dual", nn.Parameter(dual / self.scale))
        self.register_buffer("vectors", torch.ones_like(dual))

    def form(self, layers: TwoLayers) -> HiddenForm:
        """Return the form of the differences of the classes' outputs."""
        return HiddenForm(layers.out[self.first] - layers.out[self.second], layers.weight)

    def moves(self, layers: TwoLayers, steps: int) -> Tensor:
        """Estimate how far the outputs of every two classes may move apart in the unit box: (K, K), with gradients."""
        form, dual = self.form(layers), self.dual * self.scale
        self.vectors.copy_(form.top_vectors(dual.detach(), self.vectors, steps))
        value = form.value(dual, self.vectors.clone()) / 4.0  # (P,)
        classes = len(layers.out)
        table = value.new_zeros(classes, classes).index_put((self.first, self.second), value)
        return table + table.t()


@dataclass(frozen=True)
class Raghunathan(Method):
    """kappa · CE(z) + (1 - kappa) · loss(margins) + weight · sum of the semidefinite bounds of all pairs of classes.

    A margin is z_k - z_true at the image plus the radius times how far the two outputs may move apart in the unit box:
    a quarter of N max(0, largest eigenvalue of M - diag(dual)) + sum max(dual, 0), with dual variables for every pair
    of classes that are trained by the same optimiser and left behind. The largest eigenvalue is looked up by `lanczos`
    steps from the eigenvector of the step before. `weight` alone, with kappa = 1, is the authors' regulariser.

    Property: an estimate of an upper bound of the robust error: Lanczos approaches the eigenvalue from below. To
    verify, dual variables are optimised anew and eigenvalues bounded rigorously (`method="raghunathan"`).
    Requirement: one fully connected hidden layer of ReLUs. Boxes are not cut to the clip range.
    Reference: Raghunathan et al. 2018, "Certified defenses against adversarial examples", sections 3 and 4.
    """

    name: ClassVar[str] = "raghunathan"
    bound_based: ClassVar[bool] = True
    robust: ClassVar[bool] = True
    joint: ClassVar[bool] = True

    weight: float = 0.0
    lanczos: int = 8
    objective: str = "cross_entropy"

    def __post_init__(self) -> None:
        if self.weight < 0 or self.lanczos < 1:
            raise ConfigError(f"weight={self.weight}, lanczos={self.lanczos}; give weight >= 0 and lanczos >= 1")
        if self.objective not in LOSSES:
            raise ConfigError(f"unknown objective {self.objective!r}: use one of {', '.join(LOSSES)}")

    def partner(self, program: Program) -> nn.Module | None:
        """Return the dual variables."""
        return PairDuals(program)

    def loss(self, batch: Batch) -> Loss:
        """Return the mixed loss; the bound is of the weights alone, so it costs the same for any batch."""
        logits = batch.model(batch.images)  # (B, K)
        point = batch.images[:1]
        duals = batch.partner
        if not isinstance(duals, PairDuals):
            raise ConfigError("the batch has no dual variables: give partner=method.partner(program)")
        moves = duals.moves(TwoLayers.of(batch.program, Interval(point, point)), self.lanczos)  # (K, K)
        margins = logits - logits.gather(1, batch.labels[:, None]) + batch.epsilon * moves[batch.labels]
        robust = LOSSES[self.objective](margins, batch.labels)
        scalars = {"estimated_error": verified_error(margins.detach(), batch.labels)}
        mixed = batch.mixed(logits, robust if batch.kappa < 1.0 else None, scalars)
        return Loss(mixed.value + self.weight * moves.sum() / 2.0, mixed.scalars)

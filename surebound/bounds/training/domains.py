"""Margins by forward domains with gradients, for training: hybrid zonotopes and symbolic intervals."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import Tensor

from surebound.bounds.constants import Constants
from surebound.bounds.forward.domain import Forward
from surebound.bounds.forward.hybrid import HybridDomain
from surebound.bounds.forward.pair import PairDomain
from surebound.graph import Program
from surebound.interval import Interval
from surebound.numerics import Soundness, Working
from surebound.spec import classification


def hybrid_margins(program: Program, box: Interval, labels: Tensor, transformer: str, correlated: int | None) -> Tensor:
    """Bound z_k - z_true from above (B, K) by hybrid zonotopes over boxes (B, ...)."""
    domain = HybridDomain(transformer, correlated, Working(box.dtype, pays=False))
    form, _ = Forward(Constants(program), Soundness.NONE, domain).train(box)
    return domain.upper(form, *_rows(program, box, labels))


def hybrid_bounds(
    program: Program,
    box: Interval,
    names: Collection[str],
    norms: Mapping[str, tuple[Tensor, Tensor]] | None = None,
) -> dict[str, Interval]:
    """Bound values by zonotopes of the input that stable ReLUs hand on and unstable ones forget.

    norms: statistics that normalisations use instead of their running ones (``TrainingPass.norms``). Up to the second
    activation these are the improved interval bounds of Xiao et al. 2019.
    """
    domain = HybridDomain("box", None, Working(box.dtype, pays=False))
    return Forward(Constants(program, norms), Soundness.NONE, domain).train(box, names)[1]


def symbolic_margins(program: Program, box: Interval, labels: Tensor) -> Tensor:
    """Bound z_k - z_true from above (B, K) by symbolic intervals over boxes (B, ...)."""
    domain = PairDomain(box, "upper", Working(box.dtype, pays=False))
    form, _ = Forward(Constants(program), Soundness.NONE, domain).train(box)
    return domain.upper(form, *_rows(program, box, labels))


def _rows(program: Program, box: Interval, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows z_k - z_true (B, K, K) and their constants, 0."""
    return classification(labels, program.outputs, box.dtype).rows(box.shape[0], program.outputs)

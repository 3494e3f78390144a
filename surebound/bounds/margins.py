"""Upper bounds of c.z + d by every method: the one verb of verification by bounds."""

from __future__ import annotations

from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from surebound.bounds.elision import Tail, affine_tail, check_one_of, margins_from
from surebound.bounds.forward.hybrid import Hybrid
from surebound.bounds.forward.symbolic import Symbolic
from surebound.bounds.forward.zonotope import Zonotope
from surebound.bounds.interval import propagate
from surebound.bounds.linear.crown import CROWNS
from surebound.bounds.linear.dual import DualBound
from surebound.bounds.semidefinite.bound import Semidefinite
from surebound.bounds.training.projections.estimate import Estimate, Projections
from surebound.errors import InputError, SpecError, nearest
from surebound.graph import Program, program_of
from surebound.graph.runs import assemble
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.region import Region, check_region
from surebound.spec import LinearSpec, Spec, check_labels, classification, other_classes


class Method(Protocol):
    """A way to bound specifications that is not plain intervals."""

    #: Are its margins at most those of interval bounds (but for rounding)? Otherwise they are intersected with these.
    within_intervals: ClassVar[bool]

    def margins(self, program: Program, box: Interval, c: Tensor, d: Tensor, mode: Soundness) -> Tensor:
        """Bound c.z + d from above over the box, c (B, S, K), d (B, S): (B, S)."""


METHODS: dict[str, Method | None] = {
    "interval": None,
    "zonotope": Zonotope(),
    "symbolic": Symbolic(),
    "hybrid": Hybrid(),
    **CROWNS,
    "dvijotham": DualBound(),
    "raghunathan": Semidefinite(),
}


def worst_margins(
    model: nn.Module | Program,
    region: Region,
    labels: Tensor | None = None,
    *,
    spec: LinearSpec | Spec | None = None,
    method: str | Method = "interval",
    soundness: Soundness | str = Soundness.DEPLOYED,
    elide: bool = True,
) -> Tensor:
    """Bound z_k - z_true from above (B, K), 0 in the true class's column, or any c.z + d (B, S).

    requirement: outputs of shape (B, K); give labels (B,), a LinearSpec, or a Spec all of whose rows must hold
    method:      "interval", "zonotope", "symbolic", "hybrid", "crown-ibp", "crown", "wong", "alpha-crown",
                 "dvijotham", "raghunathan" (one hidden layer) or a Crown(...), Hybrid(...) and so on; all but the
                 first are intersected with interval bounds, so never looser but for rounding, and carry no gradients
    return:      proved robust where every bound is <= 0 (``numerics.proved``)
    property:    sound for the executions that ``soundness`` names; not complete; never looser than without elision
    reference:   Gowal et al. 2018, eq. 8-9; Zhang et al. 2018

    >>> from surebound.region import LinfBall
    >>> net = nn.Linear(2, 2, bias=False)
    >>> _ = net.weight.data.copy_(torch.tensor([[1.0, 1.0], [1.0, 0.0]]))
    >>> worst_margins(net, LinfBall(torch.zeros(1, 2), eps=1), torch.tensor([1]), soundness="none").tolist()
    [[1.0, 0.0]]
    """
    mode = Soundness.of(soundness)
    check_region(region)
    program = program_of(model, region.reference)
    if isinstance(spec, Spec):
        program, spec = as_linear(model, region.reference, spec)
    start = region.interval(mode)
    other = method_of(method)
    if other is not None and other.within_intervals:
        with torch.no_grad():
            return _rows(program, start, labels, spec, mode, other)
    tail = affine_tail(program) if elide else Tail(program.graph.output, ())
    inside = propagate(program, start, mode, stop=tail.start)
    margins = margins_from(program, tail, inside, labels, spec, mode)
    if other is None:
        return margins
    with torch.no_grad():
        return torch.fmin(margins, _rows(program, start, labels, spec, mode, other)).detach()


def as_linear(model: nn.Module | Program, x: Tensor, spec: Spec) -> tuple[Program, LinearSpec]:
    """Return a conjunction of rows as one network of all its runs and a LinearSpec of that network's outputs."""
    if not isinstance(model, nn.Module):
        raise InputError(f"the model is a {type(model).__name__}; a Spec needs a torch.nn.Module")
    runs = assemble(model, x[:1], spec.formula, program_of)
    if runs.free:
        raise SpecError(f"{spec!r} relates two points; worst_margins bounds one region: use surebound.decide")
    return runs.network.program, runs.linear(repr(spec))


def method_of(method: str | Method) -> Method | None:
    """Return a method by name or as given; None: intervals alone."""
    if isinstance(method, Projections | Estimate):
        raise InputError(
            "random projections estimate bounds and prove nothing; for the dual bound itself give method='wong'"
        )
    if not isinstance(method, str):
        return method
    if method not in METHODS:
        hint = nearest(method, METHODS)
        raise InputError(f"method={method!r} is not known{hint} Give one of {', '.join(METHODS)}, or a Crown(...)")
    return METHODS[method]


def _rows(
    program: Program,
    start: Interval,
    labels: Tensor | None,
    spec: LinearSpec | None,
    mode: Soundness,
    method: Method,
) -> Tensor:
    """Return another method's bounds in the columns of the interval bounds: (B, K) or (B, S)."""
    outputs = program.outputs
    check_one_of(labels, spec)
    if labels is None:
        if spec is None:  # excluded above; for the type checker
            raise SpecError("no specification")
        return method.margins(program, start, *spec.rows(start.shape[0], outputs), mode)
    labels = check_labels(labels, start.shape[0], outputs)
    c, _ = classification(labels, outputs, start.dtype).rows(start.shape[0], outputs)
    # The true class's own row is zero: K - 1 rows are enough.
    others = other_classes(labels, outputs)  # (B, K - 1)
    rows = c.gather(1, others.unsqueeze(2).expand(-1, -1, outputs))
    upper = method.margins(program, start, rows, rows.new_zeros(rows.shape[:2]), mode)
    return upper.new_zeros(upper.shape[0], outputs).scatter(1, others, upper)

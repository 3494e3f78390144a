"""Properties that relate two runs: of one network at two points, or of two networks at one point."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from fractions import Fraction

from torch import nn

from surebound.errors import SpecError
from surebound.spec.formula import All, Any, Formula, Sum, comparison
from surebound.spec.parse import per_output
from surebound.spec.scope import Run, Scope

_numbers = itertools.count(1)


def monotone(
    inputs: Sequence[int], outputs: Sequence[int], increasing: bool, tolerance: Fraction
) -> Callable[[Scope], Formula]:
    """Raising the inputs does not lower (raise, if not ``increasing``) the outputs by more than the tolerance."""
    raised = Run(free=tuple(inputs), number=next(_numbers))  # its own point: "for all x'" of each property
    relation, room = (">=", -tolerance) if increasing else ("<=", tolerance)

    def formula(scope: Scope) -> Formula:
        lowered = [comparison("<", scope.input(i, raised), scope.input(i)) for i in inputs]
        kept = [comparison(relation, scope.output(k, raised), scope.output(k).plus(Sum(room))) for k in outputs]
        return Any((*lowered, All(tuple(kept))))

    return formula


def equivalent(network: nn.Module, delta: tuple[Fraction, ...]) -> Callable[[Scope], Formula]:
    """Demand that no output differs from another network's by more than delta."""

    def formula(scope: Scope) -> Formula:
        other, parts = _same_outputs(scope, network), list[Formula]()
        for k, room in enumerate(per_output(delta, scope.columns(), "delta")):
            f, g = scope.output(k), scope.output(k, other)
            parts += [comparison("<=", f, g.plus(Sum(room))), comparison("<=", g, f.plus(Sum(room)))]
        return All(tuple(parts))

    return formula


def same_class(network: nn.Module) -> Callable[[Scope], Formula]:
    """Demand that every class that no other output exceeds here is exceeded by none there."""

    def formula(scope: Scope) -> Formula:
        other, classes, parts = _same_outputs(scope, network), range(scope.columns()), list[Formula]()
        for k in classes:
            rivals = [j for j in classes if j != k]
            beaten = [comparison(">", scope.output(j), scope.output(k)) for j in rivals]
            kept = [comparison("<=", scope.output(j, other), scope.output(k, other)) for j in rivals]
            parts.append(Any((*beaten, All(tuple(kept)))))
        return All(tuple(parts))

    return formula


def _same_outputs(scope: Scope, network: nn.Module) -> Run:
    other = Run(network)
    if scope.columns(other) != scope.columns():
        raise SpecError(
            f"the networks have {scope.columns()} and {scope.columns(other)} outputs; they must have equally many"
        )
    return other

"""``Spec``: properties of a network over a region, put together from linear ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from torch import Tensor, nn

from surebound.errors import SpecError
from surebound.numerics import exact_fraction
from surebound.spec import relations
from surebound.spec.formula import All, Any, AtLeast, Atom, Formula, Sum, comparison
from surebound.spec.linear import LinearSpec
from surebound.spec.parse import Number, Numbers, check_network, index, listed, numbers, per_output, shown
from surebound.spec.scope import Scope


@dataclass(frozen=True, eq=False)
class Spec:
    """A property of every input of a region; ``surebound.decide`` proves it or finds a point that violates it.

    Numbers are exact: 0.1 and "1/10" are a tenth; tensors hold the float numbers they hold. Equality counts as
    ``<=``. A NaN output satisfies nothing.

    >>> Spec.within(0, 1) & Spec.top_k(3, k=2)
    Spec(every output in [0, 1] and output 3 among the 2 largest)
    """

    text: str
    formula: Callable[[Scope], Formula]  # the property over the quantities of a scope

    def __repr__(self) -> str:
        return f"Spec({self.text})"

    def __and__(self, other: Spec) -> Spec:
        return Spec.all_of(self, other)

    def __or__(self, other: Spec) -> Spec:
        return Spec.any_of(self, other)

    @staticmethod
    def all_of(*parts: Spec) -> Spec:
        """Demand that every part holds at every input; also ``a & b``."""
        _check_parts(parts, "all_of")
        return Spec(_joined(parts, "and"), lambda scope: All(tuple(part.formula(scope) for part in parts)))

    @staticmethod
    def any_of(*parts: Spec) -> Spec:
        """Demand that some part holds at every input, not the same one everywhere; also ``a | b``."""
        _check_parts(parts, "any_of")
        return Spec(_joined(parts, "or"), lambda scope: Any(tuple(part.formula(scope) for part in parts)))

    @staticmethod
    def linear(c: Tensor, d: Tensor | None = None) -> Spec:
        """Demand every row of c.z + d <= 0, of outputs z: c (S, K), d (S,)."""
        rows = LinearSpec(c, d)  # its checks
        if not bool(c.isfinite().all()) or (d is not None and not bool(d.isfinite().all())):
            raise SpecError(
                "the specification has an infinite coefficient or offset; every one must be a finite number"
            )
        if c.dim() != 2:
            raise SpecError(f"c has shape {tuple(c.shape)}; give (S, K), and one Spec per example: a list of them")
        coefficients = c.detach().cpu().double().tolist()
        offsets = [0.0] * len(c) if rows.d is None else rows.d.detach().cpu().double().tolist()

        def formula(scope: Scope) -> Formula:
            if scope.columns() != c.shape[1]:
                raise SpecError(
                    f"the specification has {c.shape[1]} coefficients per row but the network {scope.columns()} outputs"
                )
            return All(tuple(_row(scope, row, offset) for row, offset in zip(coefficients, offsets, strict=True)))

        return Spec(f"{len(c)} rows c.z + d <= 0", formula)

    @staticmethod
    def within(lower: Numbers | None = None, upper: Numbers | None = None) -> Spec:
        """Demand outputs between two numbers, or one by one between those of two sequences; None: no limit."""
        if lower is None and upper is None:
            raise SpecError("within() limits nothing; give lower, upper, or both")
        low, high = numbers(lower, "lower"), numbers(upper, "upper")

        def formula(scope: Scope) -> Formula:
            parts = []
            for name, limits, relation in (("lower", low, ">="), ("upper", high, "<=")):
                for k, limit in enumerate(per_output(limits, scope.columns(), name)):
                    parts.append(comparison(relation, scope.output(k), Sum(limit)))
            return All(tuple(parts))

        return Spec(f"every output in [{shown(low, '-inf')}, {shown(high, 'inf')}]", formula)

    @staticmethod
    def label(label: int, against: Sequence[int] | None = None) -> Spec:
        """Demand that no other output is larger than the label's; with ``against``, none of these (targeted)."""
        targets = None if against is None else [index(k, "against") for k in against]
        label = index(label, "label")
        if targets is not None and (label in targets or not targets):
            raise SpecError(f"against={targets}: give other outputs than the label {label}, at least one")

        def formula(scope: Scope) -> Formula:
            own = scope.output(label)
            others = [k for k in range(scope.columns()) if k != label] if targets is None else targets
            return All(tuple(comparison("<=", scope.output(k), own) for k in others))

        return Spec(f"output {label} is the largest" + (f" of it and {targets}" if targets else ""), formula)

    @staticmethod
    def never(target: int) -> Spec:
        """Demand that the target is never predicted: some other output is larger, not only as large."""
        target = index(target, "target")

        def formula(scope: Scope) -> Formula:
            own = scope.output(target)
            others = (k for k in range(scope.columns()) if k != target)
            return Any(tuple(comparison(">", scope.output(k), own) for k in others))

        return Spec(f"output {target} never the largest", formula)

    @staticmethod
    def top_k(label: int, k: int) -> Spec:
        """Demand that the label stays among the k largest outputs: fewer than k others are larger than it."""
        label, k = index(label, "label"), index(k, "k")
        if k < 1:
            raise SpecError(f"k={k}; give 1 or more: 1 is the same as label()")

        def formula(scope: Scope) -> Formula:
            own = scope.output(label)
            below = tuple(comparison("<=", scope.output(j), own) for j in range(scope.columns()) if j != label)
            # Not "k of the others are larger": all but k - 1 of them are not.
            return AtLeast(len(below) - k + 1, below) if len(below) >= k else All(())

        return Spec(f"output {label} among the {k} largest", formula)

    @staticmethod
    def monotone(
        inputs: int | Sequence[int],
        outputs: int | Sequence[int] = 0,
        *,
        increasing: bool = True,
        tolerance: Number = 0,
    ) -> Spec:
        """Raising the inputs (places in the flattened input) never lowers the outputs by more than the tolerance.

        For all x and x' of the region that agree in all other inputs, x' >= x in these: f(x') >= f(x) - tolerance; with
        ``increasing=False`` f(x') <= f(x) + tolerance. Both runs are bounded together. Float32 sums are monotone only
        up to rounding: with tolerance 0 there is hardly ever a proof.
        """
        chosen = tuple(sorted({index(i, "inputs") for i in listed(inputs)}))
        columns = [index(k, "outputs") for k in listed(outputs)]
        slack = exact_fraction(tolerance, "tolerance")
        if not chosen or not columns or slack < 0:
            raise SpecError(
                f"inputs={inputs!r}, outputs={outputs!r}, tolerance={tolerance!r}: "
                "name at least one input and output, and a tolerance of 0 or more"
            )
        return Spec(
            f"outputs {columns} {'increase' if increasing else 'decrease'} with inputs {list(chosen)}"
            + (f" up to {slack}" if slack else ""),
            relations.monotone(chosen, columns, increasing, slack),
        )

    @staticmethod
    def equivalent(network: nn.Module, delta: Numbers) -> Spec:
        """Demand |f(x) - g(x)| <= delta in every output, for another network g; delta one number or one per output.

        Both are bounded together, so that what they have in common cancels.
        """
        check_network(network)
        limit = numbers(delta, "delta")
        if limit is None or any(value < 0 for value in limit):
            raise SpecError(f"delta={delta!r}; give the largest difference allowed, 0 or more")

        return Spec(f"outputs within {shown(limit, '')} of another network's", relations.equivalent(network, limit))

    @staticmethod
    def same_class(network: nn.Module) -> Spec:
        """Whatever class is largest in this network is largest in the other; at a tie, each of the tied ones."""
        check_network(network)

        return Spec("the same class as another network", relations.same_class(network))


def _row(scope: Scope, row: Sequence[float], offset: float) -> Atom:
    """Return c.z + d <= 0 as an atom."""
    total = Sum(-Fraction(offset))
    for k, value in enumerate(row):
        if value:
            total = total.plus(scope.output(k), -Fraction(value))
    return total.atom(strict=False)


def _check_parts(parts: Sequence[object], name: str) -> None:
    wrong = [part for part in parts if not isinstance(part, Spec)]
    if wrong or not parts:
        given = f"a {type(wrong[0]).__name__}" if wrong else "nothing"
        raise SpecError(f"{name}() was given {given}; give one or more of sb.Spec")


def _joined(parts: Sequence[Spec], word: str) -> str:
    return f" {word} ".join(f"({part.text})" if len(parts) > 2 else part.text for part in parts)

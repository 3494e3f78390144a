"""All runs that a specification speaks of as one network over one input vector: what they share is one variable.

The merged network is for bounds; whether a point violates a specification is asked of the networks themselves.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor, nn

from surebound.errors import InputError, SpecError
from surebound.graph.onnx.build import Builder, ImportedNetwork, Value
from surebound.graph.program import Node, Program, Ref
from surebound.graph.walk import Env, forward
from surebound.numerics import float_up
from surebound.spec.formula import All, Atom, Formula, as_bound, atoms
from surebound.spec.linear import LinearSpec
from surebound.spec.scope import HERE, Run, Scope

ProgramOf = Callable[[nn.Module, Tensor], Program]


@dataclass(frozen=True, eq=False)
class Runs:
    """A specification made concrete for a network.

    The merged input is x, flattened if points differ, followed by the free inputs of every other point.
    """

    formula: Formula  # the property
    scope: Scope
    network: ImportedNetwork  # (B, *input) -> (B, K), the quantities that the formula speaks of
    inputs: Mapping[int, int]  # number of an input -> place in the merged input
    columns: Mapping[int, int]  # number -> output column
    free: tuple[tuple[Run, int], ...]  # what follows x in the merged input

    @property
    def moved(self) -> tuple[Run, ...]:
        """The points beside x, as the first runs at them."""
        found = {run.number: run for run, _ in self.free}
        return tuple(found.values())

    def linear(self, name: str) -> LinearSpec:
        """Return rows c.z + d <= 0 of the merged outputs z, if the property is that all of them hold."""
        rows = list(_conjuncts(self.formula, name))
        c = torch.zeros(len(rows), max(1, len(self.columns)), dtype=torch.float64)
        d = torch.zeros(len(rows), dtype=torch.float64)
        for i, row in enumerate(rows):
            for element, value in row.terms:
                if Fraction(float(value)) != value:  # a rounded coefficient would be another property
                    raise SpecError(f"{name} has the coefficient {value}, no float64 number; use surebound.decide")
                c[i, self.columns[element]] = -float(value)
            d[i] = float_up(-row.constant)
        return LinearSpec(c, d)

    def points(self, x: Tensor, shape: torch.Size) -> dict[int, Tensor]:
        """Return the points (1, *shape) of a merged input (1, *input), by the number of their run; x itself is 0."""
        flat, count = x.reshape(-1), self.scope.inputs
        found = {0: flat[:count].reshape(shape)}
        for run in self.moved:
            point = flat[:count].clone()
            for place, (owner, entry) in enumerate(self.free, start=count):
                if owner.number == run.number:
                    point[entry] = flat[place]
            found[run.number] = point.reshape(shape)
        return found


def _conjuncts(formula: Formula, name: str) -> Iterator[Atom]:
    if isinstance(formula, All):
        for part in formula.parts:
            yield from _conjuncts(part, name)
    elif isinstance(formula, Atom) and not formula.strict:
        yield formula
    else:
        raise SpecError(
            f"{name} is not a conjunction of rows c.z + d <= 0, so no upper bounds of rows answer it; "
            "use surebound.decide"
        )


def assemble(model: nn.Module, x: Tensor, formula: Callable[[Scope], Formula], program_of: ProgramOf) -> Runs:
    """Return the runs of a specification about a network, for inputs like x (1, ...)."""

    def program(network: nn.Module | None) -> Program:
        found = program_of(model if network is None else network, x)
        if found.graph.input_shape[0] is not None or found.graph.dtype != torch.float32:
            raise InputError(
                f"a network for inputs {list(found.graph.input_shape)}, {found.graph.dtype}: specifications are "
                "decided for float32 networks that take any batch size"
            )
        return found

    scope = Scope(model, x[0].numel(), lambda network: program(network).outputs)
    property_ = formula(scope)
    for (run, _), _ in list(scope.outputs.items()):
        for place in run.free:
            scope.input(place, run)
    free = tuple(key for key in scope.points if key[0].free)
    shape = tuple(x.shape[1:])
    builder = Builder((scope.inputs + len(free),) if free else shape)
    places = {key: scope.inputs + i for i, key in enumerate(free)}
    inputs = {number: places.get(key, key[1]) for key, number in scope.points.items()}
    merged, columns = _outputs(_Merger(builder, program, shape, places), scope, property_, inputs)
    return Runs(property_, scope, builder.finish(merged), inputs, columns, free)


class _Merger:
    """Writes the graphs of several runs into one builder; weights that runs share stay shared."""

    def __init__(
        self,
        builder: Builder,
        program: Callable[[nn.Module | None], Program],
        shape: tuple[int, ...],
        places: Mapping[tuple[Run, int], int],
    ) -> None:
        self.builder, self._program, self._shape, self._places = builder, program, shape, places
        self._weights: dict[int, Tensor] = {}  # by the identity of a parameter: its detached value

    def point(self, run: Run) -> Value:
        """Return the input of a run."""
        builder, count = self.builder, math.prod(self._shape)
        if not self._places:
            return builder.input
        index = [self._places.get((run, i), i) if i in run.free else i for i in range(count)]
        if index == list(range(count)):
            part = builder.call("slice.Tensor", builder.input, 1, 0, count)
        else:
            part = builder.call("index_select.default", builder.input, 1, torch.tensor(index))
        return builder.view(part, self._shape)

    def outputs(self, run: Run) -> Value:
        """Return a run's outputs (B, K)."""
        program = self._program(run.network)
        names: Env = {program.graph.input: Ref(self.point(run).name)}
        for name, value in program.parameters().items():
            kept = self._weights.setdefault(id(value), value.detach())
            names[name] = Ref(self.builder.constant(kept).name)
        forward(program.graph.steps, names, self._copy, program.graph.output)
        count = (program.outputs,)
        return Value(names[program.graph.output].name, count, count)

    def _copy(self, node: Node, names: Env) -> Ref:
        """Append a call under a new name, reading the new names."""
        name = f"{self.builder.prefix}{len(self.builder.nodes)}"
        args, kwargs = node.arguments(names)
        self.builder.nodes.append(dataclasses.replace(node, name=name, args=args, kwargs=kwargs))
        return Ref(name)


def _outputs(
    merger: _Merger, scope: Scope, formula: Formula, inputs: Mapping[int, int]
) -> tuple[Value, dict[int, int]]:
    """Return the quantities that the formula speaks of, side by side, and their columns."""
    used = {e for atom in atoms(formula) if as_bound(atom, inputs) is None for e, _ in atom.terms}
    builder, parts, columns = merger.builder, list[Value](), dict[int, int]()
    for run in dict.fromkeys(run for run, _ in scope.outputs):
        wanted = {number: k for (owner, k), number in scope.outputs.items() if owner == run and number in used}
        if wanted:
            columns |= {number: len(columns) + i for i, number in enumerate(wanted)}
            parts.append(_selected(builder, merger.outputs(run), list(wanted.values())))
    compared = {number: place for number, place in inputs.items() if number in used}
    if compared:
        columns |= {number: len(columns) + i for i, number in enumerate(compared)}
        flat = builder.view(builder.input, (math.prod(builder.shape),))
        parts.append(_selected(builder, flat, list(compared.values())))
    if not parts:  # nothing is asked of any output
        return merger.outputs(HERE), {}
    return parts[0] if len(parts) == 1 else builder.call("cat.default", parts, 1), columns


def _selected(builder: Builder, value: Value, places: list[int]) -> Value:
    if places == list(range(value.item[0])):
        return value
    return builder.call("index_select.default", value, 1, torch.tensor(places))

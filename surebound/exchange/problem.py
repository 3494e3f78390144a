"""Query + ONNX files -> one network: all declared networks side by side over one input vector.

Inputs that the query equates are one variable, so that differences between networks are bounded jointly. The outputs
are the elements that the formula speaks of: of outputs, of hidden tensors, and of inputs where they are compared with
others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from surebound.errors import GraphError, QueryError
from surebound.exchange.check import compare, samples
from surebound.exchange.query import All, Any, Atom, Formula, Kind, Network, Query, Variable, atoms
from surebound.exchange.runtime import Array, Session
from surebound.graph import ImportedNetwork
from surebound.graph.onnx_build import Builder, Value
from surebound.graph.onnx_file import Model
from surebound.graph.onnx_import import Environment, import_model
from surebound.interval import Interval
from surebound.numerics import Soundness, outer_float32

#: Element types that are answered soundly.
ELEMENT_TYPES = ("float32", "real")


@dataclass(frozen=True, eq=False)
class Problem:
    """One network (B, *input) -> (B, K) and what its numbers mean."""

    query: Query
    models: Mapping[str, Model]  # by the name of each declared network
    network: ImportedNetwork
    inputs: Mapping[int, int]  # input element -> place in the flattened input
    columns: Mapping[int, int]  # element of the formula -> output column
    lower: tuple[Fraction, ...]  # by place: what the query's own assertions say of each input
    upper: tuple[Fraction, ...]
    formula: Formula  # what else must hold; equated inputs under one name

    @property
    def soundness(self) -> Soundness:
        """Which executions a proof must cover."""
        return Soundness.REAL if self.query.exact_type else Soundness.DEPLOYED

    def box(self, lower: Sequence[Fraction], upper: Sequence[Fraction]) -> Interval:
        """A box as float32 numbers (1, *input) that contains it, rounded to nearest or not."""
        shape = [int(n or 1) for n in self.network.graph.input_shape[1:]]
        ends = outer_float32(lower, upper)
        return Interval(*(torch.from_numpy(end).reshape(1, *shape) for end in ends))


def build(query: Query, models: Mapping[str, Model]) -> Problem:
    """Merge the networks of a query; ``models`` by name, none for networks that are equal to another."""
    files = _assign(query, models)
    for network in query.networks:
        _check_interface(network, files[network.name])
        for each, declared in zip(network.inputs, files[network.name].inputs, strict=True):
            _fits(each, declared.shape, files[network.name].source, query.version)
    formula, alias = _unify(query)
    places = _places(query, alias)
    lower, upper, rest = _bounds(query, formula, places)
    builder, given = _inputs(query, places)
    values: dict[str, Value] = {}
    imported: dict[tuple[int, ...], Environment] = {}
    for network in query.networks:
        # One function on the same inputs has one value: equal networks on equated inputs are imported once.
        key = (id(files[network.name]), *(places[e] for each in network.inputs for e in each.elements))
        if key not in imported:
            operands = [given[each.name] for each in network.inputs]
            imported[key] = import_model(builder, files[network.name], operands)
        values |= _tensors(network, imported[key], query.version)
    rest = _renamed(rest, _same_values(query, values))
    merged, columns = _outputs(query, rest, places, builder, given | values)
    problem = Problem(query, files, builder.finish(merged), places, columns, lower, upper, rest)
    _check(problem)
    return problem


def _assign(query: Query, models: Mapping[str, Model]) -> dict[str, Model]:
    """A file for every network; too few and too many are errors (the standard demands it)."""
    names = [each.name for each in query.networks]
    needed = [each.name for each in query.networks if each.equal_to is None]
    missing, extra = [n for n in needed if n not in models], sorted(set(models) - set(needed))
    if missing or extra:
        lines = [f"the query needs --network for: {', '.join(needed)}"]
        lines += [f"missing: {', '.join(missing)}"] if missing else []
        lines += [f"not wanted: {', '.join(extra)}"] if extra else []
        raise QueryError("; ".join(lines))
    files: dict[str, Model] = {}
    for each in query.networks:
        other = each.equal_to or each.isomorphic_to
        if other is not None and other not in names[: names.index(each.name)]:
            raise QueryError(f"the network {each.name} refers to {other}, which is not declared before it")
        files[each.name] = models[each.name] if each.equal_to is None else files[each.equal_to]
        if each.isomorphic_to is not None and _structure(files[each.name]) != _structure(
            files[each.isomorphic_to]
        ):
            raise QueryError(f"the files of {each.name} and {each.isomorphic_to} are not built alike")
    return files


def _structure(model: Model) -> list[object]:
    """What two isomorphic networks have in common: everything but names and weights."""
    shapes = {name: tuple(value.shape) for name, value in model.weights.items()}
    return [
        (
            node.op_type,
            sorted(a.SerializeToString() for a in node.attribute),
            [shapes.get(i) for i in node.input],
        )
        for node in model.nodes
    ]


def _check_interface(network: Network, model: Model) -> None:
    for group, count, what in (
        (network.inputs, len(model.inputs), "inputs"),
        (network.outputs, len(model.outputs), "outputs"),
    ):
        if len(group) != count:
            raise QueryError(
                f"the network {network.name} declares {len(group)} {what}, the file {model.source} has {count}"
            )
    types = [each.dtype for each in model.inputs], [dtype for _, dtype in model.outputs]
    for group, found in zip((network.inputs, network.outputs), types, strict=True):
        for each, dtype in zip(group, found, strict=True):
            if each.dtype not in ELEMENT_TYPES:
                raise QueryError(
                    f"{each.name} is {each.dtype}; the analysis is sound for {' and '.join(ELEMENT_TYPES)} only. "
                    "Write real to ask for exact-real results."
                )
            if each.dtype not in ("real", dtype):
                raise QueryError(f"{each.name} is declared {each.dtype} but is {dtype} in {model.source}")
    for each in network.hidden:
        if each.dtype not in ELEMENT_TYPES:
            raise QueryError(f"{each.name} is {each.dtype}; the analysis is sound for float32 and real only")


def _fits(variable: Variable, shape: tuple[int, ...], source: str, version: str) -> None:
    same = variable.shape == shape if version == "2.0" else variable.size == math.prod(shape)
    if not same:
        raise QueryError(
            f"{variable.name} is declared with shape {list(variable.shape)} but has {list(shape)} in {source}"
        )


def _unify(query: Query) -> tuple[All, dict[int, int]]:
    """The formula with equated inputs under one name, and that name of each input."""
    own = {e for network in query.networks for each in network.inputs for e in each.elements}
    leader: dict[int, int] = {}

    def find(element: int) -> int:
        while leader.get(element, element) != element:
            element = leader[element]
        return element

    parts = _flat(query.formula)
    known = set(parts)
    for part in parts:
        if isinstance(part, Atom) and not part.strict and len(part.terms) == 2 and part.constant == 0:
            (a, p), (b, q) = part.terms
            opposite = Atom(((a, -p), (b, -q)), part.constant)
            if p == -q and a in own and b in own and opposite in known:
                leader[max(find(a), find(b))] = min(find(a), find(b))
    alias = {element: find(element) for element in own}
    if all(a == b for a, b in alias.items()):
        return All(tuple(parts)), alias
    return All(tuple(_renamed(part, alias) for part in parts)), alias


def _flat(formula: Formula) -> list[Formula]:
    """The parts of a conjunction, of those within it too."""
    found, stack = list[Formula](), [formula]
    while stack:
        part = stack.pop()
        if isinstance(part, All):
            stack.extend(reversed(part.parts))
        else:
            found.append(part)
    return found


def _renamed(formula: Formula, alias: Mapping[int, int]) -> Formula:
    if isinstance(formula, Atom):
        terms: dict[int, Fraction] = {}
        for element, coefficient in formula.terms:
            name = alias.get(element, element)
            terms[name] = terms.get(name, Fraction(0)) + coefficient
        return Atom(tuple(sorted((e, c) for e, c in terms.items() if c)), formula.constant, formula.strict)
    return type(formula)(tuple(_renamed(part, alias) for part in formula.parts))


def _places(query: Query, alias: Mapping[int, int]) -> dict[int, int]:
    """Where each input element stands in the merged input vector."""
    order = {leader: place for place, leader in enumerate(sorted(set(alias.values())))}
    return {element: order[leader] for element, leader in alias.items()}


def as_bound(atom: Atom, inputs: Mapping[int, int]) -> tuple[int, Fraction, bool] | None:
    """A constraint on one input alone, as (place, bound, is it a lower bound?)."""
    if len(atom.terms) != 1 or atom.terms[0][0] not in inputs:
        return None
    element, coefficient = atom.terms[0]
    return inputs[element], -atom.constant / coefficient, coefficient > 0


Ends = tuple[Fraction, ...]


def _bounds(query: Query, formula: All, places: Mapping[int, int]) -> tuple[Ends, Ends, Formula]:
    """The box that the assertions themselves give, and the rest of the formula."""
    count = len(set(places.values()))
    low: list[Fraction | None] = [None] * count
    high: list[Fraction | None] = [None] * count
    rest: list[Formula] = []
    for part in formula.parts:
        bound = as_bound(part, places) if isinstance(part, Atom) else None
        if bound is None:
            rest.append(part)
            continue
        place, value, is_lower = bound
        now = low[place] if is_lower else high[place]
        if is_lower:
            low[place] = value if now is None else max(now, value)
        else:
            high[place] = value if now is None else min(now, value)
    cases = _hull(rest, places)
    for place, (least, most) in cases.items():
        low[place] = least if low[place] is None else low[place]
        high[place] = most if high[place] is None else high[place]
    for place in range(count):
        if low[place] is None or high[place] is None:
            element = next(e for e, p in places.items() if p == place)
            variable, index = query.element(element)
            side = "below" if low[place] is None else "above"
            raise QueryError(
                f"the input {variable.name}[{_index(variable, index)}] is not bounded {side}; every input needs bounds"
            )
    return tuple(v for v in low if v is not None), tuple(v for v in high if v is not None), All(tuple(rest))


def _hull(
    parts: Sequence[Formula], places: Mapping[int, int]
) -> dict[int, tuple[Fraction | None, Fraction | None]]:
    """Bounds of inputs that every alternative of some disjunction gives, each its own."""
    found: dict[int, tuple[Fraction | None, Fraction | None]] = {}
    for part in parts:
        if not isinstance(part, Any) or not part.parts:
            continue
        boxes = []
        for choice in part.parts:
            low: dict[int, Fraction] = {}
            high: dict[int, Fraction] = {}
            for atom in _flat(choice):
                bound = as_bound(atom, places) if isinstance(atom, Atom) else None
                if bound is not None:
                    place, value, is_lower = bound
                    (low if is_lower else high)[place] = value
            boxes.append((low, high))
        for place in set(boxes[0][0]) | set(boxes[0][1]):
            lows, highs = [b[0].get(place) for b in boxes], [b[1].get(place) for b in boxes]
            least = min((v for v in lows if v is not None), default=None) if None not in lows else None
            most = max((v for v in highs if v is not None), default=None) if None not in highs else None
            found[place] = (least, most)
    return found


def _index(variable: Variable, place: int) -> str:
    return ",".join(str(int(i)) for i in np.unravel_index(place, variable.shape)) if variable.shape else ""


def _inputs(query: Query, places: Mapping[int, int]) -> tuple[Builder, dict[str, Value]]:
    """The merged input, and each declared input as a part of it."""
    variables = [each for network in query.networks for each in network.inputs]
    count = len(set(places.values()))
    if len(variables) == 1 and count == variables[0].size:
        shape = variables[0].shape
        builder = Builder(shape[1:] if len(shape) > 1 and shape[0] == 1 else shape)
        return builder, {variables[0].name: builder.input.reshaped(shape)}
    builder, given = Builder((count,)), {}
    for each in variables:
        index = [places[e] for e in each.elements]
        if index == list(range(count)):
            part = builder.input
        elif index == list(range(index[0], index[0] + len(index))):
            part = builder.call("slice.Tensor", builder.input, 1, index[0], index[0] + len(index))
        else:
            part = builder.call("index_select.default", builder.input, 1, torch.tensor(index))
        given[each.name] = part.reshaped(each.shape)
    return builder, given


def _tensors(network: Network, env: Environment, version: str) -> dict[str, Value]:
    """The declared outputs and hidden tensors of an imported file."""
    source, found = env.model.source, {}
    for each, (name, _) in zip(network.outputs, env.model.outputs, strict=True):
        found[each.name] = env.value(name)
    for each in network.hidden:
        if each.node is None:
            raise QueryError(f"the hidden variable {each.name} names no tensor of {source}")
        try:
            found[each.name] = env.value(each.node)
        except GraphError as error:
            raise QueryError(str(error)) from error
    for each in (*network.outputs, *network.hidden):
        _fits(each, found[each.name].shape, source, version)
    return found


def _same_values(query: Query, values: Mapping[str, Value]) -> dict[int, int]:
    """One name for elements that are the same value of the merged network: their differences are 0 for sure."""
    first: dict[Value, Variable] = {}
    alias: dict[int, int] = {}
    for variable in query.variables:
        if variable.name in values:
            other = first.setdefault(values[variable.name], variable)
            alias |= dict(zip(variable.elements, other.elements, strict=True))
    return alias


def _outputs(
    query: Query, formula: Formula, places: Mapping[int, int], builder: Builder, values: Mapping[str, Value]
) -> tuple[Value, dict[int, int]]:
    """The elements that the formula speaks of, side by side, and their columns."""
    used = {element for atom in atoms(formula) if as_bound(atom, places) is None for element, _ in atom.terms}
    parts: list[Value] = []
    columns: dict[int, int] = {}
    for variable in query.variables:
        wanted = [e for e in variable.elements if e in used] if used else []
        if not wanted:
            continue
        flat = builder.view(values[variable.name], (variable.size,))
        if len(wanted) < variable.size:
            flat = builder.call(
                "index_select.default", flat, 1, torch.tensor([e - variable.first for e in wanted])
            )
        columns |= {e: len(columns) + i for i, e in enumerate(wanted)}
        parts.append(flat)
    if not parts:  # nothing but bounds of inputs
        first = next(each for each in query.variables if each.kind is Kind.OUTPUT)
        return values[first.name], {}
    merged = parts[0] if len(parts) == 1 else builder.call("cat.default", parts, 1)
    return Value(merged.name, merged.item, merged.item), columns


def feeds(problem: Problem, x: Tensor) -> dict[str, dict[str, Array]]:
    """What every network gets when the merged input is x (1, *input): arrays by its file's input names."""
    flat = x.detach().reshape(-1).numpy()
    found: dict[str, dict[str, Array]] = {}
    for network in problem.query.networks:
        model = problem.models[network.name]
        found[network.name] = {
            declared.name: flat[[problem.inputs[e] for e in each.elements]].reshape(declared.shape)
            for each, declared in zip(network.inputs, model.inputs, strict=True)
        }
    return found


def sessions(problem: Problem) -> dict[str, Session]:
    """Every declared network in onnxruntime."""
    return {
        each.name: Session(problem.models[each.name], [h.node for h in each.hidden if h.node is not None])
        for each in problem.query.networks
    }


def run(problem: Problem, running: Mapping[str, Session], x: Tensor) -> dict[str, Array]:
    """Every variable's value at x (1, *input), as onnxruntime computes it."""
    found: dict[str, Array] = {}
    fed = feeds(problem, x)
    for network in problem.query.networks:
        model = problem.models[network.name]
        results = running[network.name].run(fed[network.name])
        for each, declared in zip(network.inputs, model.inputs, strict=True):
            found[each.name] = fed[network.name][declared.name].reshape(each.shape)
        for each, (name, _) in zip(network.outputs, model.outputs, strict=True):
            found[each.name] = results[name].reshape(each.shape)
        for each in network.hidden:
            found[each.name] = results[str(each.node)].reshape(each.shape)
    return found


def _check(problem: Problem) -> None:
    """The merged network against onnxruntime, on random inputs of the box."""
    running = sessions(problem)
    if any(low > high for low, high in zip(problem.lower, problem.upper, strict=True)):
        return  # no input at all: no network will be asked
    box = problem.box(problem.lower, problem.upper)
    variables = [each.name for each in problem.query.variables]
    for x in samples(problem.network.graph.input_shape[1:], box):
        values = run(problem, running, x)
        if problem.columns:
            whole = np.concatenate(
                [values[name].reshape(-1) for name in variables]
            )  # by number of the element
            expected = whole[list(problem.columns)]
        else:
            first = next(each for each in problem.query.variables if each.kind is Kind.OUTPUT)
            expected = values[first.name].reshape(-1)
        compare(problem.network, x, torch.from_numpy(expected.copy()).unsqueeze(0), "the query's networks")

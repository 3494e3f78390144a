"""Query + ONNX files -> one network: all declared networks side by side over one input vector.

Inputs that the query equates are one variable, so that differences between networks are bounded jointly. The outputs
are the elements that the formula speaks of: of outputs, of hidden tensors, and of inputs where they are compared with
others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from surebound.errors import GraphError, QueryError
from surebound.graph.onnx.build import Builder, Value
from surebound.graph.onnx.file import Model
from surebound.graph.onnx.importer import Environment, import_model
from surebound.graph.onnx.order import before_softmax
from surebound.numerics import Soundness
from surebound.search.problem import Problem
from surebound.spec.formula import Formula, as_bound, atoms, renamed
from surebound.vnnlib.check import compare, samples
from surebound.vnnlib.domain import bounds, places, unify
from surebound.vnnlib.effort import heavy_network
from surebound.vnnlib.interface import assign, check_interface, fits
from surebound.vnnlib.operators import check_operators
from surebound.vnnlib.products import factors, multiplied, with_products
from surebound.vnnlib.query import Kind, Network, Query, Variable
from surebound.vnnlib.runtime import Array, Session


@dataclass(frozen=True, eq=False)
class QueryProblem(Problem):
    """The networks of a query as one, and what its numbers mean; equated inputs are under one name."""

    query: Query
    models: Mapping[str, Model]  # by the name of each declared network
    notes: tuple[str, ...] = ()  # what the caller should know about how the query was read


def build(query: Query, models: Mapping[str, Model], pinned: Mapping[int, int] | None = None) -> QueryProblem:
    """Merge the networks of a query; ``models`` by name, none for networks that are equal to another.

    pinned: whole numbers that entries of the merged input are cut to in the query's whole box, by place.
    """
    files, notes = assign(query, models), list[str | None]()
    for network in query.networks:
        check_interface(network, files[network.name])
        for each, declared in zip(network.inputs, files[network.name].inputs, strict=True):
            notes.append(fits(each, declared.shape, files[network.name].source, query.version))
    formula, alias = unify(query)
    place = places(alias)
    lower, upper, rest = bounds(query, formula, place)
    builder, given = _inputs(query, place, files)
    builder.pinned = pinned or {}
    values: dict[str, Value] = {}
    imported: dict[tuple[int, ...], Environment] = {}
    for network in query.networks:
        # One function on the same inputs has one value: equal networks on equated inputs are imported once.
        key = (id(files[network.name]), *(place[e] for each in network.inputs for e in each.elements))
        if key not in imported:
            operands = [given[each.name] for each in network.inputs]
            imported[key] = import_model(builder, files[network.name], operands)
            check_operators(imported[key])
        values |= _tensors(network, imported[key])
        shapes = ((each, values[each.name].shape) for each in (*network.outputs, *network.hidden))
        notes += [fits(each, shape, files[network.name].source, query.version) for each, shape in shapes]
    same = _same_values(query, values)
    rest = renamed(rest, same) if same else rest
    merged, columns = _outputs(query, rest, place, builder, given | values)
    # What is asked of reals is proved for reals; a query about float32 numbers for every float32 execution.
    mode = Soundness.REAL if query.exact_type else Soundness.DEPLOYED
    said = tuple(note for note in notes if note is not None)
    problem = QueryProblem(builder.finish(merged), place, columns, lower, upper, rest, mode, query, files, said)
    _check(problem, builder.pinned)
    if query.exact_type:
        ordered = _ordered(query, rest, builder, values)
        if ordered:
            merged, columns = _outputs(query, rest, place, builder, given | values | ordered)
            problem = dataclasses.replace(problem, network=builder.finish(merged), columns=columns)
    return problem


def _ordered(query: Query, formula: Formula, builder: Builder, values: Mapping[str, Value]) -> dict[str, Value]:
    """Return the tensors of which a formula compares single entries with each other only, without their softmax.

    Over the reals that is the same question, with differences that do not vanish.
    """
    owner = {e: each for each in query.variables if each.name in values for e in each.elements}
    pairs: dict[str, list[list[int]]] = {}
    others: set[str] = set()
    for atom in atoms(formula):
        names = {owner[e].name for e in factors({e for e, _ in atom.terms}, query.pairs) if e in owner}
        opposite = len(atom.terms) == 2 and atom.terms[0][1] == -atom.terms[1][1] and atom.constant == 0
        if len(names) == 1 and opposite and all(e in owner for e, _ in atom.terms):
            pairs.setdefault(names.pop(), []).append([e - owner[e].first for e, _ in atom.terms])
        else:
            others |= names
    found = {
        name: before_softmax(builder, values[name], groups) for name, groups in pairs.items() if name not in others
    }
    return {name: value for name, value in found.items() if value is not None}


def _inputs(query: Query, places: Mapping[int, int], files: Mapping[str, Model]) -> tuple[Builder, dict[str, Value]]:
    """Return the merged input, and each declared one as a part of it; an only one in the shape that its file has."""
    variables = [each for network in query.networks for each in network.inputs]
    count = len(set(places.values()))
    if len(variables) == 1 and count == variables[0].size:
        shape = next(model.inputs[0].shape for model in files.values())
        builder = Builder(shape[1:] if len(shape) > 1 and shape[0] == 1 else shape, reals=query.exact_type)
        return builder, {variables[0].name: builder.input.reshaped(shape)}
    builder, given = Builder((count,), reals=query.exact_type), {}
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


def _tensors(network: Network, env: Environment) -> dict[str, Value]:
    """Return the declared outputs and hidden tensors of an imported file."""
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
    return found


def _same_values(query: Query, values: Mapping[str, Value]) -> dict[int, int]:
    """Give elements that are the same value of the merged network one name: their differences are 0 for sure."""
    first: dict[Value, Variable] = {}
    alias: dict[int, int] = {}
    for variable in query.variables:
        if variable.name in values:
            other = first.setdefault(values[variable.name], variable)
            if other is not variable:
                alias |= dict(zip(variable.elements, other.elements, strict=True))
    return alias


def _outputs(
    query: Query, formula: Formula, places: Mapping[int, int], builder: Builder, values: Mapping[str, Value]
) -> tuple[Value, dict[int, int]]:
    """Return the elements that the formula speaks of, side by side, and their columns."""
    pairs = query.pairs
    asked = {element for atom in atoms(formula) if as_bound(atom, places) is None for element, _ in atom.terms}
    used = factors(asked, pairs)
    parts: list[Value] = []
    columns: dict[int, int] = {}
    for variable in query.variables:
        wanted = [e for e in variable.elements if e in used] if used else []
        if not wanted:
            continue
        flat = builder.view(values[variable.name], (variable.size,))
        if len(wanted) < variable.size:
            flat = builder.call("index_select.default", flat, 1, torch.tensor([e - variable.first for e in wanted]))
        columns |= {e: len(columns) + i for i, e in enumerate(wanted)}
        parts.append(flat)
    if not parts:  # nothing but bounds of inputs
        first = next(each for each in query.variables if each.kind is Kind.OUTPUT)
        return values[first.name], {}
    merged = parts[0] if len(parts) == 1 else builder.call("cat.default", parts, 1)
    merged, columns = multiplied(builder, merged, columns, {e: pair for e, pair in pairs.items() if e in used})
    return Value(merged.name, merged.item, merged.item), columns


def feeds(problem: QueryProblem, x: Tensor) -> dict[str, dict[str, Array]]:
    """Return what every network gets when the merged input is x (1, *input): arrays by its file's input names."""
    flat = x.detach().reshape(-1).numpy()
    found: dict[str, dict[str, Array]] = {}
    for network in problem.query.networks:
        model = problem.models[network.name]
        found[network.name] = {
            declared.name: flat[[problem.inputs[e] for e in each.elements]].reshape(declared.shape)
            for each, declared in zip(network.inputs, model.inputs, strict=True)
        }
    return found


def sessions(problem: QueryProblem) -> dict[str, Session]:
    """Open every declared network in onnxruntime."""
    return {
        each.name: Session(problem.models[each.name], [h.node for h in each.hidden if h.node is not None])
        for each in problem.query.networks
    }


def run(problem: QueryProblem, running: Mapping[str, Session], x: Tensor) -> dict[str, Array]:
    """Run every network at x (1, *input) in onnxruntime, and return every variable's value."""
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


def _check(problem: QueryProblem, pinned: Mapping[int, int]) -> None:
    """Compare the merged network with onnxruntime, on random inputs of the box, with the pinned ones whole."""
    running = sessions(problem)
    if problem.empty:
        return  # no input at all: no network will be asked
    box = problem.whole
    if pinned:
        lower, upper = list(problem.lower), list(problem.upper)
        for place, number in pinned.items():
            lower[place] = upper[place] = min(max(Fraction(number), lower[place]), upper[place])
        box = problem.box(lower, upper)
    variables = [each.name for each in problem.query.variables]
    x = samples(problem.network.graph.input_shape[1:], box, heavy_network(problem.network.program))
    found = [run(problem, running, each) for each in x]
    if problem.columns:
        wanted = list(problem.columns)  # by number of the element
        whole = [np.concatenate([values[name].reshape(-1) for name in variables]) for values in found]
        expected = [with_products(each, problem.query.products)[wanted] for each in whole]
    else:
        first = next(each for each in problem.query.variables if each.kind is Kind.OUTPUT)
        expected = [values[first.name] for values in found]
    compare(problem.network, torch.cat(x), expected, "the query's networks")

"""Do the files fit what a query declares? Too few, too many, other types or shapes are errors of the standard."""

from __future__ import annotations

import math
from collections.abc import Mapping

from surebound.errors import QueryError
from surebound.graph.onnx.call import WHOLE
from surebound.graph.onnx.file import Model
from surebound.vnnlib.query import Kind, Network, Query, Variable

#: Element types that are answered soundly.
ELEMENT_TYPES = ("float32", "real")


def assign(query: Query, models: Mapping[str, Model]) -> dict[str, Model]:
    """Assign a file to every network; too few and too many are errors (the standard demands it)."""
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
        if each.isomorphic_to is not None and _structure(files[each.name]) != _structure(files[each.isomorphic_to]):
            raise QueryError(f"the files of {each.name} and {each.isomorphic_to} are not built alike")
    return files


def _structure(model: Model) -> list[object]:
    """Return what two isomorphic networks have in common: everything but names and weights."""
    shapes = {name: tuple(value.shape) for name, value in model.weights.items()}
    return [
        (
            node.op_type,
            sorted(a.SerializeToString() for a in node.attribute),
            [shapes.get(i) for i in node.input],
        )
        for node in model.nodes
    ]


def check_interface(network: Network, model: Model) -> None:
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
            whole = each.kind is Kind.OUTPUT and each.dtype == dtype and dtype in WHOLE
            if each.dtype not in ELEMENT_TYPES and not whole:
                raise QueryError(
                    f"{each.name} is {each.dtype}; the analysis is sound for {' and '.join(ELEMENT_TYPES)} only. "
                    "Write real to ask for exact-real results."
                )
            if each.dtype not in ("real", dtype):
                raise QueryError(f"{each.name} is declared {each.dtype} but is {dtype} in {model.source}")
    for each in network.hidden:
        if each.dtype not in ELEMENT_TYPES:
            raise QueryError(f"{each.name} is {each.dtype}; the analysis is sound for float32 and real only")


def fits(variable: Variable, shape: tuple[int, ...], source: str, version: str) -> str | None:
    """Refuse a variable of another size than the file's tensor; return a note if only its shape is another."""
    if variable.shape == shape:
        return None
    what = f"{variable.name} is declared with shape {list(variable.shape)} but has {list(shape)} in {source}"
    if variable.size != math.prod(shape):
        raise QueryError(what)
    return f"{what}: taken as a reshape" if version == "2.0" else None

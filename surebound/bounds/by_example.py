"""Does a network keep its examples apart, along the first axis of every value? Linear bounds need it.

A shape alone does not tell: ``x.flip(0)`` has the right one. So every call is run on a few random examples of which one
is then replaced: where a value of another example changes, examples meet. A call gets operands of its own, not what the
calls before it make of an input, because a dead unit would hide it; and once with the network's own parameters,
once with random ones, because a weight of 0 may hide it today. Every example is replaced in turn, and the two batches
have different sizes, because a rotation by 3 leaves a batch of 3 as it is; and what reads a constant that tells
examples apart, such as their numbers, counts as joining them: at another size it may. So does what computes with the
size of the batch: the same examples have other values in other company.
"""

from __future__ import annotations

import itertools
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from surebound.errors import BoundError
from surebound.flags import own_state
from surebound.graph import Graph, Node, Program
from surebound.graph.walk import Env, forward
from surebound.numerics import TRACE_TOLERANCE
from surebound.rules import describe

#: Examples of the trial with the network's own parameters and of that with others, where it does not fix their number.
EXAMPLES = (3, 4)

#: Rows of constants that have one per example, to see whether they are all alike.
ROWS = 64

_known: WeakKeyDictionary[Graph, frozenset[str]] = WeakKeyDictionary()


def mixing(program: Program) -> frozenset[str]:
    """Find the calls whose values mix examples along the first axis; once per graph."""
    graph = program.graph
    if graph not in _known:
        free = graph.input_shape[0] is None
        odd = {node.name for node in graph.calls(lambda n: free and n.varies and not n.by_example)}
        own = program.parameters()
        draw = torch.Generator().manual_seed(0)
        with own_state():
            others = {name: _random(value, draw) for name, value in own.items()}
            # By others: sums of positive numbers, in which nothing cancels, differ by little between sizes of a batch.
            odd |= _by_place(program, own) | _by_size(program, others) if free else set()
            for parameters, batch in zip((own, others), EXAMPLES, strict=True):
                odd |= _seen(program, parameters, batch if free else graph.input_shape[0] or 1)
        _known[graph] = frozenset(odd)
    return _known[graph]


def check_by_example(program: Program) -> None:
    """Refuse networks that move the examples' axis or join examples: coefficients belong to examples."""
    odd = program.graph.calls(lambda node: node.name in mixing(program))
    if odd:
        lines = "\n".join(f"  {describe(node)}" for node in odd[:5])
        more = f"\n  and {len(odd) - 5} after them" if len(odd) > 5 else ""
        raise BoundError(
            f"at {len(odd)} operator call(s) the first axis is not that of the examples, or examples meet:\n"
            f"{lines}{more}\n"
            "Linear bounds need them apart and first; or use method='interval'."
        )


def check_first_axis(node: Node, shape: torch.Size, batch: int) -> None:
    """Refuse a value of this shape if its first axis has another size than the batch: examples were taken apart."""
    if shape[:1] != (batch,):
        raise BoundError(
            f"a value of shape {tuple(shape)} for {batch} example(s): linear bounds need one entry of the first axis "
            f"per example; use method='interval' ({describe(node)})"
        )


def _by_place(program: Program, parameters: dict[str, Any]) -> set[str]:
    """Find the calls that read a constant with one row per example whose rows differ."""
    graph = program.graph
    like = next((v for v in parameters.values() if isinstance(v, Tensor)), torch.empty(0))
    shape = [ROWS, *(n or 1 for n in graph.input_shape[1:])]
    x = torch.empty(shape, dtype=graph.dtype, device=like.device)
    apart, found = set[str](), set[str]()

    def visit(node: Node, env: Env) -> Any:
        if node.varies:
            found.update({node.name} if not apart.isdisjoint(node.refs()) else ())
            return None
        value = node.run(env)
        if node.shape and node.shape[0] is None and isinstance(value, Tensor):
            rows = value.nan_to_num()
            apart.update({node.name} if not torch.equal(rows, rows[:1].expand_as(rows)) else ())
        return value

    with torch.no_grad():
        forward(graph.steps, {**parameters, graph.input: x}, visit)
    return found


def _seen(program: Program, parameters: dict[str, Any], batch: int) -> set[str]:
    """Find the calls whose value for one example changes with another example of an operand."""
    known, found = _values(program, parameters, batch, None), set[str]()
    for changed in range(batch) if batch > 1 else ():
        rest = [i for i in range(batch) if i != changed]
        for name, other in _values(program, parameters, batch, changed).items():
            pairs = zip(_parts(known[name]), _parts(other), strict=True)
            if not all(_same(a, b, batch, rest) for a, b in pairs):
                found.add(name)
    return found


def _by_size(program: Program, parameters: dict[str, Any]) -> set[str]:
    """Find the calls whose values for the same examples differ between two sizes of the batch by more than rounding."""
    few = EXAMPLES[0]
    one, two = (_values(program, parameters, size, None) for size in (few, few + 2))
    found = set[str]()
    for name, value in one.items():
        for a, b in zip(_parts(value), _parts(two[name]), strict=True):
            a, b = (part[:few].double().nan_to_num() if part.dim() else part.double() for part in (a, b))
            if a.shape != b.shape or bool(((a - b).abs() > TRACE_TOLERANCE * (1 + a.abs())).any()):
                found.add(name)
    return found


def _parts(value: Any) -> list[Tensor]:
    parts = value if isinstance(value, (tuple, list)) else [value]
    return [part for part in parts if isinstance(part, Tensor)]


def _same(one: Tensor, two: Tensor, batch: int, rest: list[int]) -> bool:
    return one.shape[:1] == (batch,) and torch.equal(one[rest].nan_to_num(), two[rest].nan_to_num())


def _values(program: Program, parameters: Env, batch: int, changed: int | None) -> dict[str, Any]:
    """Run every call that varies on random operands; those of example ``changed`` differ from those without it."""
    graph, draw, other = program.graph, *(torch.Generator().manual_seed(seed) for seed in (1, 2))
    seeds = itertools.count(3)

    def fresh(value: Tensor) -> Tensor:
        draw.manual_seed(next(seeds))  # the same rows for the first examples, however many follow
        found = torch.rand(value.shape, generator=draw) + 0.5
        if changed is not None and value.shape[:1] == (batch,):
            found[changed] = torch.rand(value.shape[1:], generator=other) + 0.5
        return found.to(value)

    shape = [batch, *(n or 1 for n in graph.input_shape[1:])]
    start = torch.empty(shape, dtype=graph.dtype, device=program.device)
    values: dict[str, Any] = {}

    def visit(node: Node, env: Env) -> Any:
        value = node.run(env)
        if not node.varies:
            return value
        values[node.name] = value
        return fresh(value) if isinstance(value, Tensor) and value.is_floating_point() else value

    with torch.no_grad():
        forward(graph.steps, {**parameters, graph.input: fresh(start)}, visit)
    return values


def _random(value: Any, draw: torch.Generator) -> Any:
    """Draw positive numbers, so that no unit is dead; of matrices and kernels an average, so that nothing
    overflows."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    size = 1 if value.dim() < 2 else max(1, value[0].numel())
    return ((torch.rand(value.shape, generator=draw) + 0.5) / size).to(value)

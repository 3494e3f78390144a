"""Compare a traced program with its module inside the network: what each submodule returns, not the outputs alone.

A fault of a trace may be hidden from the outputs, behind a ReLU that is off on the inputs that were tried. What a
submodule returned before that ReLU shows it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from surebound.errors import TraceMismatchError
from surebound.graph.program import Node, Program
from surebound.graph.walk import forward
from surebound.numerics import TRACE_TOLERANCE


class Returned:
    """What submodules return while a network runs: of those that are called once, and return one tensor."""

    def __init__(self, model: nn.Module) -> None:
        self._paths = {id(module): path for path, module in model.named_modules() if path}
        self._calls: dict[str, list[Tensor | None]] = {}

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note what is returned in this context, as it was before a later call overwrote it."""
        handle = register_module_forward_hook(self._note)
        try:
            yield
        finally:
            handle.remove()

    def _note(self, module: nn.Module, args: Any, result: Any) -> None:
        if (path := self._paths.get(id(module))) is not None:
            single = result.detach().clone() if isinstance(result, Tensor) else None
            self._calls.setdefault(path, []).append(single)

    def values(self) -> dict[str, Tensor]:
        """Return the finite values by the path of the submodule."""
        single = {path: calls[0] for path, calls in self._calls.items() if len(calls) == 1}
        return {path: x for path, x in single.items() if x is not None and bool(x.isfinite().all())}


def check_inside(program: Program, returned: Returned, x: Tensor) -> None:
    """Refuse a program none of whose calls in a submodule gives what that submodule returned at x."""
    with torch.no_grad():
        found = forward(program.graph.keeping, {**program.parameters(), program.graph.input: x}, Node.run)
    within = _within(program.graph.nodes)
    for path, expected in returned.values().items():
        calls = [node for node in within.get(path, ()) if _alike(found.get(node.name), expected)]
        apart = [distance(expected, found[node.name]) for node in calls]
        if apart and not min(apart) <= tolerance(expected):
            place = next((node.source for node in reversed(calls) if node.source), "")
            raise TraceMismatchError(
                f"what the submodule {path!r} returns differs by {min(apart):.3g} from what was traced of it"
                f"{f' ({place})' if place else ''}: bounds would be about another network; does its forward() read "
                "state that changes, or is it a custom operator whose trace computes something else?"
            )


def distance(one: Tensor, other: Tensor) -> float:
    """Return the largest difference of two results, truth values too; infinite where one alone is NaN."""
    if one.shape != other.shape:
        return float("inf")
    same = (one == other) | (one.isnan() & other.isnan())
    apart = torch.where(same, 0.0, (one.double() - other.double()).abs().nan_to_num(torch.inf, torch.inf))
    return float(apart.max()) if apart.numel() else 0.0


def tolerance(expected: Tensor) -> float:
    """Return how far from a result that of another order of summation may be."""
    sizes = expected.double().abs()
    return TRACE_TOLERANCE * max(1.0, float(sizes.nan_to_num(0.0, 0.0).amax())) if expected.numel() else TRACE_TOLERANCE


def _within(nodes: Iterable[Node]) -> dict[str, list[Node]]:
    """List the calls that are made inside each submodule, by its path."""
    found: dict[str, list[Node]] = {}
    for node in nodes:
        parts = node.module.split(".") if node.module else []
        for path in itertools.accumulate(parts, lambda head, tail: f"{head}.{tail}"):
            found.setdefault(path, []).append(node)
    return found


def _alike(value: Any, expected: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == expected.shape and value.dtype == expected.dtype

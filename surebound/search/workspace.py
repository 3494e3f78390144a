"""What a process keeps between examples: the network, its encoding, a running solver."""

from __future__ import annotations

import contextlib
import copy
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from surebound.attack.network import AttackedNetwork
from surebound.bounds.constants import environment
from surebound.bounds.linear.wide import rounds_numbers
from surebound.errors import SureboundError
from surebound.graph import Program, program_of
from surebound.graph.fit import evaluating
from surebound.search.mip import NetworkEncoder
from surebound.solvers import SolverProcess, find


class Workspace:
    """One per process; everything is made when first asked for."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._encoders: dict[tuple[int, ...], NetworkEncoder] = {}
        self._solvers: dict[str, SolverProcess] = {}
        self._wide: tuple[Program | None] | None = None

    def __enter__(self) -> Workspace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the solvers' processes."""
        for solver in self._solvers.values():
            solver.close()
        self._solvers.clear()

    def program(self, x: Tensor) -> Program:
        """Return the traced network for inputs like x (B, ...)."""
        return program_of(self.model, x)

    def trace(self, x: Tensor) -> None:
        """Trace the network for inputs like x (1, ...) now, if it can be; a stage that needs it says why it cannot."""
        with contextlib.suppress(SureboundError), evaluating(self.model):
            self.program(x)

    def wide_program(self, x: Tensor) -> Program | None:
        """Return the network in float64, for bounds over the reals with hardly any rounding.

        None if that fails, or if float64 makes another network of it: one with another 0.1 in its code.
        """
        if self._wide is None:
            self._wide = (self._widened(x),)
        return self._wide[0]

    def _widened(self, x: Tensor) -> Program | None:
        try:
            program = program_of(copy.deepcopy(self.model).double(), x[:1].double())
        except (SureboundError, RuntimeError, TypeError):  # e.g. code that names float32
            return None
        same = program.graph.dtype == torch.float64 and same_over_the_reals(self.program(x[:1]), program)
        return program if same else None

    def encoder(self, x: Tensor) -> NetworkEncoder:
        """Return the MIP encoder of the network for inputs like x (B, ...); raises if it is not piecewise linear."""
        key = tuple(x.shape[1:])
        if key not in self._encoders:
            self._encoders[key] = NetworkEncoder(self.program(x[:1]))
        return self._encoders[key]

    def solver(self, name: str) -> SolverProcess:
        """Return a running solver, by name."""
        if name not in self._solvers:
            self._solvers[name] = SolverProcess(find(name))
        return self._solvers[name]

    def logits(self, x: Tensor) -> Tensor:
        """Run the network as it is deployed: outputs (B, K)."""
        with evaluating(self.model), torch.no_grad():
            return AttackedNetwork(self.model).logits(x, rows=256)


def same_over_the_reals(program: Program, wide: Program) -> bool:
    """Say whether a copy in float64 is the same function of real numbers as the program itself.

    A number in the code means what the network's own dtype makes of it, and a value that does not depend on the input
    what is computed in that dtype (docs/soundness.md, "What is trusted").
    """
    graph = program.graph
    if graph.calls(lambda node: node.varies and rounds_numbers((node.args, dict(node.kwargs)), graph.dtype)):
        return False
    with torch.no_grad():
        own, other = (environment(each, graph.input_shape[0] or 1) for each in (program, wide))
    return own.keys() == other.keys() and all(_equal(value, other[name]) for name, value in own.items())


def _equal(value: Any, wide: Any) -> bool:
    if not isinstance(value, Tensor) or not isinstance(wide, Tensor):
        return type(value) is type(wide) and bool(value == wide)
    return value.shape == wide.shape and torch.equal(value.double(), wide.double())

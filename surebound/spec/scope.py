"""What a specification may speak of: outputs and inputs of runs of networks, each under a number of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from torch import nn

from surebound.errors import SpecError
from surebound.spec.formula import Sum


@dataclass(frozen=True)
class Run:
    """One evaluation of a network at x, or at a point of the region that differs from x in the ``free`` inputs.

    ``network``: None is the one that is asked about. ``number`` tells runs at different points apart.
    """

    network: nn.Module | None = None
    free: tuple[int, ...] = ()  # places in the flattened input
    number: int = 0


HERE = Run()


class Scope:
    """Numbers for the quantities of one question, given out as they are asked for."""

    def __init__(self, model: object, inputs: int, outputs_of: Callable[[nn.Module | None], int]) -> None:
        self._model, self._outputs_of = model, outputs_of
        self.inputs = inputs  # entries of one input
        self.outputs: dict[tuple[Run, int], int] = {}  # (run, column) -> number
        self.points: dict[tuple[Run, int], int] = {}  # (run, place) -> number; its run is HERE where inputs agree

    def columns(self, run: Run = HERE) -> int:
        """Count the outputs of a run."""
        return self._outputs_of(run.network)

    def output(self, column: int, run: Run = HERE) -> Sum:
        """Return an output of a run."""
        count = self.columns(run)
        if not 0 <= column < count:
            raise SpecError(f"output {column}: the network has {count} outputs, 0 to {count - 1}")
        return self._number(self.outputs, run, column)

    def input(self, place: int, run: Run = HERE) -> Sum:
        """Return an input of a run, by its place in the flattened input."""
        if not 0 <= place < self.inputs:
            raise SpecError(f"input {place}: the network has {self.inputs} inputs, 0 to {self.inputs - 1}")
        return self._number(self.points, run if place in run.free else HERE, place)

    def _number(self, table: dict[tuple[Run, int], int], run: Run, place: int) -> Sum:
        if run.network is self._model:  # a network is a function: compared with itself it differs by 0
            run = dataclasses.replace(run, network=None)
        number = table.setdefault((run, place), len(self.outputs) + len(self.points))
        return Sum(terms={number: Fraction(1)})

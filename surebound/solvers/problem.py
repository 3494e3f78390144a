"""A linear or mixed-integer problem and the limits of its solution: all that a solver is told."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import scipy  # its parts are loaded when they are used: `sparse` takes as long as a small query
from numpy.typing import NDArray

from surebound.errors import InputError

Vector = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, eq=False)
class MathProgram:
    """Maximise ``objective @ x + offset`` over a polyhedron, some coordinates being integers.

    The polyhedron is ``row_lower <= matrix @ x <= row_upper`` and ``lower <= x <= upper``. Without integers
    it is a linear program. N columns, M rows.
    """

    objective: Vector  # (N,)
    offset: float
    matrix: scipy.sparse.csr_array  # (M, N)
    row_lower: Vector  # (M,)
    row_upper: Vector  # (M,)
    lower: Vector  # (N,)
    upper: Vector  # (N,)
    integral: NDArray[np.bool_]  # (N,)

    def __post_init__(self) -> None:
        rows, columns = self.matrix.shape
        for name, size in (
            ("objective", columns), ("lower", columns), ("upper", columns), ("integral", columns),
            ("row_lower", rows), ("row_upper", rows),
        ):  # fmt: skip
            if getattr(self, name).shape != (size,):
                raise InputError(f"{name} has shape {getattr(self, name).shape}, the matrix asks for ({size},)")
        numbers = (self.objective, self.matrix.data, self.row_lower, self.row_upper, self.lower, self.upper)
        if not math.isfinite(self.offset) or any(np.isnan(array).any() for array in numbers):
            raise InputError("the problem contains NaN or an infinite offset; no solver may see it")

    @property
    def binaries(self) -> int:
        """How many coordinates are integers."""
        return int(self.integral.sum())

    def value(self, point: Vector | None) -> float:
        """Return the objective at a point (N,); minus infinity if there is none."""
        return -math.inf if point is None else float(self.objective @ point + self.offset)

    def relaxed(self) -> MathProgram:
        """Return the linear program without the integrality."""
        return dataclasses.replace(self, integral=np.zeros_like(self.integral))


@dataclasses.dataclass(frozen=True)
class Limits:
    """When a solver must stop.

    ``prove_below``: stop as soon as the dual bound is below it (the maximum is proved to be).
    ``falsify_above``: stop as soon as an incumbent is above it. None: do not stop for that.
    ``feasibility``: how far a constraint may be violated (numerics.SOLVER_FEASIBILITY).
    """

    feasibility: float
    seconds: float = math.inf
    memory_bytes: int | None = None
    threads: int = 1
    prove_below: float | None = None
    falsify_above: float | None = None

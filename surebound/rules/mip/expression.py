"""Tensors as affine expressions of MIP variables, and their encoder.

Affine operators are substituted into expressions and cost no variable. Only what bends adds some
(Tjeng, Xiao and Tedrake, Evaluating robustness of neural networks with mixed integer programming, 2019).
V variables, E entries of a tensor; everything is float64 of one example.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import scipy  # its parts are loaded when they are used: `sparse` takes as long as a small query
from numpy.typing import NDArray

from surebound.errors import BoundError

Vector = NDArray[np.float64]
Indices = NDArray[np.intp]


@dataclasses.dataclass(frozen=True, eq=False)
class Expression:
    """``matrix @ variables + constant``, flattened, with bounds of every entry; the batch axis is 1."""

    matrix: scipy.sparse.csr_array  # (E, V) for the variables that there were when it was made
    constant: Vector  # (E,)
    lower: Vector  # (E,)
    upper: Vector  # (E,)
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """E."""
        return len(self.constant)

    def take(self, index: Indices, shape: tuple[int, ...] | None = None) -> Expression:
        """Select entries, repeated or moved: index (E',)."""
        shape = shape if shape is not None else (len(index),)
        return Expression(self.matrix[index], self.constant[index], self.lower[index], self.upper[index], shape)

    def bounded(self, lower: Vector, upper: Vector) -> Expression:
        """Intersect the bounds with another pair; NaN tells nothing."""
        return dataclasses.replace(
            self, lower=np.fmax(self.lower, lower.ravel()), upper=np.fmin(self.upper, upper.ravel())
        )


def constant_expression(value: Vector) -> Expression:
    """Make the expression of a tensor that does not vary."""
    flat = np.asarray(value, dtype=np.float64).ravel()
    return Expression(scipy.sparse.csr_array((len(flat), 0)), flat, flat, flat, np.shape(value))


def stack(parts: list[Expression]) -> Expression:
    """Stack the entries of several expressions, one after the other: shape (sum of E,)."""
    width = max(part.matrix.shape[1] for part in parts)
    return Expression(
        scipy.sparse.csr_array(scipy.sparse.vstack([widened(part.matrix, width) for part in parts], format="csr")),
        np.concatenate([part.constant for part in parts]),
        np.concatenate([part.lower for part in parts]),
        np.concatenate([part.upper for part in parts]),
        (sum(part.size for part in parts),),
    )


def widened(matrix: scipy.sparse.csr_array, width: int) -> scipy.sparse.csr_array:
    """Return the matrix with zero columns added on the right."""
    return scipy.sparse.csr_array((matrix.data, matrix.indices, matrix.indptr), shape=(matrix.shape[0], width))


Terms = Sequence[tuple[Vector | float, Expression]]


class Encoder:
    """Collects variables and rows ``row_lower <= matrix @ variables <= row_upper``."""

    def __init__(self) -> None:
        self._lower: list[Vector] = []
        self._upper: list[Vector] = []
        self._integral: list[NDArray[np.bool_]] = []
        self._rows: list[tuple[scipy.sparse.csr_array, Vector, Vector]] = []
        self.width = 0  # V so far

    def copy(self) -> Encoder:
        """Return another encoder that starts with everything of this one."""
        other = Encoder()
        other._lower, other._upper = list(self._lower), list(self._upper)
        other._integral, other._rows = list(self._integral), list(self._rows)
        other.width = self.width
        return other

    def variables(self, lower: Vector, upper: Vector, shape: tuple[int, ...] | None = None) -> Expression:
        """Add continuous variables; their bounds must be finite."""
        return self._new(lower, upper, False, shape)

    def binaries(self, count: int) -> Expression:
        """Add variables in {0, 1}."""
        return self._new(np.zeros(count), np.ones(count), True, None)

    def _new(self, lower: Vector, upper: Vector, integral: bool, shape: tuple[int, ...] | None) -> Expression:
        lower, upper = np.asarray(lower, np.float64).ravel(), np.asarray(upper, np.float64).ravel()
        if not (np.isfinite(lower).all() and np.isfinite(upper).all()):
            raise BoundError("a MIP needs finite bounds of every value; an infinite or NaN bound was given")
        count, start = len(lower), self.width
        self._lower.append(lower)
        self._upper.append(upper)
        self._integral.append(np.full(count, integral))
        self.width += count
        columns = np.arange(start, self.width)
        matrix = scipy.sparse.csr_array((np.ones(count), columns, np.arange(count + 1)), shape=(count, self.width))
        return Expression(matrix, np.zeros(count), lower, upper, shape if shape is not None else (count,))

    def at_least(self, terms: Terms, bound: Vector | float) -> None:
        """Add rows ``sum of coefficient * expression >= bound``, one per entry; coefficients (E,)."""
        self._constrain(terms, bound, np.inf)

    def at_most(self, terms: Terms, bound: Vector | float) -> None:
        """Add rows ``sum of coefficient * expression <= bound``, one per entry."""
        self._constrain(terms, -np.inf, bound)

    def equal(self, terms: Terms, value: Vector | float) -> None:
        """Add rows ``sum of coefficient * expression == value``, one per entry."""
        self._constrain(terms, value, value)

    def _constrain(self, terms: Terms, low: Vector | float, high: Vector | float) -> None:
        matrix, constant = combine(terms, self.width)
        if matrix.shape[0]:
            self._rows.append((matrix, low - constant, high - constant))

    def materialised(self, x: Expression, dense: int) -> Expression:
        """Give every entry of x that has more than ``dense`` terms a variable of its own."""
        chosen = np.flatnonzero(np.diff(x.matrix.indptr) > dense)
        if not len(chosen):
            return x
        old = x.take(chosen)
        new = self.variables(old.lower, old.upper)
        self.equal([(1.0, new), (-1.0, old)], 0.0)
        return replaced(x, chosen, new)

    def system(self) -> tuple[scipy.sparse.csr_array, Vector, Vector]:
        """Return all rows: matrix (M, V), row_lower (M,), row_upper (M,)."""
        if not self._rows:
            return scipy.sparse.csr_array((0, self.width)), np.zeros(0), np.zeros(0)
        blocks = [widened(matrix, self.width) for matrix, _, _ in self._rows]
        matrix = scipy.sparse.csr_array(scipy.sparse.vstack(blocks, format="csr"))
        lower, upper = (np.concatenate([row[i] for row in self._rows]) for i in (1, 2))
        return matrix, lower, upper

    def domain(self) -> tuple[Vector, Vector, NDArray[np.bool_]]:
        """Return bounds (V,) and integrality (V,) of the variables."""
        return np.concatenate(self._lower), np.concatenate(self._upper), np.concatenate(self._integral)


def combine(terms: Terms, width: int) -> tuple[scipy.sparse.csr_array, Vector]:
    """Sum coefficients times expressions, row by row: matrix (E, width) and constant (E,)."""
    size = terms[0][1].size
    matrix, constant = scipy.sparse.csr_array((size, width)), np.zeros(size)
    for coefficient, expression in terms:
        scale = np.broadcast_to(np.asarray(coefficient, dtype=np.float64), (size,))
        matrix = matrix + scaled_rows(widened(expression.matrix, width), scale)
        constant = constant + scale * expression.constant
    matrix = scipy.sparse.csr_array(matrix)
    matrix.eliminate_zeros()
    return matrix, constant


def scaled_rows(matrix: scipy.sparse.csr_array, scale: Vector) -> scipy.sparse.csr_array:
    """Return diag(scale) @ matrix."""
    data = matrix.data * np.repeat(scale, np.diff(matrix.indptr))
    # Own indices: a caller that drops zeros works in place.
    return scipy.sparse.csr_array((data, matrix.indices.copy(), matrix.indptr.copy()), shape=matrix.shape)


def replaced(x: Expression, index: Indices, new: Expression) -> Expression:
    """Replace the entries ``index`` (N,) of x by those of ``new`` (N,)."""
    order = np.arange(x.size)
    order[index] = x.size + np.arange(len(index))
    return stack([x, new]).take(order, x.shape)


def scale_and_shift(x: Expression, slope: Vector, intercept: Vector) -> Expression:
    """Return slope * x + intercept, entry by entry; a slope of 0 leaves a constant."""
    matrix = scaled_rows(x.matrix, slope)
    matrix.eliminate_zeros()
    with np.errstate(invalid="ignore"):  # 0 * inf
        ends = np.stack([slope * x.lower, slope * x.upper])
    ends = np.where(slope == 0, 0.0, ends) + intercept
    return Expression(matrix, slope * x.constant + intercept, ends.min(0), ends.max(0), x.shape)


def elements(shape: tuple[int, ...]) -> int:
    """Count the entries of a tensor of this shape."""
    return math.prod(shape)

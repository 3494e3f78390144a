"""Answers as text and files: the standard's assignment formats, and the older one of the competitions."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from surebound.disk import explained, write_whole
from surebound.errors import QueryError
from surebound.graph.onnx.file import onnx_package
from surebound.vnnlib.query import Query
from surebound.vnnlib.witness import Assignment


def decimal(value: np.float32) -> str:
    """Return the shortest decimal numeral that is read back as the same float32 number; without exponent.

    >>> decimal(np.float32(0.1)), decimal(np.float32(-3))
    ('0.1', '-3.0')
    """
    return np.format_float_positional(np.float32(value), unique=True, trim="0")


def assignment_lines(query: Query, assignment: Assignment) -> Iterator[str]:
    """Write the standard's command-line format: a line per variable, then its elements in row-major order."""
    for variable in query.variables:
        yield f"{variable.name} {variable.dtype} [{','.join(map(str, variable.shape))}]"
        for value in assignment[variable.name].reshape(-1):
            yield decimal(value)


def flat_lines(query: Query, assignment: Assignment) -> Iterator[str]:
    """Write the competitions' format for queries of version 1.0: ((X_0 0.5) ... (Y_0 1.0))."""
    pairs = [
        f"({variable.name}_{i} {decimal(value)})"
        for variable in query.variables
        for i, value in enumerate(assignment[variable.name].reshape(-1))
    ]
    for i, pair in enumerate(pairs):
        yield ("(" if i == 0 else " ") + pair + (")" if i == len(pairs) - 1 else "")


def serialise(query: Query, assignment: Assignment, folder: Path) -> None:
    """Write one ONNX TensorProto per variable: FOLDER/NAME.pb."""
    onnx_package()
    numpy_helper = importlib.import_module("onnx.numpy_helper")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for variable in query.variables:
            array = np.asarray(assignment[variable.name], dtype=np.float32).reshape(variable.shape)
            proto = numpy_helper.from_array(array, variable.name)
            write_whole(folder / f"{variable.name}.pb", proto.SerializeToString())
    except OSError as error:
        raise QueryError(f"the assignment cannot be written to {folder}: {explained(error)}") from error

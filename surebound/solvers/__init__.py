"""Solvers behind one interface, ``solve(problem, limits) -> SolverOutcome``, in processes that can be killed."""

from __future__ import annotations

import importlib.util

from surebound.errors import ConfigError, MissingExtraError
from surebound.solvers.outcome import SolverOutcome, SolverStatus
from surebound.solvers.problem import Limits, MathProgram
from surebound.solvers.process import SolverProcess

__all__ = ["Limits", "MathProgram", "SolverOutcome", "SolverProcess", "SolverStatus", "available", "find"]

# name -> (the package it needs, the extra that brings it)
_SOLVERS = {"highs": ("highspy", ""), "scip": ("pyscipopt", "scip"), "gurobi": ("gurobipy", "gurobi")}


def available() -> tuple[str, ...]:
    """List the solvers whose packages are installed, the default first.

    >>> available()[0]
    'highs'
    """
    return tuple(name for name, (package, _) in _SOLVERS.items() if importlib.util.find_spec(package))


def find(name: str) -> str:
    """Return the backend module of a solver; raises if it is not known or not installed.

    >>> find("highs")
    'surebound.solvers.highs'
    """
    if ":" in name or "." in name:  # a module of the user's own
        return name
    if name not in _SOLVERS:
        raise ConfigError(f"solver {name!r} is not known; choose one of: {', '.join(_SOLVERS)}")
    package, extra = _SOLVERS[name]
    if name not in available():
        raise MissingExtraError(package, extra, f"the solver {name!r}")
    return f"surebound.solvers.{name}"

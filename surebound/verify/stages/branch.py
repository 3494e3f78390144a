"""The complete search by branch and bound: float-sound, batched over sub-problems and classes, the workhorse."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from surebound.errors import BoundError, UnsupportedOperatorError
from surebound.verify.branch_and_bound import Options, search
from surebound.verify.query import Finding, Query
from surebound.verify.solvers import find
from surebound.verify.stages.base import Stage
from surebound.verify.workspace import Workspace


@dataclasses.dataclass(frozen=True)
class BranchAndBound(Stage):
    """Splits on unstable ReLUs, linear bounds with optimised multipliers, attacks from open sub-problems.

    Sound for the deployed network, or over the reals where only rounding forbids that; complete for ReLU networks but
    for margins within rounding of 0.
    Wang et al. 2021; see verify/branch_and_bound.py.
    """

    name: ClassVar[str] = "branch-and-bound"
    chunk: ClassVar[int] = 1
    options: Options = Options(reals=True)

    def check(self) -> None:
        find(self.options.solver)

    def decide(self, query: Query, workspace: Workspace) -> list[Finding]:
        try:
            return search(query, workspace, self.options)
        except (UnsupportedOperatorError, BoundError) as error:
            return [Finding(detail=str(error).splitlines()[0]) for _ in range(len(query))]

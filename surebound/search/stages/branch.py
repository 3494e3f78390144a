"""The complete search by branch and bound: float-sound, batched over sub-problems and classes, the workhorse."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch

from surebound.errors import BoundError, InputError, UnsupportedOperatorError
from surebound.search.branch_and_bound import Options, search
from surebound.search.few_inputs import decide_few
from surebound.search.query import Finding, Query
from surebound.search.splitting.rule import FEW_INPUTS, SPLITS
from surebound.search.stages.base import Stage
from surebound.search.workspace import Workspace
from surebound.solvers import find


@dataclasses.dataclass(frozen=True)
class BranchAndBound(Stage):
    """Splits on unstable ReLUs, linear bounds with optimised multipliers, attacks from open sub-problems.

    Few inputs are split themselves (search/splitting/rule.py), unless ``splits`` names what to split, in order.
    Sound for the deployed network, or over the reals where only rounding forbids that; complete for ReLU networks but
    for margins within rounding of 0.
    Wang et al. 2021; see search/branch_and_bound.py.
    """

    name: ClassVar[str] = "branch-and-bound"
    chunk: ClassVar[int] = 1
    options: Options = Options(reals=True)
    splits: tuple[str, ...] = ()  # of "input-splitting" and "relu-splitting"; none: by the rule

    def __post_init__(self) -> None:
        if not set(self.splits) <= set(SPLITS):
            raise InputError(f"splits={self.splits!r}; name one or both of {', '.join(SPLITS)}, or none")

    def check(self) -> None:
        find(self.options.solver)

    def decide(self, query: Query, workspace: Workspace) -> list[Finding]:
        try:
            if not self._by_rule(query, workspace):
                return search(query, workspace, self.options)
            ones = (query.take(torch.tensor([i])) for i in range(len(query)))
            return [decide_few(one, workspace, self.options, self.splits) for one in ones]
        except (UnsupportedOperatorError, BoundError) as error:
            return [Finding(detail=str(error).splitlines()[0]) for _ in range(len(query))]

    def _by_rule(self, query: Query, workspace: Workspace) -> bool:
        """Is there anything to choose? Boxes go through the network many at a time, so that must be possible."""
        x = query.region.reference
        if not self.splits and x[0].numel() > FEW_INPUTS:
            return False
        return self.splits != SPLITS[1:] and workspace.program(x).graph.input_shape[0] is None

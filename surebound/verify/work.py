"""The unit of work: some examples through some stages. Picklable, and it knows nothing of who runs it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import nn

from surebound.search.agreement import check_agreement
from surebound.search.cascade import Cascade
from surebound.search.record import Record
from surebound.search.verdicts import Example, Setting, StageFailure, decide
from surebound.search.workspace import Workspace
from surebound.verdict import Status


@dataclasses.dataclass(frozen=True, eq=False)
class Unit:
    """Examples of one radius for one segment of the cascade.

    ``attempt`` counts earlier failures, ``skip`` stages of the segment that are behind the examples.
    """

    segment: int
    examples: tuple[Example, ...]
    attempt: int = 0
    skip: int = 0

    @property
    def hardness(self) -> float:
        """How far its examples are from a proof: their open cases' margins, as far as known; the far take longest."""
        return sum(each.state.distance for each in self.examples if each.state is not None)

    def without(self, settled: Callable[[int], bool]) -> Unit:
        """Return the unit without examples that need no answer any more."""
        left = tuple(example for example in self.examples if not settled(example.index))
        return dataclasses.replace(self, examples=left)

    def parts(self) -> list[Unit]:
        """Return the same examples one by one, for another try."""
        return [dataclasses.replace(self, examples=(e,), attempt=self.attempt + 1) for e in self.examples]


@dataclasses.dataclass(frozen=True, eq=False)
class UnitAnswer:
    """What became of a unit: records of the decided, the others with what is known; or why it failed."""

    records: tuple[Record, ...] = ()
    open: tuple[Example, ...] = ()
    failure: str = ""
    stage: str = ""  # the one that failed, if that is known


@dataclasses.dataclass(frozen=True, eq=False)
class Work:
    """Everything that units have in common. A process makes one Workspace and answers unit after unit."""

    model: nn.Module
    cascade: Cascade
    setting: Setting
    shape: tuple[int, ...]  # of one image

    def workspace(self) -> Workspace:
        """Return what to pass to ``answer``; close it at the end."""
        return Workspace(self.model)

    def answer(self, unit: Unit, workspace: Workspace) -> UnitAnswer:
        """Run one unit. Whatever a stage raises becomes a failure, never a verdict."""
        try:
            stages = self.cascade.segments[unit.segment][unit.skip :]
            if unit.examples and any(stage.bounds for stage in stages):
                # Not on the first stage's clock.
                workspace.trace(torch.from_numpy(unit.examples[0].image[None]))
            records, undecided = decide(stages, unit.examples, self.setting, workspace)
            self._check(unit, records, workspace)
        except StageFailure as failure:
            error = failure.__cause__
            text = str(error).strip().splitlines()
            reason = f"{type(error).__name__}: {text[0] if text else ''}"
            return UnitAnswer(failure=reason, stage=failure.stage)
        return UnitAnswer(tuple(records), tuple(undecided))

    def _check(self, unit: Unit, records: Sequence[Record], workspace: Workspace) -> None:
        """Check, before a proof leaves, that what was bounded is the network, on the examples that were proved."""
        proved = {record.index for record in records if record.verdict.status is Status.ROBUST}
        images = [torch.from_numpy(each.image) for each in unit.examples if each.index in proved]
        if not images:
            return
        region = self.setting.region(torch.stack(images), unit.examples[0].eps)
        try:
            check_agreement(workspace.program(region.x), self.model, region, self.setting.seed)
        except Exception as error:
            raise StageFailure("agreement") from error

"""The interface of a stage."""

from __future__ import annotations

import abc
from typing import ClassVar

from surebound.search.question import Finding, Questions
from surebound.search.workspace import Workspace


class Stage(abc.ABC):
    """One step of a cascade: a frozen dataclass of its settings with one method.

    To write one: subclass as a frozen dataclass, set ``name``, and ``chunk`` to how many examples it wants at
    once. ``decide`` gets examples that are still open and returns one Finding each: bounds, or a candidate
    witness, or nothing. It never gives verdicts: merging, re-running witnesses and keeping time are done for it
    (search/verdicts.py), so that no stage can get them wrong.
    """

    name: ClassVar[str]
    chunk: ClassVar[int] = 256
    #: Does it bound the network, so that every operator needs a rule?
    bounds: ClassVar[bool] = True
    #: Is it an attack? What it falsifies counts into the "PGD error".
    is_attack: ClassVar[bool] = False

    @abc.abstractmethod
    def decide(self, questions: Questions, workspace: Workspace) -> list[Finding]:
        """Return one finding per question, in order."""

    def check(self) -> None:  # noqa: B027  (most stages need nothing)
        """Raise if this stage cannot run here, e.g. because a package is missing."""

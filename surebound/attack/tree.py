"""The objective of a specification that is a tree of rows: how far the property is from holding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from surebound.attack.objective import Objective, broken, worst
from surebound.errors import SpecError
from surebound.numerics import gamma
from surebound.spec import Run, Scope, Spec
from surebound.spec.formula import All, Any, AtLeast, Atom, Formula, Sum, atoms, renamed
from surebound.spec.scope import HERE


@dataclass(frozen=True, eq=False)
class TreeObjective(Objective):
    """Rows c.z + d, each <= 0 where its atom holds, and the tree over them: the largest of parts that must all hold,
    the smallest of alternatives. The same property for every example."""

    formula: Formula
    place: dict[Atom, int]
    c: Tensor  # (A, K) float64
    d: Tensor  # (A,) float64

    @classmethod
    def of(cls, spec: Spec, outputs: int) -> TreeObjective:
        """Return the objective of a specification about the outputs of one run."""
        scope = _Outputs(spec, outputs)
        formula = renamed(spec.formula(scope), {number: column for (_, column), number in scope.outputs.items()})
        place = {atom: i for i, atom in enumerate(dict.fromkeys(atoms(formula)))}
        c = torch.zeros(len(place), outputs, dtype=torch.float64)
        d = torch.zeros(len(place), dtype=torch.float64)
        for atom, i in place.items():
            for element, value in atom.terms:
                c[i, element] -= float(value)
            d[i] = -float(atom.constant)
        return cls(formula, place, c, d)

    def values(self, logits: Tensor) -> Tensor:
        return self._tree(logits @ self.c.T.to(logits) + self.d.to(logits))

    def violated(self, logits: Tensor) -> Tensor:
        wide, c, d = logits.double(), self.c.to(logits.device), self.d.to(logits.device)
        # The coefficients themselves may have been rounded to float64: two terms more.
        slack = gamma(c.shape[1] + 4, torch.float64) * (wide.abs() @ c.abs().T + d.abs())
        return broken(worst(self._tree(wide @ c.T + d - slack)))

    def _tree(self, rows: Tensor) -> Tensor:
        """Combine rows (R, A) into the parts of the property that must all hold: (R, S)."""
        rows = torch.where(rows.isnan(), torch.inf, rows)  # NaN satisfies nothing
        parts = self.formula.parts if isinstance(self.formula, All) and self.formula.parts else (self.formula,)
        return torch.stack([self._degree(part, rows) for part in parts], 1)

    def _degree(self, part: Formula, rows: Tensor) -> Tensor:
        """Measure how far a part is from holding, <= 0 where it holds: (R,)."""
        if isinstance(part, Atom):
            return rows[:, self.place[part]]
        found = [self._degree(each, rows) for each in part.parts]
        if not found:
            return rows.new_full((len(rows),), torch.inf if isinstance(part, Any) else -torch.inf)
        stacked = torch.stack(found, 1)
        if isinstance(part, AtLeast):
            return stacked.kthvalue(part.count, 1).values
        return stacked.amax(1) if isinstance(part, All) else stacked.amin(1)

    def __getitem__(self, index: Tensor) -> TreeObjective:
        return self


class _Outputs(Scope):
    """The outputs of one run, and nothing else to speak of."""

    def __init__(self, spec: Spec, outputs: int) -> None:
        super().__init__(None, 0, lambda network: outputs)
        self._spec = spec

    def columns(self, run: Run = HERE) -> int:
        if run != HERE:
            self._refuse()
        return super().columns(run)

    def input(self, place: int, run: Run = HERE) -> Sum:
        self._refuse()
        return super().input(place, run)

    def _refuse(self) -> None:
        raise SpecError(
            f"{self._spec!r} relates two runs; look for a violation by "
            "surebound.decide(model, region, spec, stages=['attack'])"
        )

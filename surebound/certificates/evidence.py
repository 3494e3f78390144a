"""What a proof rests on, kept where it is asked for: enough for a checker that does not search."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]
Signs = NDArray[np.int8]


#: Calls of a program that are ReLUs, and flat places of some entries of each.
Layers = tuple[tuple[str, NDArray[np.int64]], ...]


@dataclass(frozen=True, eq=False)
class InnerSlopes:
    """Lower slopes that bound entries of one value inside a network, each end by slopes of its own."""

    value: str  # its name in the program
    place: NDArray[np.int64]  # (e,) flat
    layers: Layers  # the units that have slopes, U of them
    slopes: Floats  # (2, e, U): of the bounds from above, and from below


@dataclass(frozen=True, eq=False)
class Leaves:
    """Proved sub-problems of one case by the signs of U unstable ReLUs, n of them."""

    layers: Layers
    signs: Signs  # (n, U)
    slopes: Floats  # (n, U) lower slopes
    betas: Floats  # (n, U) multipliers of the splits
    through: Floats  # (n, U) coefficients of ReLU inputs where a linear program gave them, NaN elsewhere
    weights: Floats  # (n, S) of the case's rows
    inner: tuple[InnerSlopes, ...] = ()


@dataclass(frozen=True, eq=False)
class Parts:
    """Proved parts of one case's box, n of them."""

    lower: Floats  # (n, inputs)
    upper: Floats
    weights: Floats  # (n, S)


@dataclass(frozen=True, eq=False)
class Evidence:
    """How one case was proved: by bounds over the whole box, or sub-problem by sub-problem."""

    by: str  # "interval", "crown-ibp", "crown"; "splits", "boxes"; "": in a way that no certificate covers
    leaves: Leaves | None = None
    parts: Parts | None = None
    why: str = ""  # there is none, in words


#: Evidence of each proved case, by its number.
Evidences = tuple[tuple[int, Evidence], ...]


@dataclass
class SignRecorder:
    """Collects the proved sub-problems of a search by signs, case by case."""

    layers: Layers
    inner: tuple[InnerSlopes, ...] = ()
    _found: list[tuple[Tensor, ...]] = field(default_factory=list)

    def add(
        self, case: Tensor, signs: Tensor, slopes: Tensor, betas: Tensor, weights: Tensor, through: Tensor | None
    ) -> None:
        """Note sub-problems: cases (n,), the others (n, U) or (n, S); ``through``: None where no program gave it."""
        if len(case):
            marks = torch.full(slopes.shape, torch.nan, dtype=torch.float64) if through is None else through
            self._found.append((case, signs, slopes.double(), betas.double(), marks, weights))

    def evidence(self, case: int) -> Evidence:
        """Return what was proved of one case."""
        chosen = [tuple(part[each[0] == case] for part in each[1:]) for each in self._found]
        if not any(len(each[0]) for each in chosen):
            return Evidence("")
        signs, slopes, betas, through, weights = (torch.cat(parts).numpy() for parts in zip(*chosen, strict=True))
        return Evidence("splits", Leaves(self.layers, signs, slopes, betas, through, weights, self.inner))


@dataclass
class BoxRecorder:
    """Collects the proved parts of a search by boxes, case by case."""

    _found: list[tuple[Tensor, ...]] = field(default_factory=list)

    def add(self, case: Tensor, lower: Tensor, upper: Tensor, weights: Tensor) -> None:
        """Note boxes (n, *input) of cases (n,), and the weights (n, S) of their rows."""
        if len(case):
            self._found.append((case, lower.flatten(1).double(), upper.flatten(1).double(), weights.double()))

    def evidence(self, case: int) -> Evidence:
        """Return what was proved of one case."""
        chosen = [tuple(part[each[0] == case] for part in each[1:]) for each in self._found]
        if not any(len(each[0]) for each in chosen):
            return Evidence("")
        return Evidence("boxes", parts=Parts(*(torch.cat(parts).numpy() for parts in zip(*chosen, strict=True))))

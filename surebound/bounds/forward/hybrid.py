"""Hybrid zonotopes: a centre, an error of every entry's own and a few shared error terms (Mirman et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from surebound.affine import AffineFunction
from surebound.bounds.constants import Constants
from surebound.bounds.forward.domain import Forward, blocks
from surebound.bounds.forward.zonotope import ZonotopeDomain, ZonotopeForm
from surebound.bounds.linear.intermediate import MEMORY
from surebound.errors import InputError
from surebound.graph import Program
from surebound.interval import Interval
from surebound.numerics import WIDE, Soundness, Working, by_rows, nothing_known, round_up
from surebound.rules.relax.lines import Lines, Slopes

#: What becomes of an unstable ReLU's shared terms: dropped (zBox), kept (zDiag), or in between, by how much of its
#: interval is positive (zSmooth); each by the slope of the lower line.
TRANSFORMERS: dict[str, Slopes] = {"box": "zero", "diag": "one", "smooth": "upper"}


def check_hybrid(transformer: str, correlated: int | None, wrong: type[Exception]) -> None:
    """Refuse an unknown transformer and a negative number of correlated inputs."""
    if transformer not in TRANSFORMERS:
        raise wrong(f"transformer={transformer!r}; give one of {', '.join(TRANSFORMERS)}")
    if correlated is not None and correlated < 0:
        raise wrong(f"correlated={correlated}; give a number of inputs, 0 for boxes, or none for all inputs")


@dataclass(frozen=True)
class Hybrid:
    """Hybrid zonotopes: every value is a centre, shared terms of some inputs, and an error of its own.

    requirement: soundness "real" or "deployed"
    transformer: of unstable ReLUs; "box" drops their shared terms, "diag" keeps them, "smooth" keeps a part
    correlated:  how many inputs get a shared term, those of the largest upper ends; None: all, 0: interval bounds
    property:    sound; not complete; intersected with interval bounds at every value; as many terms as inputs at most
    reference:   Mirman et al. 2018, "Differentiable abstract interpretation for provably robust neural networks":
                 hybrid zonotopes, zBox, zDiag and zSmooth
    """

    within_intervals: ClassVar[bool] = False  # their rows are not merged with the last layer's

    transformer: str = "smooth"
    correlated: int | None = None
    memory: int = MEMORY

    def __post_init__(self) -> None:
        check_hybrid(self.transformer, self.correlated, InputError)

    def margins(self, program: Program, box: Interval, c: Tensor, d: Tensor, mode: Soundness) -> Tensor:
        """Bound c.z + d from above, c (B, S, K), d (B, S): (B, S)."""
        upper = torch.empty(c.shape[:2], dtype=box.dtype, device=box.device)
        for part, block in blocks(program, box, self.memory, noise=False):
            domain = HybridDomain(self.transformer, self.correlated)
            form = Forward(Constants(program), mode, domain).run(block)
            upper[part] = round_up(domain.upper(form, c[part], d[part]), box.dtype)
        return nothing_known(upper)


class HybridDomain(ZonotopeDomain):
    """Zonotopes whose shared terms are those of the input: whatever comes later is an error of one entry."""

    def __init__(self, transformer: str, correlated: int | None, working: Working = WIDE) -> None:
        super().__init__(working)
        self.transformer = "box" if correlated == 0 else transformer  # without shared terms only the box is tight
        self.slopes, self.correlated = TRANSFORMERS[self.transformer], correlated

    def start(self, box: Interval) -> ZonotopeForm:
        """Give the inputs of the largest upper ends a term each; the others have an error of their own."""
        low, high = self.working.of(box.lower), self.working.of(box.upper)
        center, radius = (low + high) / 2, (high - low) / 2
        rest = (center.abs() + radius) * self.working.few
        chosen = radius > 0
        if self.correlated is not None:
            ends = by_rows(torch.where(chosen, high, torch.full_like(high, -torch.inf)))
            best = ends.topk(min(self.correlated, ends.shape[1]), dim=1).indices
            mask = torch.zeros_like(ends, dtype=torch.bool).scatter_(1, best, True)
            chosen = chosen & mask.reshape(chosen.shape)
        rest = rest + torch.where(chosen, torch.zeros_like(radius), radius)
        return self._extended(AffineFunction.constant(self.count, center), rest, radius, chosen)

    def relaxed(self, lines: Lines, boxes: list[Interval], forms: list[ZonotopeForm], loose: Tensor) -> ZonotopeForm:
        """Follow the lower line; the error is how far the upper one may lie above it over the box.

        Of a ReLU over [l, u], l < 0 < u: slope 0 and [0, u]; slope 1 and [0, -l]; or the mean of both with weights
        -l and u, which has the chord's slope u / (u - l) and twice the chord's error, [0, -2 l u / (u - l)].
        """
        low, high = (self.working.of(end) for end in lines.intercepts)
        rest = torch.zeros_like(low)
        function = AffineFunction.constant(self.count, rest)
        for below, above, box, form in zip(lines.lower, lines.upper, boxes, forms, strict=True):
            slope, upper = (torch.as_tensor(value, dtype=self.working.dtype) for value in (below, above))
            gap, ends = upper - slope, (self.working.of(box.lower), self.working.of(box.upper))
            high = high + torch.maximum(gap * ends[0], gap * ends[1])
            function = function + form.function.padded(self.count) * slope
            lost = slope.abs() * form.size + gap.abs() * torch.maximum(ends[0].abs(), ends[1].abs())
            rest = rest + slope.abs() * form.rest + lost * self.working.few
        width = high - low
        if self.transformer == "smooth":
            width = torch.where(loose, 2 * width, width)
        rest = rest + width / 2 + (low.abs() + high.abs() + width) * self.working.few
        return ZonotopeForm(function.shifted(low + width / 2), rest)

    def constant(self, box: Interval) -> ZonotopeForm:
        """Return the form of a value of which only bounds are known."""
        low, high = self.working.of(box.lower), self.working.of(box.upper)
        radius = (high - low) / 2 * (1 + self.working.few) + (low.abs() + high.abs()) * self.working.few
        return ZonotopeForm(AffineFunction.constant(self.count, (low + high) / 2), radius)

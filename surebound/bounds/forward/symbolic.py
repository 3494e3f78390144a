"""Symbolic intervals: every value lies between two linear functions of the input (Wang et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from surebound.bounds.constants import Constants
from surebound.bounds.forward.domain import Forward, blocks
from surebound.bounds.forward.pair import PairDomain
from surebound.bounds.linear.intermediate import MEMORY
from surebound.graph import Program
from surebound.interval import Interval
from surebound.numerics import Soundness, nothing_known, round_up


@dataclass(frozen=True)
class Symbolic:
    """Symbolic intervals with Neurify's ReLU: parallel lines of slope u / (u - l) above and below.

    requirement: soundness "real" or "deployed"
    property:    sound; not complete; intersected with interval bounds at every value
    reference:   Wang et al. 2018 (ReluVal; Neurify, section 3.1)
    """

    within_intervals: ClassVar[bool] = False  # their rows are not merged with the last layer's

    memory: int = MEMORY

    def margins(self, program: Program, box: Interval, c: Tensor, d: Tensor, mode: Soundness) -> Tensor:
        """Bound c.z + d from above, c (B, S, K), d (B, S): (B, S)."""
        upper = torch.empty(c.shape[:2], dtype=box.dtype, device=box.device)
        for part, block in blocks(program, box, self.memory, noise=False):
            domain = PairDomain(block, "upper")
            form = Forward(Constants(program), mode, domain).run(block)
            upper[part] = round_up(domain.upper(form, c[part], d[part]), box.dtype)
        return nothing_known(upper)

"""Sub-problems of branch and bound: a case's mixture over the executions whose ReLU inputs have given signs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from surebound.bounds.reduced.passes import Multipliers


@dataclass(frozen=True, eq=False)
class Domains:
    """N open sub-problems of one example, over its U unstable ReLUs."""

    case: Tensor  # (N,) int64
    weights: Tensor  # (N, S) float64: the mixture of the case's rows
    m: Multipliers  # (N, U): signs, and the multipliers that gave ``upper``
    upper: Tensor  # (N,) float64: sound upper bounds of the case's smallest row
    rounding: Tensor  # (N,) float64: how much of them is the rounding of the network and of its reduction

    @property
    def urgency(self) -> Tensor:
        """Take the most suspicious first: (N,)."""
        return self.upper - self.rounding

    def __len__(self) -> int:
        return len(self.case)

    def __getitem__(self, index: Tensor) -> Domains:
        return Domains(self.case[index], self.weights[index], self.m[index], self.upper[index], self.rounding[index])

    @classmethod
    def cat(cls, parts: list[Domains]) -> Domains:
        """Join several pools into one."""
        if len(parts) == 1:
            return parts[0]
        m = Multipliers(
            torch.cat([p.m.signs for p in parts]),
            torch.cat([p.m.alphas for p in parts]),
            torch.cat([p.m.betas for p in parts]),
        )
        case, weights, upper, rounding = (
            torch.cat([getattr(p, name) for p in parts]) for name in ("case", "weights", "upper", "rounding")
        )
        return cls(case, weights, m, upper, rounding)

    @classmethod
    def unknown(cls, case: Tensor, weights: Tensor, m: Multipliers) -> Domains:
        """Return sub-problems of which no bound is known."""
        upper = torch.full((len(case),), torch.inf, dtype=torch.float64)
        return cls(case, weights, m, upper, torch.zeros_like(upper))

    @property
    def free(self) -> Tensor:
        """(N, U) bool: not split yet."""
        return self.m.signs == 0

    def split(self, entry: Tensor, own: Tensor) -> Domains:
        """Split every sub-problem at one entry each (N,): (2N) halves, negative ones first.

        own (N,): the entry's coefficient in the bound. The new multiplier makes up for a lower line that the cut has
        replaced (a ReLU's own: x or 0), so that no half starts with a worse bound than the whole.
        """
        both = self[torch.arange(len(self)).repeat(2)]
        at = entry.repeat(2).unsqueeze(1)
        sign = torch.ones(len(both), 1, dtype=torch.int8)
        sign[: len(self)] = -1
        alpha = self.m.alphas.gather(1, entry.unsqueeze(1))
        below = -own.clamp(max=0).to(alpha.dtype).unsqueeze(1)
        beta = torch.cat([below * alpha, below * (1 - alpha)])
        m = Multipliers(both.m.signs.scatter(1, at, sign), both.m.alphas, both.m.betas.scatter(1, at, beta))
        return replace(both, m=m)

"""The live batch of a search: rows, each one trial of one example, and all that must shrink with them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from surebound.attack import noise
from surebound.attack.box import InnerBox
from surebound.attack.network import AttackedNetwork
from surebound.attack.objective import Objective, broken, worst
from surebound.attack.result import Ledger
from surebound.region import project

#: Ended rows are removed once they are this share of the batch: copying the others costs about as much as a
#: few wasted rows.
DROP_SHARE = 1 / 16

Loss = Callable[[Tensor], Tensor]  # (R, S) values of the specification -> (R,)


@dataclass(frozen=True, eq=False)
class AttackProblem:
    """A search: the network, its examples that are to be broken, and what breaks them."""

    network: AttackedNetwork
    box: InnerBox
    objective: Objective
    targets: Tensor  # (B, S) rows of the specification, the closest to violation first
    choices: int  # how many of them can be violated at all
    seed: int
    chunk: int  # rows that may be in flight
    names: Tensor  # (B,) int64: what examples are called in random draws


class AttackRows:
    """Iterates of one chunk: an attack reads ``x``, asks for gradients or values, keeps its ``state`` here.

    Everything that is evaluated through ``gradient`` or ``look`` is remembered if it is the worst of its row.
    """

    def __init__(self, problem: AttackProblem, ledger: Ledger, example: Tensor, trial: Tensor) -> None:
        box = problem.box[example]
        self.example, self.trial = example, trial  # (R,)
        self.lower, self.upper = box.lower, box.upper  # (R, ...)
        self.x = box.reference  # (R, ...)
        self.state: dict[str, Tensor] = {}  # (R, ...) each: shrinks with the rows
        self._problem, self._ledger = problem, ledger
        self._objective = problem.objective[example]
        self._best = self.x.clone()
        self._value = ledger.value.new_full((len(example),), -math.inf)
        self._ended = torch.zeros_like(example, dtype=torch.bool)
        self._ended_count = 0
        # Every live row has made the same number of steps and queries; a row that ends writes them down.
        self._steps, self._queries = 0, 0
        self._spent = torch.zeros_like(example).unsqueeze(1).repeat(1, 2)  # (R, 2)

    def __len__(self) -> int:
        return len(self.example)

    @property
    def live(self) -> int:
        """Rows that are still needed."""
        return len(self) - self._ended_count

    @property
    def half_width(self) -> Tensor:
        """Half the extent of the box in every coordinate: (R, ...)."""
        return (self.upper - self.lower) / 2

    def uniform(self, *purpose: int) -> Tensor:
        """Draw numbers in [0, 1) that belong to these trials and this purpose: (R, ...)."""
        return noise.uniform(self._keys(purpose), self._numel).view_as(self.x).to(self.x)

    def signs(self, *purpose: int) -> Tensor:
        """Draw signs that belong to these trials and this purpose: (R, ...)."""
        return noise.signs(self._keys(purpose), self._numel).view_as(self.x).to(self.x)

    @property
    def choices(self) -> int:
        """How many rows of the specification can be violated at all."""
        return self._problem.choices

    def target(self, rank: Tensor) -> Tensor:
        """Return the specification's row that was ``rank``-th closest to violation before the search: (R,)."""
        return self._problem.targets[self.example, rank]

    def gradient(self, loss: Loss) -> Tensor:
        """Return the gradient of the loss at x: (R, ...); x is remembered if it is its row's worst."""
        values: list[Tensor] = []

        def total(logits: Tensor) -> Tensor:
            values.append(self._objective.values(logits))
            return loss(values[0])

        _, gradient = self._problem.network.ascent(self.x, total)
        self._observe(values[0].detach())
        if self._problem.box.ball is not None:
            self.state["slope"] = gradient
        return gradient

    def look(self) -> None:
        """Evaluate x without a gradient; x is remembered if it is its row's worst."""
        self._observe(self._objective.values(self._problem.network.logits(self.x, self._problem.chunk)))

    def probe(self, points: Tensor, loss: Loss) -> Tensor:
        """Return losses at P points per row, in the box or not: (P, R, ...) -> (P, R). Nothing is remembered."""
        logits = self._problem.network.logits(points.flatten(0, 1), self._problem.chunk)
        self._queries += len(points)
        return torch.stack([loss(self._objective.values(z)) for z in logits.view(len(points), len(self), -1)])

    @property
    def probes_at_once(self) -> int:
        """Points per row that fit into memory together."""
        return max(1, self._problem.chunk // max(1, len(self)))

    def place(self, x: Tensor) -> None:
        """Put the iterate on the closest point of the box."""
        box = self._problem.box
        if box.ball is None:
            self.x = project(x, self.lower, self.upper)
        else:
            self.x = box[self.example].nearest(x, self.state.get("slope"))

    def move(self, x: Tensor) -> None:
        """Take one step: the next iterate is the closest point of the box."""
        self.place(x)
        self._steps += 1

    def drop_ended(self) -> None:
        """Hand ended rows to the ledger, once there are enough of them to be worth the copying."""
        if self._ended_count and self._ended_count >= DROP_SHARE * len(self):
            self._enter(self._ended)
            self._keep((~self._ended).nonzero().squeeze(1))

    def finish(self) -> None:
        """Hand every row to the ledger."""
        self._end(torch.ones_like(self._ended))
        self._enter(self._ended)

    def _observe(self, values: Tensor) -> None:
        """Remember x where it is worse than anything before; end the rows that are decided."""
        value = worst(values)
        self._queries += 1
        # A NaN is not <= and so is kept; its row is broken and ends here.
        keep = value <= self._value
        if self._ended_count:
            keep |= self._ended
        self._value = torch.where(keep, self._value, value)
        self._best = torch.where(keep.view(-1, *[1] * (self.x.dim() - 1)), self._best, self.x)
        fell = broken(value)
        if bool(fell.any()):
            fell &= ~self._ended
            self._ledger.broke(self.example[fell], self.trial[fell])
            # Later trials of a broken example are not needed; earlier ones are, or chunking would show.
            self._end(fell | (self.trial > self._ledger.winner[self.example]))

    def _end(self, which: Tensor) -> None:
        """End rows (R,) that need no further step: what they have spent is final."""
        which = which & ~self._ended
        self._spent[which] = torch.tensor([self._steps, self._queries], device=which.device)
        self._ended |= which
        self._ended_count = int(self._ended.sum())

    def _enter(self, which: Tensor) -> None:
        steps, queries = self._spent[which].unbind(1)
        self._ledger.enter(
            self.example[which], self.trial[which], self._best[which], self._value[which], steps, queries
        )

    def _keep(self, index: Tensor) -> None:
        self.state = {name: value[index] for name, value in self.state.items()}
        self._objective = self._objective[index]
        self.x, self.lower, self.upper = self.x[index], self.lower[index], self.upper[index]
        self.example, self.trial = self.example[index], self.trial[index]
        self._best, self._value, self._spent = self._best[index], self._value[index], self._spent[index]
        self._ended, self._ended_count = self._ended[index], 0

    @property
    def _numel(self) -> int:
        return math.prod(self.x.shape[1:])

    def _keys(self, purpose: tuple[int, ...]) -> Tensor:
        return noise.row_keys(self._problem.seed, self._problem.names[self.example], self.trial, *purpose)

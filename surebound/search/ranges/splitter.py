"""Sub-problems by parts of the ranges of values inside the network: any operator that is not affine, ReLUs included.

requirement: lines or planes for the operators that lose something; many inputs do not matter
property:    sound for the executions that the mode names; not complete: what it cannot cut any more stays open
reference:   Shi et al. 2024 (GenBaB); Wang et al. 2021 (multipliers); Tawarmalani & Sahinidis 2005 (where to cut)

A cut is on the value that the execution itself computes, at a float: the two parts cover every execution.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from surebound.attack.climb import climb, smallest_row
from surebound.bounds.linear.alpha import MOST_TURNED, Adam, NamedMultipliers, optimise
from surebound.bounds.linear.backward import Relaxed, SpecBounds
from surebound.bounds.linear.intermediate import relax
from surebound.bounds.linear.narrowing import narrowed, with_fans
from surebound.bounds.linear.steps import AffineStep
from surebound.graph import Program
from surebound.interval import Interval
from surebound.numerics import proved
from surebound.search.branch_and_bound import Options, Tree
from surebound.search.mixing import mixed_upper
from surebound.search.question import Question
from surebound.search.ranges.blame import blame, executed
from surebound.search.ranges.points import cut_points, turns
from surebound.search.ranges.pool import Cuttable, RangePool

#: Numbers of the values of a batch of sub-problems, which bound memory and the time of a round.
ENTRIES = 2_000_000

#: Optimisation of a sub-problem.
NODE = Adam(steps=8, alpha_rate=0.05, beta_rate=0.05)

#: Optimisation of the parts that are tried.
PROBE = Adam(steps=3, alpha_rate=0.05, beta_rate=0.1)

#: Fewer at once take as long.
SMALLEST_BATCH = 16

#: Points of a round that are checked.
_TRIES = 8


class RangeSplitter:
    """The sub-problems of one question's cases over one box."""

    def __init__(
        self, program: Program, box: Interval, number: int, question: Question, options: Options, tree: Tree
    ) -> None:
        self._program, self._box, self._number = program, box, number
        self._question, self._options, self._tree = question, options, tree
        rows = question.cases.c.flatten(0, 1)
        self.root = with_fans(relax(program, box, question.mode, own=True, rows=rows))
        self.readers = [node.name for node in self.root.constants.calls() if self._loses(node.name)]
        sources = (source for name in self.readers for source in self._cuttable(name))
        self.cuttable = Cuttable(self.root, list(dict.fromkeys(sources)))
        nodes = program.graph.by_name
        self._turns = {name: turns(self.root, nodes[name]) for name in self.readers}
        self._alphas: dict[str, Tensor] = {}  # (S, cases, ...), of the cases themselves
        self._copies = self.root
        self._seconds = 0.0  # of a sub-problem in the last round

    def _loses(self, name: str) -> bool:
        step = self.root.steps.get(name)
        if step is None or isinstance(step, AffineStep) or not self._cuttable(name):
            return False
        return bool(torch.as_tensor(step.loose).any())

    def _cuttable(self, name: str) -> list[str]:
        sources = self.root.constants.sources(self._program.graph.by_name[name])
        bounds = self.root.bounds
        known = (s for s in sources if s in bounds and s != self._program.graph.input)
        return [s for s in known if bounds[s].dtype.is_floating_point]

    @property
    def at_once(self) -> int:
        """Say how many sub-problems to bound together: what memory and an eighth of the time that is left allow."""
        room = min(self._options.batch, max(1, ENTRIES // max(1, self._program.graph.entries)))
        if not self._seconds:
            return room
        in_time = min(room, self._tree.left / 8 / self._seconds)
        return max(min(room, SMALLEST_BATCH), int(in_time))

    def roots(self) -> RangePool:
        """Return the cases themselves."""
        cases = self._question.cases
        return RangePool.whole(len(cases), cases.c.shape[1], self.root.bounds[self._program.graph.input].dtype)

    def goes_on(self, pool: RangePool, tree: Tree) -> bool:
        """Say, before each round, whether there is a reason to go on."""
        return tree.goes_on(pool)

    def join(self, parts: Sequence[RangePool]) -> RangePool:
        """Join several pools into one."""
        return RangePool.cat(parts)

    def advance(self, batch: RangePool, tree: Tree) -> RangePool | None:
        """Bound a batch by optimised slopes and multipliers; attack what is not proved and cut it in two."""
        began = time.monotonic()
        tree.seen += len(batch)
        first = bool(torch.isinf(batch.upper).any())
        relaxed, m = self._relaxed(batch)
        cases = self._question.cases[batch.case]
        _, m = optimise(relaxed, cases.c, cases.finite_d, self._options.root if first else NODE, m)
        found = relaxed.evaluate(cases.c, cases.finite_d, alphas=m.alphas, betas=m.betas, record=self.readers)
        if first:
            self._remember(batch, m)
        batch = dataclasses.replace(batch, beta=self.cuttable.betas_of(batch, m.betas))
        batch, weights = self._bounded(batch, relaxed, found)
        done = proved(batch.upper)
        tree.settle(batch[done])
        self._seconds = (time.monotonic() - began) / len(batch)
        left = (~done).nonzero()[:, 0]
        if not len(left):
            return None
        batch, weights, relaxed, m = batch[left], weights[left], relaxed.select(left), m.select(left)
        recorded = {name: a[:, left] for name, a in found.form.recorded.items()}
        slope = torch.einsum("ns,sn...->n...", weights, found.form.coefficients[:, left].double())
        corner = torch.where(slope > 0, self._box.upper, self._box.lower)
        values = executed(relaxed, corner)
        tree.witness = self._attacked(batch, corner, values[self._program.graph.output])
        if tree.witness is not None:
            return batch
        halves = self._cut(batch, self._lost(relaxed, recorded, m, weights, values), values)
        self._seconds = (time.monotonic() - began) / len(weights)
        return halves

    def _relaxed(self, batch: RangePool) -> tuple[Relaxed, NamedMultipliers]:
        """Relax the network over the sub-problems, with the multipliers to begin with."""
        count = len(batch)
        if self._copies.batch < count:
            self._copies = self.root.select(torch.zeros(count, dtype=torch.int64))
        parts, betas = self.cuttable.spread(batch)
        relaxed = narrowed(self._copies.select(slice(0, count)), parts)
        if not self._alphas:
            return relaxed, NamedMultipliers.start(relaxed, batch.beta.shape[0])
        fit = {name: v for name, v in self._alphas.items() if count * v[:, 0].numel() <= MOST_TURNED}
        return relaxed, NamedMultipliers({name: v[:, batch.case] for name, v in fit.items()}, betas)

    def _remember(self, batch: RangePool, m: NamedMultipliers) -> None:
        """Keep the slopes of whole cases: those of their parts begin there."""
        count = len(self._question.cases)
        for name, alpha in m.alphas.items():
            if name not in self._alphas:
                self._alphas[name] = alpha[:, :1].repeat(1, count, *[1] * (alpha.dim() - 2))
            self._alphas[name][:, batch.case] = alpha

    def _bounded(self, batch: RangePool, relaxed: Relaxed, found: SpecBounds) -> tuple[RangePool, Tensor]:
        """Return sub-problems with their sound bounds, and the weights (N, S) of the rows."""
        valid = self._question.cases.valid[batch.case]
        box = self._copies.bounds[self._program.graph.input].take(slice(0, len(batch)))
        mixed, weights = mixed_upper(found.form.coefficients, found.form.offset, box, valid)
        alone = torch.where(valid, found.upper.double(), torch.inf)
        upper = torch.fmin(torch.fmin(mixed, alone.amin(1)), batch.upper)
        if relaxed.infeasible is not None:
            upper = torch.where(relaxed.infeasible, -torch.inf, upper)
        best = torch.nn.functional.one_hot(alone.argmin(1), alone.shape[1]).double()
        by_itself = (alone.amin(1) < mixed).unsqueeze(1)
        return dataclasses.replace(batch, upper=upper), torch.where(by_itself, best, weights)

    def _attacked(self, batch: RangePool, points: Tensor, z: Tensor) -> Tensor | None:
        """Look for a witness at the inputs (N, *input) that bounds take for the worst, and uphill from the best."""
        cases, confirm = self._question.cases[batch.case], self._question.confirm
        value = smallest_row(z, cases.c, cases.d)
        for i in (value >= 0).nonzero()[:_TRIES, 0].tolist():
            witness = confirm(points[i : i + 1], self._number)
            if witness is not None:
                return witness
        best = value.nan_to_num(-torch.inf).argmax().reshape(1)
        rows = cases[best]
        climbed = climb(
            self._program, points[best], self._box.lower, self._box.upper, rows.c, rows.d, self._tree.end
        )  # fmt: skip
        found = (confirm(point, self._number) for point, _ in climbed)
        return next((witness for witness in found if witness is not None), None)

    def _lost(
        self,
        relaxed: Relaxed,
        recorded: dict[str, Tensor],
        m: NamedMultipliers,
        weights: Tensor,
        values: dict[str, Tensor],
    ) -> Tensor:
        """Return what the bounds lose by every entry: (N, U)."""
        worst = weights.argmax(1)
        rows = torch.arange(len(worst))
        total = torch.zeros(len(worst), self.cuttable.count, dtype=torch.float64)
        for name in self.readers:
            if name not in recorded:
                continue
            each = recorded[name] - m.betas[name] if name in m.betas else recorded[name]  # (S, N, *out)
            a = torch.einsum("ns,sn...->n...", weights.to(each.dtype), each)
            alpha = m.alphas.get(name)
            alpha = None if alpha is None else alpha[worst, rows]
            node = self._program.graph.by_name[name]
            for source, lost in blame(relaxed, node, a, values, alpha):
                if source in self.cuttable.first:
                    total[:, self.cuttable.of(source)] += lost.flatten(1)
        return total

    def _cut(self, batch: RangePool, lost: Tensor, values: dict[str, Tensor]) -> RangePool | None:
        """Cut each where its bound loses most; settle, open, what has nothing left to cut."""
        if not self.cuttable.count:
            self._tree.settle(batch)
            return None
        count = min(self._options.candidates, max(1, self.at_once // (2 * len(batch))), self.cuttable.count)
        all_values = torch.cat([values[name].flatten(1) for name in self.cuttable.shapes], 1)  # (N, U)
        entry = lost.topk(count, 1).indices  # (N, K)
        low, high = self.cuttable.ends(batch, entry)
        point = cut_points(low, high, all_values.gather(1, entry), self._turns_of(entry))
        fits = (low < point) & (point < high)
        score = torch.where(fits, lost.gather(1, entry), -1.0)
        free = (score > -1).any(1)
        self._tree.settle(batch[~free])
        kept = free.nonzero()[:, 0]
        if not len(kept):
            return None
        batch = batch[kept]
        entry, point, low, high, score = (v[kept] for v in (entry, point, low, high, score))
        best = score.argmax(1, keepdim=True)
        if count > 1 and self._tree.left > 0:
            best = self._tried(batch, entry, point, low, high, score)
        chosen = [v.gather(1, best)[:, 0] for v in (entry, point, low, high)]
        return self._halves(batch, *chosen)

    def _turns_of(self, entry: Tensor) -> Tensor:
        """Return the places (N, K, T) where functions of the entries turn; NaN where there are fewer."""
        most = max([len(found) for found in self._turns.values()] + [1])
        table = torch.full((self.cuttable.count, most), torch.nan, dtype=torch.float64)
        for name, found in self._turns.items():
            if found:
                (source,) = self.root.constants.sources(self._program.graph.by_name[name])
                table[self.cuttable.of(source), : len(found)] = torch.tensor(found, dtype=torch.float64)
        return table[entry]

    def _halves(self, batch: RangePool, entry: Tensor, point: Tensor, low: Tensor, high: Tensor) -> RangePool:
        known = batch.entry == entry.unsqueeze(1)
        beta = (batch.beta * known).sum(2)  # (S, N)
        return batch.cut(entry, point, low, high, (beta, beta))

    def _tried(
        self, batch: RangePool, entry: Tensor, point: Tensor, low: Tensor, high: Tensor, score: Tensor
    ) -> Tensor:
        """Return which candidate (N, 1) has the best worse half, by bounds of a few steps."""
        count = entry.shape[1]
        again = torch.arange(len(batch)).repeat_interleave(count)
        halves = self._halves(batch[again], *(v.flatten() for v in (entry, point, low, high)))
        relaxed, m = self._relaxed(halves)
        cases = self._question.cases[halves.case]
        found, _ = optimise(relaxed, cases.c, cases.finite_d, PROBE, m)
        upper = torch.where(cases.valid, found.double(), torch.inf).amin(1)
        upper = torch.fmin(upper, halves.upper).clamp(min=0).reshape(2, len(batch), count)  # proved is as good as any
        value = upper.amax(0) + 0.1 * upper.amin(0)
        return torch.where(score > -1, value, torch.inf).argmin(1, keepdim=True)

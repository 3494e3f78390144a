"""Sub-problems by signs of ReLU inputs: bounded with optimised multipliers, attacked, cut at the ReLU that gains most.

Where nothing is left to cut, a linear program finds the multipliers; where ascent in them is stuck, one helps
(search/signs/programs.py). A split is on the value that the execution itself computes, so that the halves cover every
execution.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from surebound.attack.reduced import ReducedAttack
from surebound.bounds.linear.alpha import Adam
from surebound.bounds.reduced.descent import descend
from surebound.bounds.reduced.network import Reduced
from surebound.bounds.reduced.passes import Multipliers, Pass, Passes
from surebound.bounds.reduced.reduction import Refine, reduce_relaxed
from surebound.bounds.reduced.targets import TargetRow, Targets
from surebound.certificates.evidence import Evidence, InnerSlopes, SignRecorder
from surebound.graph import Program
from surebound.interval import Interval
from surebound.numerics import SOLVER_FEASIBILITY, Soundness, proved
from surebound.search.branch_and_bound import Options, Tree
from surebound.search.mixing import mixed_upper
from surebound.search.question import Question
from surebound.search.signs.branching import candidates, choose
from surebound.search.signs.domains import Domains
from surebound.search.signs.leaves import settle
from surebound.search.signs.programs import PROGRAM_SECONDS, Programs
from surebound.search.signs.propagation import Propagation
from surebound.search.workspace import Workspace
from surebound.solvers import Limits, MathProgram, SolverOutcome

#: So many sub-problems are bounded before linear programs help, and so many at once where they bound all of them.
PROGRAMS_AFTER = 64
PROGRAMS_BATCH = 8

#: So many at once where signs follow from others: each is cut with care.
PROPAGATED_BATCH = 32

#: A bound this far below 0, and so many times what it lacks of rounding, is worth no more optimisation.
_GOAL, _MORE = -1e-4, 1.05  # heuristic: when to stop


class SignSplitter:
    """The sub-problems of one question's cases over one box."""

    def __init__(
        self,
        reduced: Reduced,
        number: int,
        question: Question,
        workspace: Workspace,
        options: Options,
        tree: Tree,
        propagates: bool = True,
    ) -> None:
        self.reduced, self.options, self.tree, self._workspace = reduced, options, tree, workspace
        self.bounds: Mapping[str, Interval] = {}  # of the network's values, where they are known
        self.valid, self._numbers = question.cases.valid, question.numbers
        self.fast = Targets(Passes(reduced, reduced.lower.dtype), self.valid)
        self.exact = Targets(Passes(reduced, torch.float64), self.valid)
        outputs = reduced.outputs
        rounding = 0.5 * (outputs.up_offset - outputs.low_offset).reshape(self.valid.shape)
        self.rounding = torch.where(self.valid, rounding, 0.0).amax(1)  # (N,)
        shape = question.cases.lower[:1].shape
        self.attack = ReducedAttack(self.fast, lambda x: question.confirm(x.reshape(shape), number))
        self.programs = Programs(self.exact, self.attack, self._solve, lambda: tree.left)
        self.propagation, self._propagates = Propagation(self.exact), propagates
        layers = tuple((layer.name, layer.place.numpy()) for layer in reduced.layers)
        self._recorder = SignRecorder(layers) if question.certify else None

    def evidence(self, inner: tuple[InnerSlopes, ...] = ()) -> dict[int, Evidence]:
        """Return what the proofs of the cases rest on, if that was to be kept; ``inner``: and bounds inside."""
        if self._recorder is None:
            return {}
        kept = dataclasses.replace(self._recorder, inner=inner)
        return {n: kept.evidence(n) for n in range(len(self.valid))}

    @classmethod
    def over(
        cls,
        program: Program,
        box: Interval,
        mode: Soundness,
        number: int,
        question: Question,
        workspace: Workspace,
        options: Options,
        tree: Tree,
        refine: Refine | None = None,
        wide: bool = False,
        known: Mapping[str, Interval] | None = None,
    ) -> SignSplitter:
        """Reduce the network over the box of that number for all rows of the question's cases (``reduce_network``)."""
        cases = question.cases
        c = cases.c.flatten(0, 1).to(box.lower.dtype) if cases.c.dtype != torch.float64 else cases.c.flatten(0, 1)
        reduced, relaxed = reduce_relaxed(
            program, box, c, mode, d=cases.finite_d.flatten(), refine=refine, wide=wide, known=known
        )
        found = cls(reduced, number, question, workspace, options, tree)
        found.bounds = relaxed.bounds
        return found

    @property
    def at_once(self) -> int:
        """Say how many sub-problems to bound together."""
        if self.propagation.goes_on:
            return min(self.options.batch, PROPAGATED_BATCH)
        return min(self.options.batch, PROGRAMS_BATCH) if self.programs.first else self.options.batch

    def roots(self) -> Domains:
        """Return the cases themselves, about which nothing is known."""
        count = len(self.valid)
        slopes = [layer.slope for layer in self.reduced.layers]
        dtype = self.fast.passes.dtype
        alphas = (torch.cat(slopes) if slopes else self.reduced.lower[:0]).to(dtype).repeat(count, 1)
        m = Multipliers(self.reduced.signs.repeat(count, 1), alphas, torch.zeros_like(alphas))
        case = torch.arange(count)
        found = Domains.unknown(case, self.exact.start(case), m)
        if self._propagates:
            self.propagation.prepare(found)
        return found

    def goes_on(self, pool: Domains, tree: Tree) -> bool:
        """Say, before each round, whether there is a reason to go on."""
        return tree.goes_on(pool)

    def join(self, parts: Sequence[Domains]) -> Domains:
        """Join several pools into one."""
        return Domains.cat(list(parts))

    def advance(self, batch: Domains, tree: Tree) -> Domains | None:
        """Bound a batch; attack what is not proved and cut it in two."""
        tree.seen += len(batch)
        batch = self._propagated(batch)
        if tree.witness is not None or not len(batch):
            return batch if len(batch) else None
        adam = self.options.root if bool(torch.isinf(batch.upper).any()) else self.options.node
        batch, found, gaps = self._improved(batch, adam)
        if not len(batch):
            return None
        tree.witness = self.attack(self.exact.passes.corner(found), batch.case)
        if tree.witness is None and tree.seen >= PROGRAMS_AFTER and self.reduced.ball is None:  # programs know boxes
            batch, found, gaps = self._by_programs(batch, found, gaps)
        if tree.witness is not None or not len(batch):
            return batch if len(batch) else None
        leaf = ~batch.free.any(1)
        for i in leaf.nonzero():  # (1,) each
            if tree.left <= 0:  # a program each: a batch of leaves would take long after its time
                return batch
            self._leaf(batch[i])
        keep = (~leaf).nonzero()[:, 0]
        if not len(keep):
            return None
        return self._cut(batch[keep], found.own[keep].to(batch.m.alphas.dtype), gaps[keep])

    def bounded_roots(self, cases: Tensor, start: Multipliers | None = None) -> tuple[Domains, Pass]:
        """Bound some cases (N,) as a whole; settle what is proved, return the others; attack them.

        ``start``: multipliers (N, U) to begin with, those of a whole that this is a part of.
        """
        self.tree.seen += len(cases)
        roots, adam = self.roots()[cases], self.options.root
        if start is not None:
            roots, adam = dataclasses.replace(roots, m=start), self.options.node
        batch, found, _ = self._improved(roots, adam)
        if len(batch):
            self.tree.witness = self.attack(self.exact.passes.corner(found), batch.case)
        return batch, found

    def bounds_of(self, roots: Domains) -> Domains:
        """Bound cases as a whole from given multipliers, without settling any."""
        self.tree.seen += len(roots)
        row = self._row(self.fast, roots)
        best, _ = descend(self.fast.passes, row.a, row.offset, roots.m, self.options.node, self._goal(roots))
        return self._bounded(dataclasses.replace(roots, m=best))[0]

    def _improved(self, batch: Domains, adam: Adam) -> tuple[Domains, Pass, Tensor]:
        """Bound sub-problems by optimised multipliers and settle what is proved; return the others, with their gaps."""
        if bool(torch.isinf(batch.upper).any()):  # nothing is known of its rounding
            batch = dataclasses.replace(batch, rounding=self._bounded(batch)[0].rounding)
        row, goal = self._row(self.fast, batch), self._goal(batch)
        patience = self.options.patience if adam is self.options.node else None
        best, gaps = descend(self.fast.passes, row.a, row.offset, batch.m, adam, goal, patience)
        batch, found = self._bounded(dataclasses.replace(batch, m=best))
        index = self._open(batch)
        return batch[index], found.select(index), gaps[index]

    def _cut(self, batch: Domains, own: Tensor, gaps: Tensor) -> Domains:
        """Cut sub-problems where most follows from it if something does, else where the bound gains most."""
        entry = self.propagation.best(batch)  # (N,)
        known, left = (entry >= 0).nonzero()[:, 0], (entry < 0).nonzero()[:, 0]
        halves = [batch[known].split(entry[known], own[known, entry[known]])] if len(known) else []
        if len(left):
            batch, own = batch[left], own[left]
            room = max(1, self.options.batch // (2 * len(batch)))
            entries = candidates(self.reduced, own, gaps[left], batch, min(room, self.options.candidates))
            row, goal, probe = self._row(self.fast, batch), self._goal(batch), self.options.probe
            halves.append(choose(self.fast.passes, row, own, entries, batch, probe, goal))
        return Domains.cat(halves)

    def _propagated(self, batch: Domains) -> Domains:
        """Add the signs that follow from others, where rows imply some; settle what they refute; attack the rest.

        No certificate says why a sign follows: where one is asked for, signs are left to bounds.
        """
        index = self.propagation.grips[batch.case].nonzero()[:, 0]
        if not len(index) or self._recorder is not None:
            return batch
        part = batch[index]
        ranges = self.propagation.narrowed(part)
        signs = torch.where(part.free, ranges.signs, part.m.signs)
        # What is left out has no execution with all rows > 0, and no more is known of its rows.
        changed = ranges.refuted | (signs != part.m.signs).any(1)
        self.tree.settle(dataclasses.replace(part[changed], upper=torch.zeros_like(part.upper[changed])))
        kept = ~ranges.refuted
        if bool(kept.any()):
            self.tree.witness = self.attack(self.propagation.corner(ranges)[kept], part.case[kept])
        every = batch.m.signs.index_copy(0, index, signs)
        alive = torch.ones(len(batch), dtype=torch.bool).index_copy(0, index, kept)
        return dataclasses.replace(batch, m=dataclasses.replace(batch.m, signs=every))[alive.nonzero()[:, 0]]

    def _goal(self, batch: Domains) -> Tensor:
        """Return the bounds (N,) of passes without rounding below which sound ones prove, as far as that is known."""
        inside = (batch.rounding - self.rounding[batch.case]).clamp(min=0)  # heuristic: when to stop
        return _GOAL - _MORE * inside

    def _row(self, targets: Targets, batch: Domains) -> TargetRow:
        return targets.mixed(batch.case, batch.weights)

    def _open(self, batch: Domains, through: Tensor | None = None) -> Tensor:
        """Settle what is proved, by given coefficients of ReLU inputs if any; return the places (n,) of the rest."""
        done = proved(batch.upper)
        self.tree.settle(batch[done])
        self._note(batch[done], None if through is None else through[done])
        return (~done).nonzero()[:, 0]

    def _note(self, done: Domains, through: Tensor | None = None) -> None:
        if self._recorder is not None:
            self._recorder.add(done.case, done.m.signs, done.m.alphas, done.m.betas, done.weights, through)

    def _bounded(self, batch: Domains) -> tuple[Domains, Pass]:
        """Bound sub-problems soundly with their multipliers; with several rows, weigh these anew."""
        passes, m, upper = self.exact.passes, batch.m.to(torch.float64), batch.upper
        if self.exact.width > 1:
            bound, weights = self._weighed(batch, m)
            batch, upper = dataclasses.replace(batch, weights=weights), torch.fmin(upper, bound)
        row = self._row(self.exact, batch)
        found = passes.pull(row.a, row.offset, m, row.rounding_size)
        upper = torch.fmin(upper, passes.upper(found))
        rounding = passes.rounding(found) + self.rounding[batch.case]
        if self.reduced.wide or self.reduced.lower.dtype == torch.float64:  # no other rows have less of it
            rounding = torch.where(self.propagation.grips[batch.case], 0.0, rounding)  # there more than bounds decides
        return dataclasses.replace(batch, upper=upper, rounding=rounding), found

    def _weighed(self, batch: Domains, m: Multipliers) -> tuple[Tensor, Tensor]:
        """Bound every row by itself and the best mixture of them: sound bounds (N,) and its weights (N, S)."""
        passes, count, width = self.exact.passes, len(batch), self.exact.width
        up, offset = self.exact.rows(batch.case)
        again = torch.arange(count).repeat_interleave(width)
        found = passes.pull(up.flatten(0, 1), offset.flatten(), m[again])
        alone, valid = passes.upper(found).reshape(count, width), self.valid[batch.case]
        alone = torch.where(valid, alone, torch.inf)
        offset = passes.sound_offset(found).reshape(count, width)
        box = Interval(passes.lower.expand(count, -1), passes.upper_end.expand(count, -1))
        forms = found.a.reshape(count, width, -1).transpose(0, 1)
        mixed, weights = mixed_upper(forms, offset.t(), box, valid)
        best = torch.nn.functional.one_hot(alone.argmin(1), width).double()
        by_itself = (alone.amin(1) < mixed).unsqueeze(1)
        return torch.fmin(alone.amin(1), mixed), torch.where(by_itself, best, weights)

    def _solve(self, problem: MathProgram, seconds: float = PROGRAM_SECONDS) -> SolverOutcome:
        limits = Limits(SOLVER_FEASIBILITY, max(0.0, min(self.tree.left, seconds)))
        return self._workspace.solver(self.options.solver).solve(problem, limits)

    def _by_programs(self, batch: Domains, found: Pass, gaps: Tensor) -> tuple[Domains, Pass, Tensor]:
        """Return what linear programs leave open of a batch; or find a witness."""
        self.programs.walk()
        through = None
        if self.programs.witness is None:
            batch, gaps, through = self.programs.bound(batch, found.own, gaps)
        self.tree.witness = self.programs.witness
        index = self._open(batch, through)
        return batch[index], found.select(index), gaps[index]

    def _leaf(self, leaf: Domains) -> None:
        """Settle a sub-problem that has nothing left to split."""
        tree, found = self.tree, settle(self.exact, leaf, self._solve)
        if found.point is not None and tree.witness is None:
            tree.witness = self.attack(found.point.unsqueeze(0), leaf.case)
        upper = torch.fmin(leaf.upper, torch.tensor([found.upper], dtype=leaf.upper.dtype))
        leaf = dataclasses.replace(leaf, upper=upper)
        tree.settle(leaf)
        self._note(dataclasses.replace(leaf, m=dataclasses.replace(leaf.m, betas=found.betas), weights=found.weights))
        if not bool(proved(upper)) and tree.witness is None and tree.left > 0:
            tree.within_rounding = self.options.reals  # else a counterexample may still turn up elsewhere
            name = int(self._numbers[leaf.case])
            why = "its rounding" if self.reduced.ball is None else "its rounding, or for what the ball was bounded by"
            tree.undecided = f"case {name}: a leaf's bound is {float(upper):.3g}, too close to 0 for {why}"

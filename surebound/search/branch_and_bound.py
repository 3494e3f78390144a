"""Branch and bound on the signs of ReLU inputs, for all target classes of an example at once.

requirement: a network whose only loose operators are ReLUs; with others it stays sound and may end undecided
return:      one Finding per example: float-sound bounds, or a witness, or why neither
property:    sound for the deployed network; complete for ReLU networks but for margins within rounding of 0
reference:   Bunel et al. 2020 (branch and bound); Wang et al. 2021 (beta-CROWN), with slopes optimised per sub-problem

The network over an example's region is reduced once to its unstable ReLUs (bounds/reduced/). Every sub-problem
of a target is bounded by linear bounds with optimised multipliers; those that are not proved are attacked from the
corner where their bound is largest, and cut in two. A cut is on the value that the execution itself computes, so the
halves cover every execution and the whole is as sound as its parts. Where nothing is left to cut, a linear program
finds the multipliers.
"""

from __future__ import annotations

import dataclasses
import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from surebound.bounds.linear.alpha import Adam
from surebound.bounds.reduced.descent import descend
from surebound.bounds.reduced.network import Reduced
from surebound.bounds.reduced.passes import Multipliers, Pass, Passes
from surebound.bounds.reduced.reduction import reduce_network
from surebound.errors import InputError
from surebound.interval import Interval
from surebound.numerics import SOLVER_FEASIBILITY, Soundness, proved
from surebound.search.branching import candidates, choose
from surebound.search.domains import Domains
from surebound.search.leaf_attack import LeafAttack
from surebound.search.leaves import settle
from surebound.search.programs import Programs
from surebound.search.query import Finding, Query
from surebound.search.workspace import Workspace
from surebound.solvers import Limits, Outcome, Problem

#: So many sub-problems are bounded before linear programs help, and so many at once where they bound all of them.
PROGRAMS_AFTER = 64
PROGRAMS_BATCH = 8
PROGRAM_SECONDS = 10.0  # for one of them


@dataclass(frozen=True)
class Options:
    """How to search.

    seconds:    time for each example
    domains:    open sub-problems of an example beyond which it is given up
    batch:      sub-problems that are bounded at once
    root, node: optimisation of the multipliers of a whole target, and of each sub-problem
    candidates: cuts that are tried before one is chosen, as far as a batch has room for them
    probe:      optimisation of the halves that are tried
    solver:     of the linear programs at leaves
    reals:      where only rounding forbids a proof, search for one over the reals (a Finding that is not float-sound)
    """

    seconds: float = 60.0
    domains: int = 50_000
    batch: int = 256
    root: Adam = Adam(steps=40, alpha_rate=0.1, beta_rate=0.05, decay=0.96)
    node: Adam = Adam(steps=16, alpha_rate=0.05, beta_rate=0.05)
    probe: Adam = Adam(steps=6, alpha_rate=0.05, beta_rate=0.05)
    candidates: int = 8
    solver: str = "highs"
    reals: bool = False

    def __post_init__(self) -> None:
        if not self.seconds >= 0 or min(self.domains, self.batch, self.candidates) < 1:
            raise InputError(f"{self}: seconds must be >= 0; domains, batch and candidates must be 1 or more")


def search(query: Query, workspace: Workspace, options: Options) -> list[Finding]:
    """Decide every example of a query, one Finding each."""
    budget = min(options.seconds, query.seconds)
    if budget <= 0:
        return [Finding(timed_out=True) for _ in range(len(query))]
    workspace.program(query.region.reference)  # traced once: no example's time
    with torch.no_grad():
        return [_one(query.take(torch.tensor([i])), workspace, options, budget) for i in range(len(query))]


def _one(query: Query, workspace: Workspace, options: Options, budget: float) -> Finding:
    """Search for a proof that covers every execution; if rounding forbids that, for one over the reals."""
    end = time.monotonic() + budget
    x, spec = query.region.reference, query.spec.c[0, query.open_rows[0]]
    box = query.region.interval(Soundness.DEPLOYED)
    deployed = _Search(
        query, workspace, options, end, reduce_network(workspace.program(x), box, spec, Soundness.DEPLOYED)
    )
    found = deployed.finding()
    if not (options.reals and deployed.within_rounding) or end <= time.monotonic():
        return found
    program = workspace.wide_program(x)
    if program is None:
        return found
    box = Interval(box.lower.double(), box.upper.double())
    real = _Search(
        query, workspace, options, end, reduce_network(program, box, spec.double(), Soundness.REAL)
    )
    return dataclasses.replace(real.finding(), float_sound=False)


class _Search:
    """The search for one example: the open sub-problems of its targets and what the settled ones have shown."""

    def __init__(
        self, query: Query, workspace: Workspace, options: Options, end: float, reduced: Reduced
    ) -> None:
        self.query, self.workspace, self.options, self.end, self.reduced = (
            query, workspace, options, end, reduced,
        )  # fmt: skip
        self.classes = query.open_rows[0].nonzero()[:, 0]  # (T,)
        self.fast = Passes(reduced, query.region.reference.dtype)
        self.exact = Passes(reduced, torch.float64)
        self.rounding = 0.5 * (reduced.outputs.up_offset - reduced.outputs.low_offset)  # (T,)
        self.attack = LeafAttack(query, workspace, self.fast)
        self.programs = Programs(self.exact, self.attack, self._solve, lambda: self.left)
        #: (T,) the largest bound of a target's settled sub-problems. Whatever leaves the pool is settled or cut in two.
        self.settled = torch.full((len(self.classes),), -math.inf, dtype=torch.float64)
        self.witness: Tensor | None = None
        self.undecided = ""  # why it cannot be proved any more
        self.within_rounding = False  # without rounding, it would be proved
        self.seen = 0  # sub-problems bounded so far
        self.patience = math.inf  # how many may be bounded before rounding is taken for an obstacle

    @property
    def left(self) -> float:
        """Seconds."""
        return self.end - time.monotonic()

    def finding(self) -> Finding:
        """Search to the end."""
        pool = self._roots()
        while len(pool) and self.witness is None and self.left > 0 and not self._hopeless(pool):
            order = (pool.upper - pool.rounding).argsort(descending=True, stable=True)
            count = min(self.options.batch, PROGRAMS_BATCH) if self.programs.first else self.options.batch
            batch, pool = pool[order[:count]], pool[order[count:]]
            pool = Domains.cat([pool, *self._round(batch)])
        late = self.left <= 0
        crowded = len(pool) > self.options.domains
        self._settle(pool)
        late = late and not bool(proved(self.settled).all())
        margins = torch.full((self.query.margins.shape[1],), math.inf, dtype=torch.float64)
        margins[self.classes] = self.settled
        return Finding(margins, True, self.witness, timed_out=late, given_up=crowded, detail=self.undecided)

    def _hopeless(self, pool: Domains) -> bool:
        """Too many sub-problems, or only rounding keeps them open and as many again have not helped."""
        if len(pool) > self.options.domains:
            self.undecided = f"more than {self.options.domains} sub-problems are open"
        elif not bool((pool.upper <= pool.rounding).all()):
            self.patience = math.inf
        elif math.isinf(self.patience):
            self.patience = 2 * self.seen + 64
        elif self.seen > self.patience:
            self.within_rounding = True
            self.undecided = (
                f"bounds are {float(pool.upper.max()):.3g}, all of it rounding: no float-sound proof"
            )
        return self.within_rounding or len(pool) > self.options.domains

    def _roots(self) -> Domains:
        """One sub-problem per target: everything, about which nothing is known."""
        count = len(self.classes)
        slopes = [layer.slope for layer in self.reduced.layers]
        alphas = (
            (torch.cat(slopes) if slopes else self.reduced.lower[:0]).to(self.fast.dtype).repeat(count, 1)
        )
        m = Multipliers(torch.zeros(alphas.shape, dtype=torch.int8), alphas, torch.zeros_like(alphas))
        unknown = torch.full((count,), math.inf, dtype=torch.float64)
        return Domains(torch.arange(count), m, unknown, torch.zeros_like(unknown))

    def _settle(self, done: Domains) -> None:
        self.settled = self.settled.scatter_reduce(0, done.target, done.upper, "amax")

    def _rows(self, passes: Passes, batch: Domains) -> tuple[Tensor, Tensor]:
        return passes.outputs.up[batch.target], passes.outputs.up_offset[batch.target]

    def _round(self, batch: Domains) -> list[Domains]:
        """Bound a batch; what is not proved is attacked and cut in two: the halves."""
        self.seen += len(batch)
        adam = self.options.root if bool(torch.isinf(batch.upper).any()) else self.options.node
        best, gaps = descend(self.fast, *self._rows(self.fast, batch), batch.m, adam, goal=-1e-4)
        found = self.exact.pull(*self._rows(self.exact, batch), best.to(torch.float64))
        rounding = self.exact.rounding(found) + self.rounding[batch.target]
        batch = Domains(batch.target, best, torch.fmin(batch.upper, self.exact.upper(found)), rounding)
        done = proved(batch.upper)
        self._settle(batch[done])
        if bool(done.all()):
            return []
        index = (~done).nonzero()[:, 0]
        batch, found, gaps = batch[index], found.select(index), gaps[index]
        self.witness = self.attack(self.exact.corner(found), batch.target)
        if self.witness is None and self.seen >= PROGRAMS_AFTER:
            batch, found, gaps = self._by_programs(batch, found, gaps)
        if self.witness is not None or not len(batch):
            return [batch]
        leaf = ~batch.free.any(1)
        for i in leaf.nonzero():  # (1,) each
            if self.left <= 0:  # a program each: a batch of leaves would take long after its time
                return [batch]
            self._leaf(batch[i])
        if bool(leaf.all()):
            return []
        keep = (~leaf).nonzero()[:, 0]
        batch, own = batch[keep], found.own[keep].to(batch.m.alphas.dtype)
        room = max(1, self.options.batch // (2 * len(batch)))
        entries = candidates(self.reduced, own, gaps[keep], batch, min(room, self.options.candidates))
        return [choose(self.fast, self._rows(self.fast, batch), own, entries, batch, self.options.probe)]

    def _solve(self, problem: Problem) -> Outcome:
        limits = Limits(SOLVER_FEASIBILITY, max(0.0, min(self.left, PROGRAM_SECONDS)))
        return self.workspace.solver(self.options.solver).solve(problem, limits)

    def _by_programs(self, batch: Domains, found: Pass, gaps: Tensor) -> tuple[Domains, Pass, Tensor]:
        """What linear programs leave open of a batch; or a witness."""
        self.programs.walk()
        if self.programs.witness is None:
            batch, gaps = self.programs.bound(batch, found.own, gaps)
        self.witness = self.programs.witness
        done = proved(batch.upper)
        self._settle(batch[done])
        index = (~done).nonzero()[:, 0]
        return batch[index], found.select(index), gaps[index]

    def _leaf(self, leaf: Domains) -> None:
        """Settle a sub-problem that has nothing left to split."""
        found = settle(self.exact, leaf, self._solve)
        if found.point is not None and self.witness is None:
            self.witness = self.attack(found.point.unsqueeze(0), leaf.target)
        upper = torch.fmin(leaf.upper, torch.tensor([found.upper], dtype=leaf.upper.dtype))
        self._settle(dataclasses.replace(leaf, upper=upper))
        if not bool(proved(upper)) and self.witness is None and self.left > 0:
            self.within_rounding = self.options.reals  # else a counterexample may still turn up elsewhere
            k = int(self.classes[leaf.target])
            self.undecided = (
                f"class {k}: a leaf's bound is {float(upper):.3g}, too close to 0 for its rounding"
            )

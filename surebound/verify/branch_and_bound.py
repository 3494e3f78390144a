"""Branch and bound on the signs of ReLU inputs, for several examples and target classes at once.

requirement: a network whose only loose operators are ReLUs; with others it stays sound and may end undecided
return:      one Finding per example: float-sound bounds, or a witness, or why neither
property:    sound for the deployed network; complete for ReLU networks but for margins within rounding of 0
reference:   Bunel et al. 2020 (branch and bound); Wang et al. 2021 (beta-CROWN), with slopes optimised per sub-problem

Every sub-problem of a target is bounded by linear bounds with optimised multipliers; those that are not proved are
attacked from the corner where their bound is largest, and cut in two. A cut is on the value that the execution itself
computes, so the halves cover every execution and the whole is as sound as its parts.
"""

from __future__ import annotations

import dataclasses
import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from surebound.errors import InputError
from surebound.numerics import SOLVER_FEASIBILITY, Soundness, proved
from surebound.propagate.alpha import Adam, Multipliers, optimise
from surebound.propagate.backward import Relaxed
from surebound.propagate.intermediate import relax
from surebound.verify.branching import choose, inspect
from surebound.verify.domains import Domains, Layout
from surebound.verify.leaf_attack import LeafAttack
from surebound.verify.leaves import settle
from surebound.verify.query import Finding, Query
from surebound.verify.solvers import Limits, Outcome, Problem
from surebound.verify.workspace import Workspace


@dataclass(frozen=True)
class Options:
    """How to search.

    seconds:    time for each example; a batch of sub-problems is charged to their examples in equal parts
    domains:    open sub-problems of an example beyond which it is given up
    entries:    activations of a batch of sub-problems: what bounds memory and the time of a round
    root, node: optimisation of the multipliers of a whole target, and of each sub-problem
    candidates: cuts that are tried before one is chosen
    solver:     of the linear programs at leaves
    """

    seconds: float = 60.0
    domains: int = 50_000
    entries: int = 400_000
    root: Adam = Adam(steps=20)
    node: Adam = Adam(steps=8)
    candidates: int = 3
    solver: str = "highs"

    def __post_init__(self) -> None:
        if not self.seconds >= 0 or min(self.domains, self.entries, self.candidates) < 1:
            raise InputError(
                f"{self}: seconds must be >= 0; domains, entries and candidates must be 1 or more"
            )


def search(query: Query, workspace: Workspace, options: Options) -> list[Finding]:
    """Decide every example of a query, one Finding each."""
    budget = min(options.seconds, query.seconds)
    if budget <= 0:
        return [Finding(timed_out=True) for _ in range(len(query))]
    program = workspace.program(query.region.reference)  # traced once: no example's time
    start = time.monotonic()
    with torch.no_grad():
        root = relax(program, query.region.interval(Soundness.DEPLOYED), Soundness.DEPLOYED, own=True)
        run = _Search(query, workspace, options, root, budget)
        run.charge(torch.arange(len(query)), time.monotonic() - start)
        return run.findings()


class _Search:
    """One search over E examples: the open sub-problems of their P targets and what the settled ones have shown."""

    def __init__(
        self, query: Query, workspace: Workspace, options: Options, root: Relaxed, budget: float
    ) -> None:
        self.query, self.workspace, self.options, self.root = query, workspace, options, root
        self.example, self.target = query.open_rows.nonzero().unbind(1)  # (P,) each
        self.c = query.spec.c[self.example, self.target].unsqueeze(1)  # (P, 1, K)
        self.layout = Layout.of(root)
        self.attack = LeafAttack(query, workspace)
        self.rows = max(2, options.entries // max(1, self.layout.entries))
        #: (P,) the largest bound of a target's settled sub-problems. Whatever leaves the pool is settled or cut in two.
        self.settled = torch.full((len(self.target),), -math.inf)
        self.left = torch.full((len(query),), budget, dtype=torch.float64)  # (E,) seconds
        self.witness: dict[int, Tensor] = {}
        self.undecided: dict[int, str] = {}  # example -> why it cannot be proved any more
        self.stopped: set[int] = set()  # examples whose search has ended early

    def charge(self, examples: Tensor, seconds: float) -> None:
        """Take time from the accounts of examples (with repetitions), in equal parts."""
        if len(examples):
            share = torch.full((len(examples),), seconds / len(examples), dtype=torch.float64)
            self.left.index_add_(0, examples, -share)

    def findings(self) -> list[Finding]:
        """Search to the end."""
        pool = self._roots()
        start = time.monotonic()
        for part in torch.split(torch.arange(len(pool)), self.rows):
            self._try_corners(pool[part])
        self.charge(self.example[pool.pair], time.monotonic() - start)
        while len(pool := self._without_stopped(pool)):
            start = time.monotonic()
            batch, pool = self._next(pool)
            examples = self.example[batch.pair]
            pool = Domains.cat([pool, *self._round(batch)])
            self.charge(examples, time.monotonic() - start)
        return [self._finding(i) for i in range(len(self.query))]

    def _roots(self) -> Domains:
        """One sub-problem per target: everything, about which nothing is known."""
        shape = (len(self.target), self.layout.index.shape[1])
        start = Multipliers.start(self.root, 1).map(lambda v: v[0])
        example = self.example
        alphas = self.layout.compact({k: v[example] for k, v in start.alphas.items()}, example)
        return Domains(
            torch.arange(shape[0]),
            torch.zeros(shape, dtype=torch.int8),
            alphas,
            torch.zeros_like(alphas),
            torch.full(shape[:1], math.inf, dtype=self.c.dtype),
        )

    def _try_corners(self, batch: Domains) -> None:
        """Attack before anything is optimised: what falls to that needs no bounds."""
        if not len(batch):
            return
        example = self.example[batch.pair]
        node = self.root.select(example)
        form = node.evaluate(self.c[batch.pair], self.c.new_zeros(len(batch), 1)).form
        self.witness.update(self.attack(node.corner(form)[0], example, self.target[batch.pair]))

    def _without_stopped(self, pool: Domains) -> Domains:
        """Settle, as they are, the sub-problems of examples that are falsified, late or too crowded."""
        example = self.example[pool.pair]
        counts = torch.bincount(example, minlength=len(self.query))
        for i in (counts > self.options.domains).nonzero()[:, 0].tolist():
            self.undecided[i] = f"more than {self.options.domains} sub-problems are open"
            self.stopped.add(i)
        over = torch.zeros(len(self.query), dtype=torch.bool)
        over[[*self.stopped, *self.witness]] = True
        over = (over | (self.left <= 0))[example]
        if bool(over.any()):
            self._settle(pool[over])
            pool = pool[~over]
        return pool

    def _settle(self, done: Domains) -> None:
        self.settled = self.settled.scatter_reduce(0, done.pair, done.upper.to(self.settled), "amax")

    def _next(self, pool: Domains) -> tuple[Domains, Domains]:
        """The next batch and the rest: every example's worst sub-problems, as many of each as have room."""
        order = pool.upper.argsort(descending=True, stable=True)
        if len(order) > self.rows and len(self.query) > 1:
            member = self.example[pool.pair[order]].unsqueeze(1) == torch.arange(len(self.query))  # (N, E)
            rank = torch.where(member, member.cumsum(0), 0).sum(1)
            order = order[rank.argsort(stable=True)]
        return pool[order[: self.rows]], pool[order[self.rows :]]

    def _round(self, batch: Domains) -> list[Domains]:
        """Bound a batch; what is not proved is attacked and cut in two: the halves."""
        batch, node = self._bound(batch)
        done = proved(batch.upper)
        self._settle(batch[done])
        if bool(done.all()):
            return []
        index = (~done).nonzero()[:, 0]
        batch, node = batch[index], node.select(index)
        example, c = self.example[batch.pair], self.c[batch.pair]
        seen = inspect(node, self.layout, example, c, self.layout.multipliers(batch, example))
        corners = node.corner(seen.form)[0]
        self.witness.update(self.attack(corners, example, self.target[batch.pair]))
        leaf = ~seen.free.any(1)
        for i in leaf.nonzero():  # (1,) each
            self._leaf(batch[i], node.select(i))
        if bool(leaf.all()):
            return []
        keep = (~leaf).nonzero()[:, 0]
        batch, seen, c = batch[keep], seen.select(keep), c[keep]
        entry = choose(self.root, self.layout, seen, batch, c, self.options.candidates)
        return [batch.split(entry)]

    def _bound(self, batch: Domains) -> tuple[Domains, Relaxed]:
        """The batch with optimised multipliers and sound bounds."""
        example, c = self.example[batch.pair], self.c[batch.pair]
        node = self.layout.restrict(self.root, batch, example)
        first = bool(torch.isinf(batch.upper).any())  # roots
        adam = self.options.root if first else self.options.node
        start = self.layout.multipliers(batch, example)
        upper, best = optimise(node, c, c.new_zeros(c.shape[:2]), adam, start)
        alphas = self.layout.compact({k: v[0] for k, v in best.alphas.items()}, example)
        betas = {
            k: best.betas[k][0] if k in best.betas else torch.zeros_like(v[0]) for k, v in best.alphas.items()
        }
        betas_ = self.layout.compact(betas, example)
        return Domains(batch.pair, batch.signs, alphas, betas_, torch.fmin(batch.upper, upper[:, 0])), node

    def _leaf(self, leaf: Domains, node: Relaxed) -> None:
        """Settle a sub-problem that has nothing left to split."""
        i = int(self.example[leaf.pair])

        def solve(problem: Problem) -> Outcome:
            limits = Limits(SOLVER_FEASIBILITY, max(0.0, float(self.left[i])))
            return self.workspace.solver(self.options.solver).solve(problem, limits)

        found = settle(node, self.c[leaf.pair], solve)
        if found.point is not None:
            self.witness.update(
                self.attack(found.point.unsqueeze(0), self.example[leaf.pair], self.target[leaf.pair])
            )
        upper = torch.fmin(leaf.upper, torch.tensor([found.upper], dtype=leaf.upper.dtype))
        self._settle(dataclasses.replace(leaf, upper=upper))
        if not bool(proved(upper)) and i not in self.witness:
            k = int(self.target[leaf.pair])
            self.undecided[i] = (
                f"class {k}: a leaf's bound is {float(upper):.3g}, too close to 0 for its rounding"
            )

    def _finding(self, i: int) -> Finding:
        margins = torch.full((self.query.margins.shape[1],), math.inf, dtype=torch.float64)
        mine = self.example == i
        margins[self.target[mine]] = self.settled[mine].double()
        late = bool(self.left[i] <= 0) and not bool(proved(self.settled[mine]).all())
        return Finding(margins, True, self.witness.get(i), timed_out=late, detail=self.undecided.get(i, ""))

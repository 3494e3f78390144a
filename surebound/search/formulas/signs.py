"""Branch and bound on the signs of ReLU inputs for cases of several constraints, over one box of many inputs.

requirement: a network whose only loose operators are ReLUs; with others it stays sound and may end undecided
return:      "unsat", "sat" (the caller has the point), "timeout", "given up" or "unknown"
property:    sound for the executions that the mode names; complete for ReLU networks but for constraints within
             rounding of 0
reference:   Wang et al. 2021 (beta-CROWN) for one row; mixtures of rows as in mixing.py

Every sub-problem is bounded by a mixture of its rows: slopes and multipliers of the splits are optimised for the
mixture, the mixture for them. Where no ReLU is left to split, a linear program finds both, and is not trusted.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy  # its parts are loaded when they are used: `sparse` takes as long as a small query
import torch
from torch import Tensor

from surebound.bounds.linear.alpha import Adam, Multipliers, optimise
from surebound.bounds.linear.backward import Evaluation, Relaxed
from surebound.bounds.linear.intermediate import relax
from surebound.graph import ImportedNetwork
from surebound.interval import Interval
from surebound.numerics import SOLVER_FEASIBILITY, Soundness
from surebound.search.layered.branching import choose, inspect
from surebound.search.layered.domains import Domains, Layout
from surebound.search.layered.leaves import SplitRows, Vector, as_multipliers, split_rows
from surebound.search.splitting.ascent import climb
from surebound.search.splitting.boxes import Rows
from surebound.search.splitting.mixing import mixed_upper
from surebound.search.workspace import Workspace
from surebound.solvers import Limits, Outcome, Problem, SolverStatus

Candidate = Callable[[Tensor], bool]

#: Activations of a batch of sub-problems; open sub-problems beyond which a search is given up.
ENTRIES = 400_000
MOST_OPEN = 50_000

_ROOT, _NODE = Adam(steps=20), Adam(steps=6)


@dataclass(frozen=True, eq=False)
class _Open:
    """Open sub-problems; a domain's pair is the number of its case."""

    domains: Domains
    weights: Tensor  # (N, S): the mixture of rows that the parent was bounded by

    def __len__(self) -> int:
        return len(self.domains)

    def __getitem__(self, index: Tensor) -> _Open:
        return _Open(self.domains[index], self.weights[index])


class SignSearch:
    """One search over the cases of one box (1, *input)."""

    def __init__(
        self, workspace: Workspace, network: ImportedNetwork, box: Interval, rows: Rows, mode: Soundness
    ) -> None:
        self._workspace, self._network, self._rows, self._mode = workspace, network, rows, mode
        with torch.no_grad():
            self._root: Relaxed = relax(network.program, box, mode, own=True)
        self._layout = Layout.of(self._root)
        self._at_a_time = max(2, ENTRIES // max(1, self._layout.entries))

    def run(self, deadline: float, candidate: Candidate, most: int = MOST_OPEN) -> str:
        """Search to the end, until time ends it, or until more than ``most`` sub-problems are open: "given up"."""
        pool, open_leaf = self._roots(), False
        first = True
        with torch.no_grad():
            while len(pool):
                if time.monotonic() > deadline:
                    return "timeout"
                if len(pool) > most:
                    return "given up"
                order = pool.domains.upper.argsort(descending=True, stable=True)
                batch, rest = pool[order[: self._at_a_time]], pool[order[self._at_a_time :]]
                found = self._round(batch, _ROOT if first else _NODE, deadline, candidate)
                first = False
                if found is None:
                    return "sat"
                halves, left_open = found
                open_leaf = open_leaf or left_open
                pool = _Open(
                    Domains.cat([rest.domains, halves.domains]), torch.cat([rest.weights, halves.weights])
                )
        return "unknown" if open_leaf else "unsat"

    def _roots(self) -> _Open:
        count, free = len(self._rows.d), self._layout.index.shape[1]
        start = Multipliers.start(self._root, 1).map(lambda v: v[0])
        example = torch.zeros(count, dtype=torch.int64)
        alphas = self._layout.compact({k: v[example] for k, v in start.alphas.items()}, example)
        domains = Domains(
            torch.arange(count),
            torch.zeros((count, free), dtype=torch.int8),
            alphas,
            torch.zeros_like(alphas),
            torch.full((count,), torch.inf),
        )
        valid = self._rows.valid.double()
        return _Open(domains, valid / valid.sum(1, keepdim=True))

    def _round(
        self, batch: _Open, adam: Adam, deadline: float, candidate: Candidate
    ) -> tuple[_Open, bool] | None:
        """Bound a batch and cut what is left: the halves, and whether a leaf stays open; None: a witness."""
        domains, rows = batch.domains, self._rows[batch.domains.pair]
        example = torch.zeros(len(batch), dtype=torch.int64)
        node = self._layout.restrict(self._root, domains, example)
        mixed = _mixture(rows, batch.weights)
        _, best = optimise(
            node, mixed, mixed.new_zeros(mixed.shape[:2]), adam, self._layout.multipliers(domains, example)
        )
        found = self._evaluate(node, rows, best)
        box = node.bounds[node.program.graph.input]
        upper, weights = mixed_upper(found.form.coefficients, found.form.offset, box, rows.valid)
        done = rows.refuted(found.upper).any(1) | (upper < 0)
        if node.infeasible is not None:
            done = done | node.infeasible
        index = (~done).nonzero()[:, 0]
        domains = self._updated(domains, best, upper)
        if not len(index):
            return _Open(domains[index], weights[index]), False
        domains, weights, rows = domains[index], weights[index], rows[index]
        node, example = node.select(index), example[index]
        c = _mixture(rows, weights)
        seen = inspect(node, self._layout, example, c, self._layout.multipliers(domains, example))
        if self._attacked(node.corner(seen.form)[0], rows, box, deadline, candidate):
            return None
        leaf, stuck = ~seen.free.any(1), False
        for i in leaf.nonzero():  # (1,) each
            if time.monotonic() > deadline:
                return _Open(domains, weights), stuck
            settled = self._leaf(node.select(i), rows[i], deadline, candidate)
            if settled is None:
                return None
            stuck = stuck or not settled
        keep = (~leaf).nonzero()[:, 0]
        if not len(keep):
            return _Open(domains[keep], weights[keep]), stuck
        entry = choose(self._root, self._layout, seen.select(keep), domains[keep], c[keep], 3)
        return _Open(domains[keep].split(entry), weights[keep].repeat(2, 1)), stuck

    def _evaluate(self, node: Relaxed, rows: Rows, best: Multipliers) -> Evaluation:
        """Every row bounded with the mixture's multipliers: any of them are valid for any row."""
        alphas = {name: v[0] for name, v in best.alphas.items()}
        betas = {name: v[0] for name, v in best.betas.items()}
        return node.evaluate(rows.c, rows.finite_d, alphas=alphas, betas=betas)

    def _updated(self, domains: Domains, best: Multipliers, upper: Tensor) -> Domains:
        example = torch.zeros(len(domains), dtype=torch.int64)
        alphas = self._layout.compact({k: v[0] for k, v in best.alphas.items()}, example)
        zeros = {k: torch.zeros_like(v[0]) for k, v in best.alphas.items()}
        betas = self._layout.compact({**zeros, **{k: v[0] for k, v in best.betas.items()}}, example)
        worst = upper.float().nan_to_num(torch.inf)
        return dataclasses.replace(domains, alphas=alphas, betas=betas, upper=worst)

    def _attacked(
        self, corners: Tensor, rows: Rows, box: Interval, deadline: float, candidate: Candidate
    ) -> bool:
        count = min(len(corners), 8)
        low, high = (end[:1].expand(count, *end.shape[1:]) for end in (box.lower, box.upper))
        points = climb(
            self._network.program, corners[:count], low, high, rows.c[:count], rows.d[:count], deadline
        )
        return any(candidate(point) for _, point in zip(range(8), points, strict=False))

    def _leaf(self, node: Relaxed, rows: Rows, deadline: float, candidate: Candidate) -> bool | None:
        """Is a sub-problem without free ReLUs refuted? None: it holds a witness."""
        plain = node.evaluate(rows.c, rows.finite_d)
        splits = split_rows(node)
        a = plain.form.coefficients[:, 0].flatten(1).double().numpy()[rows.valid[0].numpy()]  # (S, n)
        b = plain.form.offset[:, 0].double().numpy()[rows.valid[0].numpy()]
        numbers = (a, b, splits.matrix, splits.constant)
        if not all(np.isfinite(v).all() for v in numbers):
            return False
        outcome = self._solve(_least_row(a, b, splits, node, give=0.0), deadline)
        if outcome.status is SolverStatus.INFEASIBLE:  # the signs alone contradict each other: say how
            outcome = self._solve(_least_row(a, b, splits, node, give=1.0), deadline)
        if outcome.point is not None:
            shape = node.bounds[node.program.graph.input].shape
            if candidate(torch.from_numpy(outcome.point[:-1].copy()).reshape(shape)):
                return None
        if outcome.row_duals is None:
            return False
        weights, betas = _multipliers(
            np.abs(outcome.row_duals), len(b), outcome.objective, float(np.abs(b).max() + 1)
        )
        found = node.evaluate(rows.c, rows.finite_d, betas=as_multipliers(node, splits, betas, torch.float32))
        given = np.zeros(rows.d.shape[1])
        given[rows.valid[0].numpy()] = weights
        upper, _ = mixed_upper(
            found.form.coefficients,
            found.form.offset,
            node.bounds[node.program.graph.input],
            rows.valid,
            torch.from_numpy(given).unsqueeze(0),
        )
        return bool(upper < 0)

    def _solve(self, problem: Problem, deadline: float) -> Outcome:
        limits = Limits(SOLVER_FEASIBILITY, max(0.1, deadline - time.monotonic()))
        return self._workspace.solver("highs").solve(problem, limits)


def _multipliers(duals: Vector, rows: int, least: float, size: float) -> tuple[Vector, Vector]:
    """Weights of the rows, of sum 1, and multipliers of the splits that go with them.

    Where the splits alone are contradictory the rows have no weight: they get one so small that it changes nothing.
    """
    weights, betas = duals[:rows], duals[rows:]
    if weights.sum() <= 1e-9 * (1 + betas.sum()):
        weights = weights + abs(least) / (4 * rows * size) + 1e-30
    return weights / weights.sum(), betas / weights.sum()


def _mixture(rows: Rows, weights: Tensor) -> Tensor:
    """One row (N, 1, K) per sub-problem: what slopes are optimised for; proofs do not rest on its rounding."""
    return torch.einsum("ns,nsk->nk", weights, rows.c).unsqueeze(1).float()


def _least_row(a: Vector, b: Vector, splits: SplitRows, node: Relaxed, give: float) -> Problem:
    """Maximise t with every row a x + b >= t over the box and the splits, which may be below 0 by -``give`` t."""
    box = node.bounds[node.program.graph.input]
    low, high = (end.double().numpy().reshape(-1) for end in (box.lower, box.upper))
    last = np.concatenate([-np.ones(len(a)), np.full(len(splits.matrix), -give)])
    rows = np.hstack([np.concatenate([a, splits.matrix]), last[:, None]])
    objective = np.zeros(len(low) + 1)
    objective[-1] = 1.0
    return Problem(
        objective=objective,
        offset=0.0,
        matrix=scipy.sparse.csr_array(rows),
        row_lower=np.concatenate([-b, -splits.constant]),
        row_upper=np.full(len(rows), np.inf),
        lower=np.append(low, -1e6),
        upper=np.append(high, 1e6),
        integral=np.zeros(len(low) + 1, dtype=bool),
    )

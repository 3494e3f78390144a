"""Questions about counts and choices: what steps decide, unit by unit, until the rows follow by intervals.

A network that counts pixels, or takes the largest of two masks, computes bits: steps of units that have linear bounds
like any other. A row of such outputs says nothing to gradients or multipliers, but it follows from enough of the bits.
Those that plain bounds leave open are asked one by one, the nearest to their jump first, by branch and bound over the
reduced network of the unit alone; the search ends as soon as the bits that are known prove the rows, or too few of the
others are left.

requirement: steps that jump at 0 and read no other steps; few enough of their units are open
property:    sound in the mode of the relaxation
"""

from __future__ import annotations

import bisect
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from surebound.bounds.interval import apply_rule
from surebound.bounds.linear.backward import Relaxed
from surebound.bounds.linear.intermediate import MEMORY
from surebound.bounds.linear.windows import entries_by_windows
from surebound.bounds.reduced.entry import reduce_entry
from surebound.flags import exact_kernels
from surebound.graph import Node, Program
from surebound.graph.walk import Env, forward
from surebound.interval import Interval, intersect
from surebound.numerics import add_up, proved, tiny
from surebound.rules import Context
from surebound.search.branch_and_bound import Options, Tree, explore
from surebound.search.question import Cases, Question
from surebound.search.rule import Budget
from surebound.search.signs.splitter import SignSplitter
from surebound.search.workspace import Workspace
from surebound.verdict import Status

#: Seconds that an open unit takes at least: where too many must be decided for the time that is left, none is.
UNIT_SECONDS = 0.1  # heuristic: measured on a segmentation network of 40 million multiplications

#: Sub-problems of one unit, in one round over all of them after the other: most are decided by a handful.
ROUNDS = (31, 400, 5_000)

#: Says whether bounds of the outputs (1, K) prove what is asked.
Settles = Callable[[Interval], bool]


def decided_by_units(program: Program, root: Relaxed, steps: list[Node], settles: Settles, end: float) -> Interval:
    """Bound the outputs (1, K) of one box, from which ``root`` is made, deciding units of ``steps`` until they settle.

    ``settles`` says whether bounds of the outputs would do, of those that are proved and of those that are hoped for.
    """
    with torch.no_grad(), exact_kernels(), Workspace(program.module) as workspace:
        read = [root.constants.sources(node)[0] for node in steps]
        units = _Units(root, {name: root.bounds[name] for name in read}, settles, end, workspace)
        units.run()
        return units.outputs(units.bounds)


@dataclass(frozen=True)
class _Unit:
    """An entry of a value, a flat place of it, and the side of 0 that the middle of the box has it on."""

    source: str
    place: int
    positive: bool
    distance: float  # how far its bound reaches to the other side

    def given(self, bounds: dict[str, Interval]) -> dict[str, Interval]:
        """Return bounds in which it is on its side."""
        box = bounds[self.source]
        least = torch.tensor([tiny(box.dtype)], dtype=box.dtype)
        at = torch.tensor([self.place])
        lower, upper = box.lower.flatten(), box.upper.flatten()
        if self.positive:
            lower = lower.index_copy(0, at, torch.maximum(lower[at], least))
        else:
            upper = upper.index_copy(0, at, torch.minimum(upper[at], -least))
        return {**bounds, self.source: Interval(lower.reshape(box.shape), upper.reshape(box.shape))}


@dataclass
class _Units:
    """The bounds (1, *value) of the values that steps read, tightened unit by unit."""

    root: Relaxed
    bounds: dict[str, Interval]
    settles: Settles
    end: float
    workspace: Workspace
    wide: Relaxed = field(init=False)
    behind: set[str] = field(init=False)  # the calls that depend on these values

    def __post_init__(self) -> None:
        self.wide = self.root.widened()
        start: Env = dict.fromkeys(self.bounds, True)
        reads = forward(
            self.root.program.graph.keeping, start, lambda node, env: any(env.get(name, False) for name in node.refs())
        )
        self.behind = {name for name, behind in reads.items() if behind} - set(self.bounds)

    def run(self) -> None:
        """Decide units, few sub-problems of each first, until that settles it or cannot any more."""
        if self._settled():
            return
        for name, box in self.bounds.items():
            open_ = (box.lower <= 0) & (box.upper >= 0)
            found = entries_by_windows(self.wide, name, open_, MEMORY) if box.lower.dim() == 4 else None
            if found is not None:
                self.bounds[name] = intersect(box, found)
        waiting = self._open()
        for most in ROUNDS:
            needed = self._needed(waiting)
            if needed is None or needed * UNIT_SECONDS > self.end - time.monotonic():
                return
            spare, done, again = len(waiting) - needed, 0, list[_Unit]()
            for number, unit in enumerate(waiting):
                if number - done > spare or time.monotonic() > self.end:
                    again += waiting[number:]
                    break
                status = self._status(unit, most)
                if status is Status.UNKNOWN:
                    again.append(unit)
                elif status is Status.ROBUST:
                    done += 1
                    self.bounds = unit.given(self.bounds)
                    if done >= needed and self._settled():
                        return
            waiting = again

    def _settled(self) -> bool:
        return self.settles(self.outputs(self.bounds))

    def _open(self) -> list[_Unit]:
        """List the units that bounds leave open, the nearest to being decided first."""
        program, found = self.root.program, list[_Unit]()
        middle = self.root.bounds[program.graph.input].center
        values = forward(program.graph.keeping, {**program.parameters(), program.graph.input: middle}, Node.run)
        for name, box in self.bounds.items():
            lower, upper, value = (v.flatten() for v in (box.lower, box.upper, values[name]))
            for place in ((lower <= 0) & (upper >= 0)).nonzero()[:, 0].tolist():
                positive = bool(value[place] > 0)
                distance = -float(lower[place]) if positive else float(upper[place])
                found.append(_Unit(name, place, positive, distance))
        return sorted(found, key=lambda unit: unit.distance)

    def _needed(self, units: list[_Unit]) -> int | None:
        """Count how many of the units, from the first on, settle it once they are decided; None if all do not."""
        known = [self.bounds]
        for unit in units:
            known.append(unit.given(known[-1]))
        if not self.settles(self.outputs(known[-1])):
            return None
        return bisect.bisect_left(range(len(known)), True, key=lambda n: self.settles(self.outputs(known[n])))

    def outputs(self, bounds: dict[str, Interval]) -> Interval:
        """Bound the outputs by intervals, from bounds of these values and all that does not depend on them."""
        root, graph = self.root, self.root.program.graph
        before = {name: box for name, box in root.bounds.items() if name not in self.behind}

        def visit(node: Node, env: Env) -> Any:
            out = apply_rule(Context(root.mode), node, *node.arguments(env))
            known = root.bounds.get(node.name)
            floats = isinstance(out, Interval) and out.dtype.is_floating_point
            return intersect(out, known) if floats and known is not None else out

        found: Interval = forward(graph.keeping, {**root.constants.of(1), **before, **bounds}, visit)[graph.output]
        return found

    def _status(self, unit: _Unit, most: int) -> Status:
        """Say whether a unit stays on its side, as far as so many sub-problems show; FALSIFIED where it seems not to.

        A point of the reduced network on the other side proves nothing, but no proof will be found either.
        """
        reduced = reduce_entry(self.wide, unit.source, unit.place, -1 if unit.positive else 1)
        rows = reduced.outputs
        least = torch.tensor([tiny(self.bounds[unit.source].dtype)], dtype=torch.float64)
        reduced = replace(reduced, outputs=replace(rows, up_offset=add_up(rows.up_offset, least)))
        box = Interval(reduced.lower.unsqueeze(0), reduced.upper.unsqueeze(0))
        cases = Cases.over(box, torch.zeros(1, 1, 1), torch.zeros(1, 1))
        unknown = torch.full((1,), math.inf, dtype=torch.float64)
        question = Question(cases, torch.arange(1), unknown, lambda point, _: point)
        options = Options()
        tree = Tree.of(1, self.end, Budget(options.domains, most))
        splitter = SignSplitter(reduced, 0, question, self.workspace, options, tree)
        tree.settle(explore(splitter, splitter.roots(), tree))
        if tree.witness is not None:
            return Status.FALSIFIED
        return Status.ROBUST if bool(proved(tree.settled).all()) else Status.UNKNOWN

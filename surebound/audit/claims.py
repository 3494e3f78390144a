"""Ask every method and stage about a network and hold each claim against executions."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from surebound.attack.box import InnerBox
from surebound.audit.draw import Draw
from surebound.audit.oracle import Executions, first
from surebound.audit.tally import Tally
from surebound.bounds import interval_bounds, worst_margins
from surebound.bounds.margins import METHODS
from surebound.errors import SureboundError
from surebound.graph import program_of
from surebound.region import LinfBall, Region
from surebound.search.formula import STAGES
from surebound.search.rule import SPLITS
from surebound.search.specification import decide
from surebound.verdict import Status, Verdict
from surebound.verify import verify

T = TypeVar("T")

#: What questions may take: the audit wants many small ones.
SECONDS = 2.0


@dataclasses.dataclass(frozen=True)
class Violation:
    """A claim that an execution violates, and the lines that show it behind the network's own text."""

    what: str
    shown: str


@dataclasses.dataclass(frozen=True, eq=False)
class AuditedNetwork:
    """A network, its region and labels, and where answers are counted."""

    generator: str
    net: nn.Module
    region: Region
    labels: Tensor
    draw: Draw
    tally: Tally
    methods: tuple[str, ...] = tuple(METHODS)
    apart: bool = True  # may examples be run in any company?
    within: Callable[[], AbstractContextManager[object]] = nullcontext  # the caller's state while we are asked


def violations(asked: AuditedNetwork) -> Iterator[Violation]:
    """Yield what is wrong with what the methods and stages say about a network."""
    runs = Executions(asked.net, asked.region, asked.draw, apart=asked.apart)
    if runs.constant:
        return
    operators = _operators(asked)
    bounds = _answer(asked, "intervals", lambda: interval_bounds(asked.net, asked.region))
    if bounds is not None:
        yield from _against_bounds(asked, runs, bounds.lower, bounds.upper)
        asked.tally.compared(asked.generator, operators, "intervals", runs.outputs.numel())
    worst = asked.draw.randrange(runs.outputs.shape[2])
    runs.ascend(lambda z: z[:, worst] - z.gather(1, _repeated(asked.labels, z).unsqueeze(1)).squeeze(1))
    for method in asked.methods:
        upper = _answer(asked, method, partial(_margins, asked, method))
        if upper is not None:
            yield from _against_margins(asked, runs, method, upper)
            asked.tally.compared(asked.generator, operators, method, runs.outputs.numel())
    if asked.region.reference.dtype == torch.float32:
        yield from _verdicts(asked, runs, operators)


def _repeated(labels: Tensor, z: Tensor) -> Tensor:
    return labels.repeat(len(z) // len(labels))


def _margins(asked: AuditedNetwork, method: str) -> Tensor:
    with torch.set_grad_enabled(asked.draw.chance(0.3)):
        return worst_margins(asked.net, asked.region, asked.labels, method=method).detach()


def _operators(asked: AuditedNetwork) -> set[str]:
    try:
        graph = program_of(asked.net, asked.region.reference).graph
    except SureboundError:
        return set()
    return {node.op for node in graph.calls(lambda node: node.varies and not node.is_part)}


def _answer(asked: AuditedNetwork, method: str, ask: Callable[[], T]) -> T | None:
    """Return an answer; None if the method refuses the network."""
    try:
        with asked.within():
            return ask()
    except SureboundError:
        asked.tally.silent[method] += 1
        return None


def _against_bounds(asked: AuditedNetwork, runs: Executions, lower: Tensor, upper: Tensor) -> Iterator[Violation]:
    at = runs.outside(lower, upper)
    if at is not None:
        yield Violation(
            f"interval bounds do not hold an execution: {runs.outputs[at].tolist()} is not in "
            f"[{lower[at[1]].tolist()}, {upper[at[1]].tolist()}]",
            _point(runs, at) + "bounds = sb.interval_bounds(net, region)\n"
            f"print(net(point)[{at[1]}], bounds.lower[{at[1]}], bounds.upper[{at[1]}])\n",
        )


def _against_margins(asked: AuditedNetwork, runs: Executions, method: str, upper: Tensor) -> Iterator[Violation]:
    limit = torch.where(upper.isnan(), torch.inf, upper.double())
    # A class against itself is 0 by definition, whatever the network computes.
    limit = limit.scatter(1, asked.labels.unsqueeze(1), torch.inf)
    margins = runs.margins(asked.labels)
    at = first(~(margins <= limit) & (limit != torch.inf))
    if at is not None:
        yield Violation(
            f"margins by {method} do not hold an execution: {margins[at].tolist()} above {limit[at[1]].tolist()}",
            _point(runs, at) + f'upper = sb.worst_margins(net, region, labels, method="{method}")\n'
            f"z = net(point)[{at[1]}]\nprint(z - z[labels[{at[1]}]], upper[{at[1]}])\n",
        )


def _point(runs: Executions, at: tuple[int, int]) -> str:
    x = runs.points[at[0]]
    return f"point = torch.tensor({x.tolist()}, dtype={x.dtype})\n"


def _verdicts(asked: AuditedNetwork, runs: Executions, operators: set[str]) -> Iterator[Violation]:
    """Ask one stage of ``decide``, drawn at random, and sometimes a whole cascade of ``verify``."""
    stage, seed = asked.draw.choice((*STAGES, *SPLITS)), asked.draw.randrange(100)
    one = asked.region[:1] if asked.apart else asked.region
    found = _answer(
        asked,
        stage,
        lambda: decide(asked.net, one, asked.labels[: len(one)], stages=(stage,), timeout=SECONDS, seed=seed),
    )
    if found is not None:
        call = f'sb.decide(net, region[:{len(one)}], labels[:{len(one)}], stages=("{stage}",), seed={seed})'
        yield from _against_verdicts(asked, runs, stage, found, call)
        asked.tally.compared(asked.generator, operators, stage, len(found) * len(runs.points))
    if isinstance(asked.region, LinfBall) and asked.draw.chance(0.3):
        cascade, began, ball = asked.draw.pick("fast", "default"), time.monotonic(), asked.region
        records = _answer(
            asked, f"verify {cascade}", lambda: verify(asked.net, ball, asked.labels, cascade, timeout=SECONDS)
        )
        if records is not None and time.monotonic() - began < 60:
            verdicts = [record.verdict for record in records]
            call = f'sb.verify(net, region, labels, "{cascade}")'
            yield from _against_verdicts(asked, runs, f"verify {cascade}", verdicts, call)
            asked.tally.compared(asked.generator, operators, f"verify {cascade}", len(verdicts) * len(runs.points))


def _against_verdicts(
    asked: AuditedNetwork, runs: Executions, stage: str, verdicts: list[Verdict], call: str
) -> Iterator[Violation]:
    margins = runs.margins(asked.labels)
    for i, verdict in enumerate(verdicts):
        if verdict.status is Status.ERROR:
            asked.tally.silent[stage] += 1
        if verdict.status is Status.ROBUST:
            # What rests on a solver's tolerance, or on reals, says nothing about last places.
            limit = 0.0 if verdict.float_sound else 1e-4
            at = first(~(margins[:, i : i + 1] <= limit))
            if at is not None:
                yield Violation(
                    f"{stage} says {verdict} of example {i}, where an execution has margins "
                    f"{margins[at[0], i].tolist()}",
                    _point(runs, (at[0], i)) + f"print(net(point)[{i}], labels[{i}])\nprint({call})\n",
                )
        elif verdict.status is Status.FALSIFIED and verdict.witness is not None:
            wrong = _bad_witness(asked, i, verdict.witness)
            if wrong:
                yield Violation(f"{stage} says {verdict} of example {i}; the witness {wrong}", f"print({call})\n")
        else:
            asked.tally.silent[stage] += 1


def _bad_witness(asked: AuditedNetwork, example: int, witness: Tensor) -> str:
    """Say what is wrong with a witness; nothing if it is one."""
    box = InnerBox.of(asked.region[example : example + 1])
    if not bool(((witness >= box.lower[0]) & (witness <= box.upper[0])).all()):
        return "lies outside of the region"
    with torch.no_grad():
        z = asked.net(witness.unsqueeze(0))[0]
    label = int(asked.labels[example])
    others = torch.cat([z[:label], z[label + 1 :]])
    return "" if bool((others >= z[label]).any() | z.isnan().any()) else "does not violate the property"

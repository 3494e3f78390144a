"""``decide``: is a specification true at every input of a region? For any tree of linear properties, also of two runs.

requirement: float32 networks (B, ...) -> (B, K); bounds for every operator; MIP piecewise linear
return:      one Verdict per example
property:    ROBUST is a proof (``float_sound`` says of what); FALSIFIED has a witness that was re-run
reference:   search/formula.py
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import torch
from torch import Tensor, nn

from surebound.attack.box import InnerBox
from surebound.errors import InputError, RegionError, SpecError
from surebound.graph import forward, program_of
from surebound.graph.fit import evaluating
from surebound.graph.runs import Runs, assemble
from surebound.norm_ball import L1Ball, L2Ball, NormBall
from surebound.numerics import Soundness, exact_fraction
from surebound.region import Box, Region, check_region
from surebound.search.agreement import check_agreement
from surebound.search.formula import STAGES, Certify, decide_formula
from surebound.search.problem import Problem
from surebound.search.rule import SPLITS
from surebound.spec import LinearSpec, Run, Spec, check_labels
from surebound.spec.formula import Atom, holds, opposite
from surebound.verdict import Status, Verdict


def decide(
    model: nn.Module,
    region: Region,
    spec: Spec | Sequence[Spec] | LinearSpec | Tensor,
    *,
    stages: Sequence[str] = STAGES,
    soundness: Soundness | str = Soundness.DEPLOYED,
    timeout: float = math.inf,
    seed: int = 0,
    tolerance: bool = False,
    certificates: str | Path | None = None,
) -> list[Verdict]:
    """Prove a specification at every input of a region, or find an input that violates it: one Verdict per example.

    ``spec``: one for all examples, or a list with one for each; rows c.z + d <= 0 as a LinearSpec; or labels (B,), each
    to stay the largest output. ``stages``: which of "bounds", "attack",
    "branch-and-bound" and "mip" to use. What "mip" proves rests on the solver's tolerance: it stays UNKNOWN, unless
    ``tolerance=True`` lets it count (never as float-sound).
    ``certificates``: a directory for a file per proof, which ``surebound check`` confirms (docs/certificates.md).
    ``timeout``: seconds per example. A witness (C, H, W) is a point of the region; where a specification speaks of two
    points (``Spec.monotone``) it is x and then the others, (2, C, H, W). Balls of the norms l2 and l1 go through all
    stages but "mip".

    >>> net = nn.Linear(2, 2, bias=False).requires_grad_(False)
    >>> _ = net.weight.copy_(torch.tensor([[1.0, 1.0], [1.0, -1.0]]))
    >>> unit = Box(torch.zeros(1, 2), torch.ones(1, 2))
    >>> decide(net, unit, Spec.within(-2, 3))[0]
    Verdict(robust by bounds, bound 0, float-sound)
    >>> decide(net, unit, Spec.never(1))[0].status.value
    'falsified'
    >>> decide(net, Box(unit.upper / 2, unit.upper), torch.tensor([0]))[0].status.value  # labels
    'robust'
    """
    specs = _checked(model, region, spec, stages, timeout)
    if certificates is not None and isinstance(region, NormBall):
        raise InputError(f"certificates speak of boxes and l-infinity balls, not of {region}: leave certificates out")
    mode = Soundness.of(soundness)
    if mode is Soundness.NONE:
        raise InputError("soundness='none' proves nothing; give 'deployed' or 'real'")
    known: dict[int, Runs] = {}
    verdicts = list[Verdict]()
    with evaluating(model):
        for i, each in enumerate(specs):
            one = region[i : i + 1]
            if id(each) not in known:  # traced once: no example's time
                known[id(each)] = assemble(model, one.reference, each.formula, program_of)
            deadline = time.monotonic() + timeout
            example = _Example(model, known[id(each)], one, mode)
            keep = None if certificates is None else example.certifies(Path(certificates), len(verdicts))
            verdicts.append(example.verdict(stages, deadline, seed, tolerance, keep))
    return verdicts


class _Example:
    """One example's question, and the point that answers it."""

    def __init__(self, model: nn.Module, runs: Runs, region: Region, mode: Soundness) -> None:
        self._model, self._runs, self._region = model, runs, region
        self._shape = region.reference.shape
        low, high = ends(region)
        places = [entry for _, entry in runs.free]
        ball = region if isinstance(region, NormBall) and region.eps > 0 else None
        self._problem = Problem(
            runs.network,
            runs.inputs,
            runs.columns,
            (*low, *(low[i] for i in places)),
            (*high, *(high[i] for i in places)),
            opposite(runs.formula),
            mode,
            ball=ball,
        )
        if ball is not None and runs.free:
            raise RegionError("a specification of two points is decided over boxes: give sb.LinfBall or sb.Box")
        self._inside = None if ball is None else InnerBox.of(ball)
        self._witness: Tensor | None = None

    def certifies(self, path: Path, number: int) -> Certify:
        from surebound.search.certify import certifies

        return certifies(path, self._problem.network.program, f"{number:05d}")

    def verdict(
        self, stages: Sequence[str], deadline: float, seed: int, tolerance: bool, certify: Certify | None
    ) -> Verdict:
        found = decide_formula(
            self._problem, self._judge, deadline, seed=seed, stages=stages, tolerance=tolerance, certify=certify
        )
        if found.status is Status.ROBUST:
            self._check_networks(seed)
        # What was judged is the merged input; the witness is the points that it stands for.
        return found if found.witness is None else dataclasses.replace(found, witness=self._witness)

    def _check_networks(self, seed: int) -> None:
        """Raise unless every network of the property still computes what was bounded, at points of the region."""
        others = (run.network for run, _ in self._runs.scope.outputs)
        for network in dict.fromkeys(self._model if each is None else each for each in others):
            program = program_of(network, self._region.reference)
            check_agreement(program, network, self._region, seed)

    def _judge(self, x: Tensor) -> bool:
        """Is the property violated at a merged input (1, *input), by what the networks themselves compute there?"""
        if not bool(x.isfinite().all()):
            return False
        if self._inside is not None:
            x = self._inside.settled(x.reshape(self._shape))
        points = self._runs.points(x, self._shape)
        outputs: dict[Run, list[float]] = {}
        values: dict[int, float] = {}
        for (run, column), number in self._runs.scope.outputs.items():
            if run not in outputs:
                outputs[run] = self._outputs(run, points[run.number])
            values[number] = outputs[run][column]
        for (run, place), number in self._runs.scope.points.items():
            values[number] = float(points[run.number].reshape(-1)[place])
        if holds(self._runs.formula, lambda atom: _true(atom, values)):
            return False
        self._witness = torch.cat(list(points.values())) if len(points) > 1 else points[0][0]
        return True

    def _outputs(self, run: Run, point: Tensor) -> list[float]:
        network = self._model if run.network is None else run.network
        with evaluating(network), torch.no_grad():
            values: list[float] = network(point)[0].double().tolist()
        return values


def _true(atom: Atom, values: Mapping[int, float]) -> bool:
    """Does an atom hold of these floats, in exact arithmetic? Of infinity as in floats; of NaN never."""
    used = [(coefficient, values[element]) for element, coefficient in atom.terms]
    total: Fraction | float
    if all(math.isfinite(value) for _, value in used):
        total = sum((c * Fraction(value) for c, value in used), atom.constant)
    else:
        total = sum((float(c) * value for c, value in used), float(atom.constant))
    return total > 0 or (total == 0 and not atom.strict)


def ends(region: Region) -> tuple[list[Fraction], list[Fraction]]:
    """Return the exact ends of a region of one example, flattened."""
    if isinstance(region, Box):
        found = region.lower.double().reshape(-1).tolist(), region.upper.double().reshape(-1).tolist()
        if not all(math.isfinite(value) for side in found for value in side):
            raise RegionError("the region reaches infinity; every input needs finite bounds")
        return [Fraction(value) for value in found[0]], [Fraction(value) for value in found[1]]
    if isinstance(region, NormBall):
        return ends(region.box)
    middle = [Fraction(value) for value in region.x.double().reshape(-1).tolist()]
    radii = [region.eps] * len(middle)
    if region.scale is not None:
        radii = [region.eps * Fraction(value) for value in region.scale.reshape(-1).tolist()]
    low = [value - radius for value, radius in zip(middle, radii, strict=True)]
    high = [value + radius for value, radius in zip(middle, radii, strict=True)]
    if region.clip is not None:
        least, most = (exact_fraction(end, "clip") for end in region.clip)
        # The region accepted x, so x belongs to it even where the clip end itself is not a float.
        low = [min(max(a, least), x) for a, x in zip(low, middle, strict=True)]
        high = [max(min(b, most), x) for b, x in zip(high, middle, strict=True)]
    return low, high


def _checked(model: nn.Module, region: Region, spec: object, stages: Sequence[str], timeout: float) -> list[Spec]:
    """Refuse what cannot be meant; return one specification per example."""
    if not isinstance(model, nn.Module):
        raise InputError(f"the model is a {type(model).__name__}; give a torch.nn.Module")
    check_region(region, empty=True)
    if isinstance(region, NormBall) and not isinstance(region, L1Ball | L2Ball):
        raise RegionError(
            f"decide takes boxes and balls, not {region}; sb.worst_margins proves over it and sb.attack searches it"
        )
    if region.reference.dtype != torch.float32:
        raise InputError(f"the region is {region.reference.dtype}; decisions are about float32 networks")
    unknown = [stage for stage in stages if stage not in (*STAGES, *SPLITS)]
    if unknown or not stages or isinstance(stages, str):
        raise InputError(f"stages={stages!r}; give one or more of {', '.join((*STAGES, *SPLITS))}")
    if isinstance(region, NormBall) and tuple(stages) == ("mip",):
        raise RegionError(f"programs know boxes, not {region}; leave stages out, or give 'branch-and-bound'")
    if not timeout > 0:
        raise InputError(f"timeout={timeout}; give seconds per example, more than 0")
    return _specs(model, region, spec)


def _specs(model: nn.Module, region: Region, spec: object) -> list[Spec]:
    """Return one specification per example; examples of one label share theirs."""
    if isinstance(spec, Spec):
        return [spec] * len(region)
    if isinstance(spec, Tensor):
        with evaluating(model), torch.no_grad():
            outputs = forward(model, region.reference[:1]).shape[-1] if len(region) else 0
        labels: list[int] = check_labels(spec, len(region), outputs).tolist()
        known = {label: Spec.label(label) for label in labels}
        return [known[label] for label in labels]
    if isinstance(spec, LinearSpec):
        rows = [_linear(spec[i : i + 1]) for i in range(len(spec.c) if spec.c.dim() == 3 else 1)]
        return _specs(model, region, rows[0] if len(rows) == 1 else rows)
    specs = list(spec) if isinstance(spec, Sequence) else [spec]
    wrong = [each for each in specs if not isinstance(each, Spec)]
    if wrong:
        raise SpecError(f"spec is a {type(wrong[0]).__name__}; give a Spec, a list with one per example, or labels")
    if len(specs) != len(region):
        raise SpecError(f"{len(specs)} specifications for {len(region)} examples; give one for each, or one Spec")
    return specs  # type: ignore[return-value]  # all of them were looked at


def _linear(spec: LinearSpec) -> Spec:
    """Return the rows of one example as a specification."""
    return Spec.linear(spec.c.reshape(spec.c.shape[-2:]), None if spec.d is None else spec.d.reshape(-1))

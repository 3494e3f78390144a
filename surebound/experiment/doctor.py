"""A look at a network before anything is asked of it: what is supported, how hard it is, what each method costs."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import torch
from torch import Tensor, nn

from surebound.bounds.linear.intermediate import relax
from surebound.bounds.margins import METHODS, worst_margins
from surebound.errors import BoundError, InputError, UnsupportedOperatorError
from surebound.experiment.target import Target
from surebound.graph import ImportedNetwork, Program, forward, program_of
from surebound.interval import Interval
from surebound.numerics import Soundness, proved
from surebound.region import LinfBall
from surebound.rules.relax.lines import Lines
from surebound.rules.support import Operator, Support, check

#: From quick to tight; "wong" and "symbolic" are never the ones to choose.
TRIED = ("interval", "zonotope", "crown-ibp", "crown", "alpha-crown")
USUAL_RADII = (Fraction(1, 255), Fraction(2, 255), Fraction(8, 255), Fraction(1, 10))
FEW_SIGNS = 500  # unstable ReLUs that branch and bound usually still decides in its time


@dataclass(frozen=True)
class Stability:
    """ReLUs that may have both signs within a radius, on average over the images: what makes proofs hard."""

    eps: Fraction
    by_intervals: float
    by_crown: float | None  # None: not asked, it would have taken too long
    units: int
    images: int  # both are means over so many


@dataclass(frozen=True)
class MethodCost:
    """What a method takes for one image, and what it proves of the correctly classified images at one radius."""

    name: str
    seconds: float | None  # None: not tried
    memory: int | None  # bytes that it needed beyond what was there; None: not known
    proved: int | None
    remark: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """Everything `surebound doctor` found."""

    support: Support
    parameters: int
    inputs: tuple[int, ...]
    outputs: int
    images: int
    correct: int
    made_up: bool  # no data are known: noise takes their place, with the network's own answers as labels
    eps: Fraction  # the radius of the methods' costs
    stability: tuple[Stability, ...]
    costs: tuple[MethodCost, ...]
    advice: str

    @property
    def operators(self) -> list[tuple[str, int, tuple[str, ...]]]:
        """Each operator once: its name, how often it is called, the columns that it has."""
        counts = Counter((each.op, each.columns) for each in self.support.operators)
        return [(op, count, columns) for (op, columns), count in counts.items()]

    @property
    def troubles(self) -> tuple[Operator, ...]:
        """The calls that have no interval bounds."""
        return self.support.missing("interval") if not self.support.trouble else ()


def diagnose(target: Target, radii: Sequence[Fraction] = (), images: int = 8, seconds: float = 20.0) -> Diagnosis:
    """Look at a network with a few images; methods that would exceed `seconds` in all are not tried."""
    x, labels, made_up = _examples(target, images)
    support = check(target.model, x[:1])
    parameters = sum(value.numel() for value in target.model.parameters())
    with torch.no_grad():
        outputs = forward(target.model, x)
    if outputs.dim() != 2 or outputs.shape[1] < 2:
        raise InputError(
            f"the network returns {tuple(outputs.shape)} for {len(x)} inputs; it must return (B, K), K > 1"
        )
    labels = outputs.argmax(1) if made_up else labels
    right = outputs.argmax(1) == labels  # (B,)
    chosen = tuple(sorted(radii)) or tuple(sorted(r for r in target.radii if r > 0)) or USUAL_RADII
    middle = chosen[len(chosen) // 2] if not target.radii or radii else chosen[-1]
    stability: tuple[Stability, ...] = ()
    costs: tuple[MethodCost, ...] = ()
    if support.supported and bool(right.any()):
        clock = _Countdown(seconds)
        program = program_of(target.model, x[:1])
        some, truth = x[right], labels[right]
        stability = _stabilities(program, some[:4], chosen, target.clip, clock)
        costs = tuple(_costs(target.model, LinfBall(some, middle, target.clip), truth, clock))
    correct = int(right.sum())
    advice = _advice(support, costs, stability, middle, correct)
    return Diagnosis(
        support, parameters, tuple(x.shape[1:]), int(outputs.shape[1]), len(x), correct, made_up, middle,
        stability, costs, advice,
    )  # fmt: skip


class _Countdown:
    """Time that a look may take in all."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return self._end - time.monotonic()


def _examples(target: Target, count: int) -> tuple[Tensor, Tensor, bool]:
    """A few images (B, ...) and labels (B,); noise where the network brings its input's shape but no data."""
    if target.data is not None:
        return *target.first(count), False
    if not isinstance(target.model, ImportedNetwork):
        raise InputError(f"no data are known for {target.name!r}; give --data, a dataset's name or a file of arrays")
    shape = [int(size or 1) for size in target.model.graph.input_shape[1:]]
    low, high = target.clip or (0.0, 1.0)
    noise = torch.rand(count, *shape, generator=torch.Generator().manual_seed(0))
    return low + (high - low) * noise, torch.zeros(count, dtype=torch.int64), True


def _stabilities(
    program: Program, x: Tensor, radii: Sequence[Fraction], clip: tuple[float, float] | None, clock: _Countdown
) -> tuple[Stability, ...]:
    """Count at every radius over the same images: all, or one where CROWN's own bounds take hundreds of passes."""
    began = time.monotonic()
    first = _stability(program, x[:1], radii[0], clip, clock)
    affordable = 4 * (time.monotonic() - began) * len(x) * len(radii) < clock.left
    if not affordable or len(x) == 1:
        return first, *(_stability(program, x[:1], eps, clip, clock) for eps in radii[1:])
    return tuple(_stability(program, x, eps, clip, clock) for eps in radii)


def _stability(
    program: Program, x: Tensor, eps: Fraction, clip: tuple[float, float] | None, clock: _Countdown
) -> Stability:
    box = LinfBall(x, eps, clip).interval(Soundness.DEPLOYED)
    loose, units = _unstable(program, box, own=False)
    tight = _unstable(program, box, own=True)[0] if clock.left > 0 else None
    return Stability(eps, loose, tight, units, len(x))


def _unstable(program: Program, box: Interval, own: bool) -> tuple[float, int]:
    """Unstable ReLUs per image, and how many there are in all; none where linear bounds do not exist."""
    try:
        with torch.no_grad():
            root = relax(program, box, Soundness.DEPLOYED, own=own)
    except (BoundError, UnsupportedOperatorError):
        return float("nan"), 0
    steps = [root.steps[name] for name in root.activations]
    free = [step.free for step in steps if isinstance(step, Lines) and step.free is not None]
    batch = box.shape[0]
    return sum(int(each.sum()) for each in free) / batch, sum(each.numel() for each in free) // batch


def _costs(model: nn.Module, region: LinfBall, labels: Tensor, clock: _Countdown) -> list[MethodCost]:
    """Try one method after the other, one image each, then all images where there is time."""
    found: list[MethodCost] = []
    for name in TRIED:
        if name not in METHODS or clock.left <= 0:
            found.append(MethodCost(name, None, None, None, "not tried: no time was left"))
            continue
        try:
            found.append(_cost(model, name, region, labels, clock))
        except (BoundError, UnsupportedOperatorError) as error:
            found.append(MethodCost(name, None, None, None, str(error).splitlines()[0]))
    return found


def _cost(model: nn.Module, name: str, region: LinfBall, labels: Tensor, clock: _Countdown) -> MethodCost:
    def ask(part: slice) -> Tensor:
        with torch.no_grad():
            return proved(worst_margins(model, region[part], labels[part], method=name)).all(1)

    first = slice(0, 1)
    ask(first)  # compiles, traces, fills caches: none of it is the method's
    _forget_peak()
    before, began = _memory("VmRSS"), time.process_time()
    ask(first)
    seconds = time.process_time() - began
    peak = _memory("VmHWM")
    used = None if before is None or peak is None else max(0, peak - before)
    enough = seconds * len(labels) < clock.left
    count = int(ask(slice(0, len(labels))).sum()) if enough else None
    return MethodCost(name, seconds, used, count, "" if enough else "tried with one image")


def _memory(key: str) -> int | None:
    """A line of /proc/self/status in bytes; None where there is none."""
    try:
        found = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def _forget_peak() -> None:
    """Let the peak of memory begin at what is used now, where the system can."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return


def _advice(
    support: Support, costs: Sequence[MethodCost], stability: Sequence[Stability], eps: Fraction, correct: int
) -> str:
    """What to do next, in a sentence or two."""
    if support.trouble:
        return f"This network cannot be bounded: {support.trouble}"
    if not support.supported:
        return "Replace the operators without a rule, as said beside each; until then only attacks are possible."
    if not correct:
        return "No image is classified correctly: check the labels, the scale of the inputs and the weights."
    by_name = {cost.name: cost.proved for cost in costs if cost.proved is not None}
    enough = 0.8 * correct
    if by_name.get("interval", 0) >= enough:
        return (
            f"Interval bounds prove {by_name['interval']} of {correct} at {eps}: `surebound verify --cascade fast` is "
            "enough for most images, the default cascade decides the rest."
        )
    better = next((name for name, count in by_name.items() if count >= enough), None)
    if better is not None:
        return (
            f"{better} proves {by_name[better]} of {correct} at {eps}, intervals {by_name.get('interval', 0)}: "
            f"`surebound bounds --method {better}`, or `surebound verify`, which asks the cheap ones first."
        )
    here = next((s for s in stability if s.eps == eps), None)
    signs = here.by_crown if here is not None else None
    if signs is not None and signs <= FEW_SIGNS:
        return (
            f"Bounds alone prove little at {eps}, but only {signs:.0f} ReLUs are unstable there: `surebound verify` "
            "(branch and bound) will decide most images; give it --timeout 60."
        )
    many = "many" if signs is None or signs != signs else f"{signs:.0f}"
    return (
        f"With {many} unstable ReLUs at {eps} few images will be decided: ask at a smaller radius, or train for proofs "
        "(`surebound train`, `sb.train(..., sb.training.IBP(), ...)`)."
    )

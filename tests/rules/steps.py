"""What the test of backward steps needs: the step of a case's call, results in several orders, an exact comparison."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from surebound.bounds.constants import Constants as Fixed
from surebound.bounds.linear.steps import AffineStep, step_of
from surebound.flags import exact_kernels
from surebound.graph import Node, Program
from surebound.graph.program import First, Graph, Ref
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.rules import Context, Rule, find
from surebound.rules.relax.lines import Relaxation
from tests.rules.cases import Case, Constants
from tests.rules.harness import boxes, generator

Boxes = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Recorded:
    """One call: its arguments, and which results the case looks at."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    parts: tuple[int, ...] | None  # None: the operator returns one tensor


class _Results:
    """Stands for an operator's results; notes which of them are taken."""

    def __init__(self, count: int) -> None:
        self.count, self.taken = count, list[int]()

    def __getitem__(self, index: int) -> int:
        if index >= self.count:
            raise IndexError
        self.taken.append(index)
        return index


def record(case: Case, operands: list[Any], dtype: torch.dtype, count: int | None) -> Recorded:
    """The call that a case makes with these operands; ``count`` results, None for one tensor."""
    seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    results = _Results(count or 0)

    def note(*args: Any, **kwargs: Any) -> Any:
        seen.append((args, kwargs))
        return None if count is None else results

    case.call(note, Constants(dtype), *operands)
    parts = None if count is None else tuple(dict.fromkeys(results.taken)) or (0,)  # without a choice the first
    return Recorded(*seen[0], parts)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, dict):
        yield from _leaves(tuple(value.values()))
    else:
        yield value


def _named(value: Any, names: dict[int, str]) -> Any:
    if isinstance(value, Interval):
        return Ref(names.setdefault(id(value), f"v{len(names)}"))
    if isinstance(value, (list, tuple)):
        return type(value)(_named(item, names) for item in value)
    return value


class _Fixed(Fixed):
    """Constants that a case makes for the batch's size, as the calls of a traced network would."""

    def __init__(self, program: Program, case: Case) -> None:
        super().__init__(program)
        self.case = case

    def arguments(self, node: Node, position: int, batch: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        operands = [torch.zeros(batch, *shape[1:]) for shape in self.case.shapes]
        note = record(self.case, operands, torch.float32, 64)
        return note.args[:position] + note.args[position + 1 :], note.kwargs


@dataclass(frozen=True)
class Call:
    """A case over boxes: its graph, bounds, and a step for each result that the case looks at."""

    case: Case
    boxes: Boxes
    recorded: Recorded
    steps: list[tuple[int | None, Relaxation, tuple[str, ...], AffineStep | None]]
    bounds: dict[str, Interval]
    wide: bool = False  # steps for coefficients in float64

    def at(self, operands: list[Tensor], dtype: torch.dtype) -> tuple[dict[str, Tensor], Any]:
        """The values of the step's sources and the operator's results at a point."""
        moved = [x.to(dtype) for x in operands]
        count = None if self.recorded.parts is None else 64
        found = record(self.case, moved, dtype, count)
        sources = {}
        pairs = zip(
            _leaves((self.recorded.args, self.recorded.kwargs)),
            _leaves((found.args, found.kwargs)),
            strict=True,
        )
        for there, here in pairs:
            if isinstance(there, Ref):
                sources[there.name] = here
        return sources, self.case.overload(*found.args, **found.kwargs)


def rule_of(case: Case) -> Rule:
    rule = find(case.name)
    assert rule is not None
    return rule


def _results(case: Case, operands: list[Tensor]) -> int | None:
    """How many results the operator has; None: one tensor."""
    first: list[Any] = []

    def run(*args: Any, **kwargs: Any) -> Any:
        first.append(case.overload(*args, **kwargs))
        return first[-1]

    case.call(run, Constants(torch.float32), *operands)
    return len(first[0]) if isinstance(first[0], (list, tuple)) else None


def build(case: Case, box: Boxes, mode: Soundness, *, wide: bool = False) -> Call | None:
    """None where linear bounds do not apply: examples of the batch mix, or truth values come out.

    ``wide``: steps for coefficients in float64.
    """
    operands = [Interval(low, high) for low, high in box]
    count = _results(case, [low for low, _ in box])
    note = record(case, operands, torch.float32, count)
    rule = rule_of(case)
    out = rule.interval(Context(mode), *note.args, **note.kwargs)
    names: dict[int, str] = {}
    args, kwargs = _named(note.args, names), {k: _named(v, names) for k, v in note.kwargs.items()}
    bounds = {names[id(v)]: v for v in _leaves((note.args, tuple(note.kwargs.values()))) if isinstance(v, Interval)}
    first = next(iter(bounds), "v0")
    dtype = torch.float32
    node = Node("call", case.name, case.overload, args, kwargs, "", "", True, None)
    nodes, wanted = [node], [(None, node, out)]
    if isinstance(out, (list, tuple)):
        wanted = []
        for k in note.parts or (0,):
            part = Node(f"part{k}", "getitem", lambda v, i: v[i], (Ref("call"), k), {}, "", "", True, None)
            nodes.append(part)
            wanted.append((k, part, out[k]))
    elif count is not None:  # an operator with by-products, of which tracing keeps the first
        nodes[-1] = node = replace(node, target=First(case.overload))
        wanted = [(0, node, out)]
    graph = Graph(first, tuple(box[0][0].shape), dtype, tuple(nodes), nodes[-1].name, {}, {})
    constants = _Fixed(Program(graph, torch.nn.Module()), case)
    steps: list[tuple[int | None, Relaxation, tuple[str, ...], AffineStep | None]] = []
    for k, part, value in wanted:
        if not isinstance(value, Interval) or not value.dtype.is_floating_point:
            continue
        values = {**bounds, "call": out, part.name: value}
        with exact_kernels(), torch.no_grad():
            step = step_of(constants, part, values, mode, wide=wide)
        steps.append((k, step, constants.sources(part), step if isinstance(step, AffineStep) else None))
    if not steps:
        return None
    found = Recorded(args, kwargs, None if count is None else note.parts)
    return Call(case, box, found, steps, bounds, wide)


def per_example(case: Case) -> bool:
    """Does every example of the result depend on its own example only?"""
    batch = case.shapes[0][0]
    if any(shape[0] != batch for shape in case.shapes) or rule_of(case).family == "constant":
        return False
    if not case.rowwise and not _any_batch(case):
        return False
    box = boxes(case, 3)
    call = build(case, box, Soundness.NONE)
    if call is None:
        return False
    low = [low for low, _ in box]
    moved = [torch.cat([high[:1], low[1:]]) for low, high in box]
    results, parts = [call.at(x, torch.float32)[1] for x in (low, moved)], call.recorded.parts
    first, second = ([v] if parts is None else [v[k] for k in parts] for v in results)
    return all(
        a.dim() > 0 and a.shape[0] == batch and torch.equal(a[1:], b[1:])
        for a, b in zip(first, second, strict=True)
        if a.is_floating_point()
    )


def _any_batch(case: Case) -> bool:
    """Does the call work for one example as well? Not if its constants have the batch's size."""
    try:
        one = case.call(case.overload, Constants(torch.float32), *(torch.zeros(1, *s[1:]) for s in case.shapes))
    except RuntimeError:
        return False
    return isinstance(one, Tensor) and one.dim() > 0 and one.shape[0] == 1


def kinds(case: Case) -> Iterator[Boxes]:
    """Ordinary boxes; points; far from 0 and narrow, where terms cancel; one-sided, touching 0."""
    for seed in range(2):
        yield boxes(case, seed)
    yield [(low, low) for low, _ in boxes(case, 2)]
    if rule_of(case).family in ("activation", "softmax"):
        return
    g, far = generator(5), []
    for low, high in boxes(case, 4):
        at = 1000.0 * low
        far.append((at, at + 2.0**-12 * (high - low) * torch.rand(low.shape, generator=g)))
    yield far
    if case.low < 0 < case.high:
        yield [(low.clamp(max=0), high.clamp(min=0)) for low, high in boxes(case, 6)]


def coefficients(shape: torch.Size, g: torch.Generator) -> Tensor:
    """(S, B, *out): of one sign, mixed, of very different sizes, and single entries."""
    size = shape[1:].numel()
    mixed = torch.randn(4, *shape, generator=g)
    sizes = 2.0 ** torch.randint(-12, 12, (2, *shape), generator=g)
    single = torch.zeros(4, shape[0], max(1, size))
    for s in range(4 if size else 0):
        single[s, :, int(torch.randint(size, (), generator=g))] = (-1.0) ** s
    return torch.cat(
        [
            mixed,
            mixed[:2] * sizes,
            torch.ones(1, *shape),
            -torch.ones(1, *shape),
            single[..., :size].reshape(4, *shape),
        ]
    )


def orders(step: AffineStep | None, sources: list[Tensor], y: Tensor) -> Iterator[Tensor]:
    """Float32 results of sums of products taken in other orders, read off the operator's matrix."""
    yield y
    if step is None or y[0].numel() * math.prod(step.in_shape[1:]) > 40000:
        return
    value = sources[0]
    rest, kwargs = step.arguments(value.shape[0])
    wide = [r.double() if isinstance(r, Tensor) and r.is_floating_point() else r for r in rest]
    zero = torch.zeros(step.in_shape, dtype=torch.float64)
    constant = step.apply(zero, tuple(wide), kwargs)
    columns = []
    for i in range(zero[0].numel()):
        unit = zero.flatten(1).clone()
        unit[:, i] = 1
        columns.append((step.apply(unit.reshape(zero.shape), tuple(wide), kwargs) - constant).reshape(len(zero), -1))
    matrix = torch.stack(columns, 2)  # (B, out, in)
    if int((matrix != 0).sum(2).max()) < 2:
        return
    terms = matrix.float() * value.flatten(1).unsqueeze(1)
    terms = torch.cat([terms, constant.reshape(len(zero), -1).float().unsqueeze(2)], 2)
    for key in (terms, -terms, -terms.abs(), torch.rand(terms.shape, generator=generator(8))):
        ordered = terms.gather(2, key.argsort(dim=2))
        total = torch.zeros_like(ordered[..., 0])
        for k in range(ordered.shape[2]):
            total = total + ordered[..., k]
        yield total.reshape(y.shape)


def exact(a: Tensor, v: Tensor) -> Fraction:
    pairs = zip(a.double().flatten().tolist(), v.double().flatten().tolist(), strict=True)
    return sum((Fraction(p) * Fraction(q) for p, q in pairs if p), Fraction(0))


def _rows(v: Tensor) -> Tensor:
    return v.reshape(*v.shape[:2], -1)


def check(
    step: Relaxation,
    a: Tensor,
    sources: list[Tensor],
    bounds: list[Interval],
    y: Tensor,
    where: str,
    slope: Tensor | None = None,
) -> None:
    """a.y <= coefficients.x + offset, in fractions where float64 does not decide; ``slope``: which lines."""
    with exact_kernels(), torch.no_grad():
        pulled = step.pull(a, slope)
    back = pulled.coefficients
    assert not back or len(back) == len(sources)
    terms = _rows(a.double() * y.double())
    left, right = terms.sum(2), pulled.offset.clone()
    size = right.abs() + terms.abs().sum(2)
    for c, x, box in zip(back, sources, bounds, strict=bool(back)):
        assert c.shape == (a.shape[0], *x.shape), f"{where}: {tuple(c.shape)} for {tuple(x.shape)}"
        product = _rows(c.double() * x.double())
        right = right + product.sum(2) + step.owes * _rows(c.double().abs() * box.magnitude).sum(2)
        size = size + product.abs().sum(2)
    unsure = (left - right > -1e-11 * size) & right.isfinite()  # float64 does not decide
    assert not bool((left - right > 1e-9 * size).any()), f"{where}: {float((left - right).max())} above"
    for s, b in itertools.islice(unsure.nonzero().tolist(), 12):
        bound = Fraction(float(pulled.offset[s, b]))
        for c, x, box in zip(back, sources, bounds, strict=bool(back)):
            bound += exact(c[s, b], x[b])
            if step.owes:
                bound += Fraction(step.owes) * exact(c[s, b].abs(), box.magnitude[b])
        assert exact(a[s, b], y[b]) <= bound, f"{where}: {float(exact(a[s, b], y[b]) - bound)} above"

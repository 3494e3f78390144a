"""Trials of VNN-LIB queries about tiny networks, with a point planted that satisfies them: unsat would be wrong.

Weights and the point are dyadic, so that the network's outputs there are known exactly: as fractions for queries about
reals, from onnxruntime for queries about float32. Constraints touch these values by a hair, as ties, as equalities, or
contradict them.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np

from surebound.audit.claims import SECONDS
from surebound.audit.draw import Draw
from surebound.audit.files import FileText
from surebound.audit.text import loaded
from surebound.audit.trials import Fault, Trial, crash
from surebound.errors import SureboundError
from surebound.graph.onnx.file import Model, parse_model
from surebound.numerics import Soundness
from surebound.search.formula import STAGES, decide_formula
from surebound.search.rule import SPLITS
from surebound.verdict import Status
from surebound.vnnlib.problem import build
from surebound.vnnlib.query import Query
from surebound.vnnlib.runtime import Session
from surebound.vnnlib.solve import decide
from surebound.vnnlib.text import parse_query
from surebound.vnnlib.witness import holds

Layer = tuple[list[list[Fraction]], list[Fraction]]  # weights (in, out) and biases (out,)

#: Coefficients of sums, from small to large.
_FACTORS = (1, 1, -1, 2, Fraction(3333333, 10**7), Fraction(-1, 4), Fraction(1, 10), 10**8, Fraction(1, 10**12))


@dataclasses.dataclass(frozen=True)
class Planted:
    """A network, a point and the values there, and how the query's text spells them."""

    layers: Sequence[Layer]
    text: FileText
    version: str
    dtype: str
    inputs: list[tuple[str, Fraction]]
    outputs: list[tuple[str, Fraction]]

    @property
    def equal(self) -> str:
        """How this version of VNN-LIB writes an equality."""
        return "==" if self.version == "2.0" else "="


def try_query(trial: Trial) -> Iterator[Fault]:
    """Ask a query that a planted point satisfies, or one with a contradiction in it."""
    draw = trial.draw("query")
    planted, model = _planted(draw)
    true = draw.chance(0.75)
    text = _written(planted, _assertions(draw, planted, true))
    try:
        yield from _judged(trial, draw, planted, model, text, true)
    except SureboundError:
        trial.tally.refused[trial.generator] += 1
    except Exception as error:
        yield Fault(crash(error).what, _script(planted, text, "sb.vnnlib.decide(query, {'N': model})"))


def _judged(trial: Trial, draw: Draw, planted: Planted, model: Model, text: str, true: bool) -> Iterator[Fault]:
    query, seed = parse_query(text), draw.randrange(100)
    if draw.chance(0.5):  # nobody is there to find the point: only proofs answer
        stage = draw.choice((*STAGES[:1], *STAGES[2:], *SPLITS))
        problem = build(query, {"N": model})
        if stage == "mip" and problem.soundness is not Soundness.REAL:
            return
        found = decide_formula(problem, lambda x: False, time.monotonic() + SECONDS / 4, seed=seed, stages=(stage,))
        status, call = found.status, f"# the stage {stage!r} alone, every candidate rejected: {found}"
        method = f"query {stage}"
    else:
        answer = decide(query, {"N": model}, SECONDS, seed=seed)
        status, call, method = answer.status, f"print(sb.vnnlib.decide(query, {{'N': model}}, seed={seed}))", "query"
        wrong = _bad_assignment(query, model, answer.assignment) if status is Status.FALSIFIED else ""
        if wrong:
            yield Fault(f"sat, but {wrong}", _script(planted, text, call))
    trial.tally.compared(trial.generator, {"ONNX Gemm", "ONNX Relu"}, method, 1)
    if not status.decided:
        trial.tally.silent[method] += 1
    if status is Status.ROBUST and true:
        values = {name: str(value) for name, value in planted.inputs}
        yield Fault(f"unsat by {method}: {values} satisfies the query", _script(planted, text, call))


def _bad_assignment(query: Query, model: Model, assignment: dict[str, np.ndarray]) -> str:
    whole = np.concatenate([value.reshape(-1) for value in assignment.values()])
    count = int(np.prod(model.inputs[0].shape))
    given = whole[:count].astype(np.float32).reshape(model.inputs[0].shape)
    outputs = Session(model).run({model.inputs[0].name: given})[model.outputs[0][0]].reshape(-1)
    if not np.array_equal(outputs, whole[count:]):
        return "the assignment's outputs are not the network's"
    if not holds(query.formula, lambda element: whole[element], {i: i for i in range(count)}):
        return "the assignment does not satisfy the query"
    return ""


def _planted(draw: Draw) -> tuple[Planted, Model]:
    sizes = [draw.randint(1, 3), *draw.pick([], [3], [4, 3]), draw.randint(1, 3)]
    layers: list[Layer] = []
    for n, m in itertools.pairwise(sizes):
        layers.append(
            ([[_dyadic(draw, 1) for _ in range(m)] for _ in range(n)], [_dyadic(draw, 0.3) for _ in range(m)])
        )
    text, value = FileText(draw, (1, sizes[0])), "x"
    for i, (w, b) in enumerate(layers):
        names = (
            text.constant(*(float(v) for row in w for v in row), kind="float32", shape=(len(w), len(b))),
            text.constant(*(float(v) for v in b), kind="float32"),
        )
        value = text.call("Gemm", value, *names)
        if i + 1 < len(layers):
            value = text.call("Relu", value)
    with loaded(str(text)) as script:
        model = parse_model(script.content)
    point = [_dyadic(draw, 0.6) for _ in range(sizes[0])]
    version, dtype = draw.pick(("1.0", "real"), ("2.0", "real"), ("2.0", "float32"))
    values = exact(layers, point) if dtype == "real" else _executed(model, point)
    name = "{}[0,{}]" if version == "2.0" else "{}_{}"
    inputs = [(name.format("X", i), value) for i, value in enumerate(point)]
    outputs = [(name.format("Y", i), value) for i, value in enumerate(values)]
    return Planted(layers, text, version, dtype, inputs, outputs), model


def _dyadic(draw: Draw, size: float) -> Fraction:
    return Fraction(round(draw.gauss(0, size) * 256), 256)


def exact(layers: Sequence[Layer], x: Sequence[Fraction]) -> list[Fraction]:
    """Run layers with ReLUs between them in exact arithmetic."""
    values = list(x)
    for i, (w, b) in enumerate(layers):
        values = [sum((row[j] * v for row, v in zip(w, values, strict=True)), bias) for j, bias in enumerate(b)]
        if i + 1 < len(layers):
            values = [max(v, Fraction(0)) for v in values]
    return values


def _executed(model: Model, x: Sequence[Fraction]) -> list[Fraction]:
    given = np.array([[float(v) for v in x]], dtype=np.float32)
    found = Session(model).run({"x": given})[model.outputs[0][0]].reshape(-1)
    return [Fraction(float(v)) for v in found]


def _assertions(draw: Draw, planted: Planted, true: bool) -> list[str]:
    """Draw assertions that hold at the point, or of which one does not."""
    found = []
    for name, value in planted.inputs:
        below, above = (Fraction(draw.pick(0, 1, 2), 2) for _ in range(2))
        found += [f"(>= {name} {decimal(value - below)})", f"(<= {name} {decimal(value + above)})"]
    if draw.chance(0.4):
        boxes = [_box(draw, planted, True) + ([_tree(draw, planted, true, 1)] if draw.chance(0.6) or not true else [])]
        for _ in range(draw.pick(0, 1, 3)):
            boxes.append([*_box(draw, planted, draw.chance(0.4)), _tree(draw, planted, true and draw.chance(0.5), 1)])
        draw.shuffle(boxes)
        found.append("(or " + " ".join(f"(and {' '.join(box)})" for box in boxes) + ")")
        return [*found, _tree(draw, planted, True, 1)] if draw.chance(0.3) else found
    return [*found, _tree(draw, planted, true, 2)]


def _box(draw: Draw, planted: Planted, true: bool) -> list[str]:
    found = []
    for i, (name, value) in enumerate(planted.inputs):
        low, high = (value + side * Fraction(draw.pick(0, 0, 1, 2, 8), draw.pick(4, 256)) for side in (-1, 1))
        if not true and i == 0:
            low, high = value + Fraction(1, 8), value + Fraction(1, 2)
        if low == high and draw.chance(0.3):
            found.append(f"({planted.equal} {name} {decimal(low)})")
        else:
            found += [f"(>= {name} {decimal(low)})", f"(<= {name} {decimal(high)})"]
    return found


def _tree(draw: Draw, planted: Planted, true: bool, depth: int) -> str:
    kind, count = draw.random(), draw.pick(1, 2, 2, 3, 5)
    if depth == 0 or kind < 0.3:
        return _row(draw, planted, true)
    decisive = [_tree(draw, planted, true, depth - 1)]
    conjunction = kind < 0.65
    if conjunction is true:  # every part decides
        parts = decisive + [_tree(draw, planted, true, depth - 1) for _ in range(count - 1)]
    else:  # one part does
        parts = decisive + [_tree(draw, planted, draw.chance(0.5), depth - 1) for _ in range(count - 1)]
    draw.shuffle(parts)
    return f"({'and' if conjunction else 'or'} {' '.join(parts)})"


def _row(draw: Draw, planted: Planted, true: bool) -> str:
    """Draw a linear constraint that holds at the point by a hair, or fails there."""
    values = [*planted.inputs, *planted.outputs] if draw.chance(0.25) else planted.outputs
    terms = draw.several(values, draw.pick(1, 1, 2, 3))
    factors = [Fraction(draw.choice(_FACTORS)) for _ in terms]
    value = sum((c * v for c, (_, v) in zip(factors, terms, strict=True)), Fraction(0))
    hair = draw.pick(Fraction(0), Fraction(1, 2 ** draw.pick(3, 6, 10, 20, 30, 40)))
    relation = draw.pick("<=", ">=", "<", ">") if hair else draw.pick("<=", ">=", planted.equal)
    if not true:
        relation, hair = draw.pick("<=", ">="), -draw.pick(Fraction(1, 4), Fraction(1), Fraction(100))
    bound = value + hair if relation in ("<=", "<") else value - hair
    texts = [name if c == 1 else f"(* {decimal(c)} {name})" for c, (name, _) in zip(factors, terms, strict=True)]
    left = texts[0] if len(texts) == 1 else f"(+ {' '.join(texts)})"
    return f"({relation} {left} {decimal(bound)})"


def decimal(value: Fraction | int) -> str:
    """Write a fraction whose denominator has no other factors than 2 and 5 as a decimal numeral, exactly.

    >>> decimal(Fraction(-3, 8))
    '-0.375'
    """
    value = Fraction(value)
    digits = 0
    while (value * 10**digits).denominator != 1:
        digits += 1
    text = str(abs(value * 10**digits).numerator).rjust(digits + 1, "0")
    whole = f"{text[:-digits]}.{text[-digits:]}" if digits else f"{text}.0"
    return f"-{whole}" if value < 0 else whole


def _written(planted: Planted, assertions: list[str]) -> str:
    body = "\n".join(f"(assert {each})" for each in assertions)
    inputs, outputs, kind = len(planted.inputs), len(planted.outputs), planted.dtype
    if planted.version == "1.0":
        names = [*(f"X_{i}" for i in range(inputs)), *(f"Y_{i}" for i in range(outputs))]
        return "\n".join(f"(declare-const {name} Real)" for name in names) + "\n" + body
    declared = f"(declare-network N (declare-input X {kind} [1,{inputs}]) (declare-output Y {kind} [1,{outputs}]))"
    return f"(vnnlib-version <2.0>)\n{declared}\n{body}"


def _script(planted: Planted, text: str, call: str) -> str:
    return (
        f"import surebound as sb\n{planted.text}\nfrom surebound.graph.onnx.file import parse_model\n"
        f"from surebound.vnnlib.text import parse_query\n\nmodel = parse_model(content)\n"
        f'query = parse_query("""\n{text}\n""")\n{call}\n'
    )

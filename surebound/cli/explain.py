"""`verify --explain`: the question in plain words, so that one sees what is asked before it is solved."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from surebound.experiment.target import Target
    from surebound.search.cascade import Cascade
    from surebound.spec.formula import Formula
    from surebound.vnnlib.query import Query

MOST = 8  # constraints, labels or radii that are written out


def image_question(
    target: Target,
    images: Tensor,
    labels: Tensor,
    radii: Sequence[Fraction],
    cascade: Cascade,
    timeout: float,
    place: Path | None,
) -> str:
    """What is asked about images (N, ...), what the answers will mean, and how they are looked for."""
    clip = target.clip
    cut = "of any value" if clip is None else f"cut to [{clip[0]:g}, {clip[1]:g}]"
    shown = _listed([_radius(eps) for eps in radii])
    wrong = int((_predictions(target, images) != labels).sum())
    several = " (asked at each radius)" if len(radii) > 1 else ""
    limit = "" if timeout == float("inf") else f", at most {timeout:g} s per image and stage"
    stages = " -> ".join(cascade.names)
    tolerance = [name for name in ("mip", "lp") if name in cascade.names]
    apart = (
        f"; what rests on a solver's tolerance ({', '.join(tolerance)}) is counted apart, in the column float-sound"
        if tolerance
        else ""
    )
    return _laid_out(
        {
            "network": f"{target.name}: {tuple(images.shape[1:])} numbers in, {_outputs(target, images)} classes out",
            "question": f"does every input whose numbers each differ by at most {shown}{several} from an image, {cut}, "
            f"get the image's label? One question per image: {len(images)} of {target.data or 'unknown data'}, labels "
            f"{_labels(labels)}; {wrong} of them are misread as they are, which answers their questions at once",
            "robust": f"a proof for every float32 execution of the network, whatever the order of its sums{apart}",
            "falsified": "an input inside the exact ball that was run through the network again",
            "unknown": "neither; counts as attackable",
            "how": f"{stages}{limit}",
            "results": "are shown and not kept" if place is None else f"kept in {place}",
        }
    )


def query_question(query: Query) -> str:
    """What a VNN-LIB query asks: its networks, its box, its conditions on outputs."""
    names = {e: _element(v.name, v.shape, e - v.first) for v in query.variables for e in v.elements}
    inputs = {e for v in query.variables if v.kind.value == "input" for e in v.elements}
    parts = list(query.formula.parts)
    about_inputs = [part for part in parts if _elements(part) <= inputs]
    rest = [part for part in parts if not _elements(part) <= inputs]
    nets = ", ".join(
        f"{n.name}: {sum(v.size for v in n.inputs)} numbers in, {sum(v.size for v in n.outputs)} out"
        for n in query.networks
    )
    sound = "exact arithmetic" if query.exact_type else "every execution in the declared types"
    asked = _conditions(rest, names) if rest else "nothing else is asked"
    return _laid_out(
        {
            "networks": nets,
            "question": f"are there inputs with {_conditions(about_inputs, names)} such that {asked}?",
            "sat": "such inputs were found, and confirmed in onnxruntime",
            "unsat": f"there are none: proved for {sound}",
        }
    )


def _laid_out(parts: dict[str, str]) -> str:
    """Names and sentences in lines that a terminal of 80 columns holds."""
    lines = (
        textwrap.fill(f"{name:<10}{text}", 79, subsequent_indent=" " * 10, break_on_hyphens=False)
        for name, text in parts.items()
    )
    return "\n".join(lines)


def _conditions(parts: Sequence[Formula], names: dict[int, str]) -> str:
    words = [_formula(part, names) for part in parts[:MOST]]
    more = len(parts) - len(words)
    return " and ".join(words) + (f" and {more} more conditions" if more else "") if words else "any values"


def _formula(formula: Formula, names: dict[int, str]) -> str:
    from surebound.spec.formula import All, Any, Atom

    if isinstance(formula, Atom):
        return _atom(formula.terms, formula.constant, formula.strict, names)
    words = [_formula(part, names) for part in formula.parts[:MOST]]
    if len(formula.parts) > MOST:
        words.append(f"{len(formula.parts) - MOST} more")
    if isinstance(formula, All):
        return f"({' and '.join(words)})" if words else "anything"
    if isinstance(formula, Any):
        return f"({' or '.join(words)})" if words else "nothing"
    return f"at least {formula.count} of ({', '.join(words)})"


def _atom(terms: Sequence[tuple[int, Fraction]], constant: Fraction, strict: bool, names: dict[int, str]) -> str:
    """Terms with positive coefficients on the left, the others on the right: `Y_1 + 2 >= Y_0`."""
    left = [_term(c, names[e]) for e, c in terms if c > 0]
    right = [_term(-c, names[e]) for e, c in terms if c < 0]
    if not left and constant:
        left.append(_number(constant))
    elif constant:
        right.append(_number(-constant))
    sign = ">" if strict else ">="
    return f"{' + '.join(left) or '0'} {sign} {' + '.join(right) or '0'}"


def _term(coefficient: Fraction, name: str) -> str:
    return name if coefficient == 1 else f"{_number(coefficient)} {name}"


def _number(value: Fraction) -> str:
    return str(value) if value.denominator == 1 else f"{float(value):.6g}"


def _elements(formula: Formula) -> set[int]:
    from surebound.spec.formula import Atom

    if isinstance(formula, Atom):
        return {e for e, _ in formula.terms}
    return set().union(*(_elements(part) for part in formula.parts))


def _element(name: str, shape: tuple[int, ...], index: int) -> str:
    return name if not shape else f"{name}_{index}"


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words) if len(words) <= MOST else f"{words[0]} to {words[-1]} ({len(words)} radii)"


def _radius(eps: Fraction) -> str:
    decimal = f"{float(eps):.4g}"
    return decimal if Fraction(decimal) == eps else f"{eps} (about {decimal})"


def _labels(labels: Tensor) -> str:
    if len(labels) <= MOST:
        return ", ".join(str(int(label)) for label in labels)
    return f"{int(labels.min())} to {int(labels.max())}"


def _predictions(target: Target, images: Tensor) -> Tensor:
    import torch

    from surebound.graph import forward

    with torch.no_grad():
        return forward(target.model, images).argmax(1)


def _outputs(target: Target, images: Tensor) -> int:
    import torch

    from surebound.graph import forward

    with torch.no_grad():
        return int(forward(target.model, images[:1]).shape[1])

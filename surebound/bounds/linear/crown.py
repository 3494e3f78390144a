"""Linear bounds of specifications: CROWN-IBP, CROWN and alpha-CROWN over any program (docs/linear-bounds.md)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from surebound.bounds.elision import affine_tail, merged_margins
from surebound.bounds.linear.alpha import Adam, optimise
from surebound.bounds.linear.backward import Relaxed, SpecBounds
from surebound.bounds.linear.intermediate import MEMORY, relax, rounding_matters
from surebound.errors import InputError, RegionError
from surebound.flags import exact_kernels
from surebound.graph import Program, program_of
from surebound.interval import Interval
from surebound.markup import facts
from surebound.norm_ball import NormBall
from surebound.numerics import Soundness
from surebound.region import Region, check_region
from surebound.rules.relax.lines import Slopes
from surebound.spec import LinearSpec

#: Arrays of one row's size: live in a pass without gradients, saved for one with gradients, kept per example.
_LIVE, _SAVED, _KEPT = 6, 8, 12


@dataclass(frozen=True)
class Crown:
    """Backward bound propagation.

    intermediate: bounds that the relaxations start from: "interval" (CROWN-IBP) or their own backward passes ("own")
    slopes:       lower slopes of unstable ReLUs: "adaptive" (CROWN), "zero", "one", or "upper", that of the upper
                  line (Wong & Kolter 2018)
    adam:         optimise the slopes from there (alpha-CROWN); None: do not
    wide:         bound rows that optimised slopes leave open once more with coefficients in float64
    memory:       bytes that coefficient arrays may take at a time; it changes the cost, not the bounds
    """

    #: Its margins are intersected with those of the interval bounds that it has anyway.
    within_intervals: ClassVar[bool] = True

    intermediate: Literal["interval", "own"] = "own"
    slopes: Slopes = "adaptive"
    adam: Adam | None = None
    wide: bool = False
    memory: int = MEMORY

    def __post_init__(self) -> None:
        if self.intermediate not in ("interval", "own"):
            raise InputError(f"intermediate={self.intermediate!r}; give 'interval' or 'own'")
        if self.slopes not in get_args(Slopes):
            raise InputError(f"slopes={self.slopes!r}; give 'adaptive', 'zero', 'one' or 'upper'")
        if self.memory <= 0:
            raise InputError(f"memory={self.memory}; give a positive number of bytes")

    def margins(self, program: Program, box: Interval, c: Tensor, d: Tensor, mode: Soundness) -> Tensor:
        """Bound c.z + d from above, c (B, S, K), d (B, S): (B, S)."""
        upper = torch.empty(c.shape[:2], dtype=box.dtype, device=box.device)
        tail = affine_tail(program)
        with nullcontext() if mode is Soundness.NONE else exact_kernels():
            for at, relaxed, found in evaluations(program, box, c, d, mode, self):
                upper[at] = torch.fmin(found.upper, merged_margins(relaxed, tail, c[at], d[at]))
        return upper


CROWNS: dict[str, Crown] = {
    "crown-ibp": Crown(intermediate="interval"),
    "crown": Crown(),
    "wong": Crown(slopes="upper"),  # the dual network of Wong & Kolter 2018
    "alpha-crown": Crown(adam=Adam()),
}


@dataclass(frozen=True)
class LinearBounds:
    """c.z + d <= coefficients . x + offset for every input x of the region, and the maximum of that.

    In the sound modes it holds of the outputs z that the deployed network computes, read with exact arithmetic on the
    right.
    """

    coefficients: Tensor  # (B, S, *input), in the network's dtype or in float64
    offset: Tensor  # (B, S), float64
    upper: Tensor  # (B, S)
    corner: Tensor  # (B, S, *input): an input where the right-hand side is largest
    box: Interval  # (B, *input)

    def __repr__(self) -> str:
        batch, rows = self.upper.shape
        held = int((self.upper <= 0).sum())
        return f"LinearBounds({rows} rows of {batch} examples, inputs {tuple(self.box.shape[1:])}; {held} are <= 0)"

    def _repr_html_(self) -> str:
        batch, rows = self.upper.shape
        values: dict[str, object] = {"examples": batch, "rows": rows, "inputs": tuple(self.box.shape[1:])}
        if self.upper.numel():
            values["largest value: from, to"] = f"{float(self.upper.min()):.4g}, {float(self.upper.max()):.4g}"
        return facts("LinearBounds", {**values, "rows that are <= 0 everywhere": int((self.upper <= 0).sum())})


def linear_bounds(
    model: nn.Module | Program,
    region: Region,
    spec: LinearSpec,
    *,
    method: str | Crown = "crown",
    soundness: Soundness | str = Soundness.DEPLOYED,
) -> LinearBounds:
    """Bound every row of a specification by a linear function of the input.

    requirement: outputs of shape (B, K)
    method:      "crown-ibp", "crown", "wong", "alpha-crown" or a Crown(...)
    return:      LinearBounds
    property:    sound for the executions that ``soundness`` names; not complete
    reference:   Zhang et al. 2018, theorem 3.2; Singh et al. 2019

    >>> from surebound.region import LinfBall
    >>> net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    >>> bounds = linear_bounds(net, LinfBall(torch.zeros(1, 2), eps=1), LinearSpec(torch.ones(1, 1)))
    >>> bounds.coefficients.shape
    torch.Size([1, 1, 2])
    """
    mode, how = Soundness.of(soundness), _crown_of(method)
    check_region(region)
    if isinstance(region, NormBall):
        raise RegionError(f"{region} is no box, and its corners are not in it; worst_margins bounds over it")
    program = program_of(model, region.reference)
    box = region.interval(mode)
    c, d = spec.rows(box.shape[0], program.outputs)
    a = box.lower.new_zeros((*c.shape[:2], *box.shape[1:]))
    offset, upper, corner = (
        torch.zeros_like(d, dtype=torch.float64),
        torch.zeros_like(d).to(a),
        torch.zeros_like(a),
    )
    for at, relaxed, found in evaluations(program, box, c, d, mode, how):
        a = a.to(torch.promote_types(a.dtype, found.form.coefficients.dtype))
        a[at] = found.form.coefficients.transpose(0, 1)
        offset[at], upper[at] = found.form.offset.t(), found.upper
        corner[at] = relaxed.corner(found.form).transpose(0, 1)
    return LinearBounds(a, offset, upper, corner, box)


def _crown_of(method: str | Crown) -> Crown:
    found = CROWNS.get(method) if isinstance(method, str) else method
    if not isinstance(found, Crown):
        raise InputError(
            f"method={method!r} gives no linear functions; give one of {', '.join(CROWNS)}, or a Crown(...)"
        )
    return found


At = tuple[slice | Tensor, slice]  # examples, rows


def evaluations(
    program: Program, box: Interval, c: Tensor, d: Tensor, mode: Soundness, method: Crown
) -> Iterator[tuple[At, Relaxed, SpecBounds]]:
    """Yield bounds block by block, so that coefficient arrays keep to ``method.memory`` bytes.

    Examples that are open mainly for rounding come again, with coefficients in float64.
    """
    examples, rows = _block_sizes(program, box, c.shape[1], method)
    exact = method.intermediate != "own" or mode is Soundness.NONE or box.dtype == torch.float64
    for first in range(0, box.shape[0], examples):
        part, uppers, payments = slice(first, first + examples), [], []
        for at, relaxed, found in _block(program, box, c, d, mode, method, part, rows):
            yield at, relaxed, found
            if not exact:
                uppers.append(found.upper)
                payments.append(_paid(relaxed, c[at], d[at], found, method))
        if exact or not uppers:
            continue
        here = box.take(part)
        matters = rounding_matters(
            program, here, c[part], d[part], torch.cat(uppers, 1), torch.cat(payments, 1), method.memory
        )
        if bool(matters.any()):
            free = program.graph.input_shape[0] is None
            again = matters.nonzero()[:, 0] + first if free else part
            yield from _block(program, box, c, d, mode, method, again, max(1, rows // 2), wide=True)


def _block(
    program: Program,
    box: Interval,
    c: Tensor,
    d: Tensor,
    mode: Soundness,
    method: Crown,
    part: slice | Tensor,
    rows: int,
    *,
    wide: bool = False,
) -> Iterator[tuple[At, Relaxed, SpecBounds]]:
    """Yield bounds of some examples, ``rows`` rows at a time."""
    with torch.no_grad():
        relaxed = relax(
            program,
            box.take(part),
            mode,
            own=method.intermediate == "own",
            slopes=method.slopes,
            memory=method.memory,
            wide=wide,
            rows=c[part],
        )
        for row in range(0, c.shape[1], rows):
            at = (part, slice(row, row + rows))
            yield at, relaxed, _evaluate(relaxed, c[at], d[at], method)


def _paid(relaxed: Relaxed, c: Tensor, d: Tensor, found: SpecBounds, method: Crown) -> Tensor:
    """Return what the backward passes of examples with open rows paid for rounding: (B, S); 0 for others."""
    paid, left = torch.zeros_like(found.upper), (~(found.upper <= 0)).any(1)
    if not bool(left.any()):
        return paid
    free = relaxed.program.graph.input_shape[0] is None
    index = left.nonzero()[:, 0] if free else torch.arange(len(left), device=left.device)
    part = relaxed.select(index)
    upper = found.upper[index] if method.adam is None else part.evaluate(c[index], d[index]).upper
    return paid.index_put((index,), upper - part.unpaid().evaluate(c[index], d[index]).upper)


def _evaluate(relaxed: Relaxed, c: Tensor, d: Tensor, method: Crown) -> SpecBounds:
    if method.adam is None:
        return relaxed.evaluate(c, d)
    _, best = optimise(relaxed, c, d, method.adam)
    found = relaxed.evaluate(c, d, alphas=best.alphas, betas=best.betas)
    exact = relaxed.mode is Soundness.NONE or found.form.coefficients.dtype == torch.float64
    if exact or not method.wide or bool((found.upper <= 0).all()):
        return found
    wide = relaxed.widened().evaluate(c, d, alphas=best.alphas, betas=best.betas)
    return wide if bool((wide.upper <= found.upper).all()) else found


def _block_sizes(program: Program, box: Interval, specs: int, method: Crown) -> tuple[int, int]:
    """Choose how many examples, and how many rows of each, to bound at a time."""
    sizes = program.graph.sizes()
    item = box.lower.element_size()
    # A pass holds a few arrays of the largest value; one with gradients a few of every value.
    per_row = item * (_LIVE * max(sizes) if method.adam is None else _SAVED * sum(sizes))
    at_a_time = max(1, method.memory // per_row)
    kept = max(1, method.memory // (item * _KEPT * sum(sizes)))
    batch = box.shape[0]
    examples = max(1, min(batch, at_a_time // max(1, specs), kept))
    if program.graph.input_shape[0] is not None:  # the network fixes its batch size
        examples = max(1, batch)
    return examples, max(1, at_a_time // examples)

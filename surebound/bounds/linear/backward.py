"""Backward bound propagation (CROWN, DeepPoly): a specification's coefficients go from the output to the input.

Every value of the program lies between its bounds; every operator is affine or lies between lines. Going back through
the calls in reverse order, a.y <= a'.x + offset holds at each, so at the input c.z + d <= a.x + offset over the box
(Zhang et al. 2018; Singh et al. 2019). Any lower slope of an unstable ReLU in [0, 1] (alpha) and any share of a value's
coefficients that is bounded by the value's own range (beta; of a split, the multiplier of its constraint, Wang et al.
2021; Shi et al. 2024) give a valid bound: in the sound modes only rounding must be paid, and is.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from surebound.bounds.constants import Constants
from surebound.bounds.linear.ball import ball_maximum
from surebound.bounds.linear.steps import AffineStep, step_of
from surebound.flags import exact_kernels
from surebound.graph import Node, Program
from surebound.graph.walk import backward
from surebound.interval import Interval
from surebound.kernels import rounding, rows
from surebound.kernels.rows import Price
from surebound.norm_ball import Ball
from surebound.numerics import (
    Soundness,
    abs_dot,
    add_up,
    amply_up,
    covering,
    dot,
    dot_rounding,
    nothing_known,
    round_up,
    several_sums,
    slightly_up,
    tiny,
    unit_roundoff,
)
from surebound.rules.relax.gradient import largest
from surebound.rules.relax.lines import Index, Lines, Pulled, Relaxation, Slopes


@dataclass(frozen=True)
class Form:
    """The upper bound a.x + offset of S specifications of B examples, x a value of the program."""

    coefficients: Tensor  # (S, B, *value)
    offset: Tensor  # (S, B), float64
    recorded: Mapping[str, Tensor]  # coefficients at the values that were asked for, (S, B, *value)


@dataclass
class Opposite:
    """What a pass of minus the same rows would add to the offsets, as long as it only meets affine steps.

    Between them coefficients of minus the rows are minus the coefficients, and need no pass of their own.
    """

    offsets: list[Tensor] = field(default_factory=list)  # (S, B) each
    affine: bool = True

    def add(self, step: Relaxation, a: Tensor, pulled: Pulled) -> None:
        """Note a step that took coefficients a (S, B, *value) back."""
        if isinstance(step, AffineStep):
            self.offsets.append(step.opposite(a, pulled.coefficients[0]))
        elif isinstance(step, Lines) and step.exact:
            flat = not any(bool(each.any()) for each in step.intercepts)  # then only underflow costs something
            self.offsets.append(step.absolute.expand(a.shape[:2]) if flat else step.pull(-a).offset)
        else:
            self.affine = False


@dataclass(frozen=True)
class SpecBounds:
    """Bounds of a specification and what they come from."""

    upper: Tensor  # (B, S); infinite where nothing is known, -infinite where the splits are contradictory
    form: Form  # about the input


@dataclass(frozen=True)
class Relaxed:
    """A program over a batch of boxes, with bounds of its values and a backward step for each of its calls.

    ``intermediate.relax`` makes one from a region; it is immutable, and everything about it is batched. Branch and
    bound keeps the root's and derives each batch of sub-problems from it:

        root = relax(program, region.interval(mode), mode, own=True)             # B boxes
        node = narrowed(root.select(examples), {"linear_1": part})               # examples (N,), part (N, *value)
        upper, multipliers = optimise(node, c, d, Adam(steps=20), start)         # alpha.py; upper (N, S), sound
        result = node.evaluate(c, d, alphas=multipliers.alphas, betas=multipliers.betas, record=node.activations)
        result.form.recorded["relu_1"]                                           # (S, N, *value): branching scores
        node.corner(result.form)                                                 # (S, N, *input): where to attack

    Parts are of the value that the execution itself computes (narrowing.py), so two halves cover every execution and
    a tree of sub-problems is as sound as its leaves.
    Gradients: call ``upper(pull(*query(c, d), alphas=..., betas=...))``.
    """

    program: Program
    mode: Soundness
    constants: Constants
    bounds: dict[str, Interval]  # by name of the value; the input's is the box
    steps: dict[str, Relaxation]  # by name of the call
    slopes: Slopes = "adaptive"
    cut: tuple[str, ...] = ()  # values of which only parts of their bounds are asked about
    infeasible: Tensor | None = None  # (B,) bool: these parts are empty
    wide: bool = False  # coefficients in float64, whatever the network computes in (wide.py)
    #: The entries (1, *value) that matter, where not all do: others have interval bounds (reads.py).
    read: Mapping[str, Tensor] = field(default_factory=dict)

    def dtype_of(self, name: str) -> torch.dtype:
        """Return the dtype of coefficients of a value."""
        return torch.float64 if self.wide else self.bounds[name].dtype

    @property
    def batch(self) -> int:
        """How many boxes."""
        return int(self.bounds[self.program.graph.input].shape[0])

    @property
    def activations(self) -> tuple[str, ...]:
        """The calls whose lower slope is free, in order of execution."""
        found = ((name, step) for name, step in self.steps.items() if isinstance(step, Lines))
        return tuple(name for name, step in found if step.free is not None)

    def source(self, activation: str) -> str:
        """Return the value that an activation reads."""
        return self.constants.sources(self.program.graph.by_name[activation])[0]

    def rows(self, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
        """Return c (B, S, K), d (B, S) as coefficients (S, B, K) of the pass and offsets (S, B)."""
        out = self.bounds[self.program.graph.output]
        dtype = self.dtype_of(self.program.graph.output)
        a, offset = c.transpose(0, 1).to(dtype).contiguous(), d.transpose(0, 1).double()
        if self.mode is not Soundness.NONE and c.dtype == torch.float64 and dtype != torch.float64:
            lost = (c.transpose(0, 1) - a.double()).abs()  # exact: the two are close
            offset = add_up(offset, slightly_up(dot(lost, out.magnitude.double())))
        return a, offset

    def query(self, c: Tensor, d: Tensor) -> tuple[str, Tensor, Tensor]:
        """Return a specification c.z + d of the outputs as the first arguments of ``pull``."""
        return (self.program.graph.output, *self.rows(c, d))

    def evaluate(
        self,
        c: Tensor,
        d: Tensor,
        *,
        alphas: Mapping[str, Tensor] | None = None,
        betas: Mapping[str, Tensor] | None = None,
        record: Collection[str] = (),
    ) -> SpecBounds:
        """Bound c.z + d soundly from above, c (B, S, K), d (B, S), without gradients; see ``pull``."""
        kernels = nullcontext() if self.mode is Soundness.NONE else exact_kernels()
        with torch.no_grad(), kernels:
            form = self.pull(*self.query(c, d), alphas=alphas, betas=betas, record=record)
            upper = self.upper(form).t()
        return SpecBounds(nothing_known(upper), form)

    def pull(
        self,
        start: str,
        a: Tensor,
        offset: Tensor,
        *,
        alphas: Mapping[str, Tensor] | None = None,
        betas: Mapping[str, Tensor] | None = None,
        stop: str | None = None,
        record: Collection[str] = (),
        priced: Mapping[str, Tensor] | None = None,
        opposite: Opposite | None = None,
    ) -> Form:
        """Bound a.start + offset, a (S, B, *start), offset (S, B), by the value ``stop`` (the input by default).

        alphas: lower slopes by activation, (B, *value) or (S, B, *value); clamped to [0, 1] here.
        betas:  by name of a value, which part of its coefficients to bound by its own range, same shapes, any numbers.
        priced: by name of an affine call, what it adds to the offset (S, B), if already computed.
        opposite: filled with what minus the rows would add to their offsets; no splits, no slopes.
        """
        alphas, betas, priced = alphas or {}, betas or {}, dict(priced or {})
        target = stop or self.program.graph.input
        recorded, offsets = dict[str, Tensor](), [offset.double()]
        found, dtype = {start: a}, a.dtype
        paid = [offsets] if opposite is None else [offsets, opposite.offsets]  # rounding costs both the same
        del a  # it may be large: nobody holds it but the walk

        def visit(node: Node, a: Tensor) -> list[tuple[str, Tensor]]:
            if node.name in record:
                recorded[node.name] = a
            if node.name in betas:
                a = self._held(node.name, a, betas[node.name], offsets)
            step = self.steps[node.name]
            sources = self.constants.sources(node)
            if isinstance(step, Lines):
                held = sources[0] in betas
                price = None if held or opposite is not None else self._price(sources[0], target)
                pulled = step.pull(a, alphas.get(node.name), price)
                if pulled.priced is not None:
                    priced[sources[0]] = pulled.priced
            elif isinstance(step, AffineStep):
                pulled = step.pull(a, priced=priced.pop(node.name, None))
            else:
                pulled = step.pull(a, alphas.get(node.name))
            offsets.append(pulled.offset)
            if opposite is not None:
                opposite.add(step, a, pulled)
            terms = list(zip(sources, pulled.coefficients, strict=True)) if pulled.coefficients else []
            if step.owes:
                for source, coefficients in terms:
                    if source in betas or source == target or not self.pays(source):
                        lost = self._rounding(source, coefficients, step.owes)
                        for each in paid:
                            each.append(lost)
            return terms

        def add(source: str, a: Tensor, b: Tensor) -> Tensor:
            total = a + b
            lost = self._rounding(source, total, 2 * unit_roundoff(total.dtype))
            for each in paid:
                each.append(lost)
            return total

        backward(self.program.graph.steps, found, visit, add, target)
        if target not in found:  # nothing of the specification depends on it
            shape = (*offset.shape, *self.bounds[target].shape[1:])
            found[target] = offset.new_zeros(shape, dtype=dtype)
        if target in record:
            recorded[target] = found[target]
        return Form(found[target], self.total(offsets), recorded)

    def _held(self, name: str, a: Tensor, beta: Tensor, offsets: list[Tensor]) -> Tensor:
        """Return what is left of coefficients a (S, B, *value) after a part of them met the value's own range.

        a.x = (a - beta).x + beta.x for any beta; over a part of the range the second term is what the part is worth.
        """
        beta = beta.to(a.dtype).expand_as(a)
        rest, none = a - beta, a.new_zeros(a.shape[:2], dtype=torch.float64)
        offsets += [maximum(beta.contiguous(), self.bounds[name], none, self.mode).double()]
        offsets += [self._rounding(name, rest, 2 * unit_roundoff(a.dtype))]
        return rest

    def _price(self, source: str, target: str) -> Price | None:
        """Return what a value's affine step multiplies its coefficients with, if these come from one place."""
        step = self.steps.get(source)
        if source == target or not isinstance(step, AffineStep) or not self.constants.used_once(source):
            return None
        shared = step.recentre is None or self.batch == 1  # what lines can sum in the same pass
        return step.price if shared else None

    def total(self, offsets: list[Tensor]) -> Tensor:
        """Sum offsets (S, B), rounded up."""
        if self.mode is Soundness.NONE:
            return torch.stack(offsets).sum(0)
        return rounding.sum_up(offsets)

    def pays(self, source: str) -> bool:
        """Does the step of a value cover a rounding of its coefficients? Only if they come from one place."""
        step = self.steps.get(source)
        return isinstance(step, AffineStep) and step.error is not None and self.constants.used_once(source)

    def _rounding(self, source: str, a: Tensor, rate: float) -> Tensor:
        """Bound the cost of rounding the coefficients of a value: rate |a|.max|x|."""
        if self.mode is Soundness.NONE:
            return a.new_zeros(a.shape[:2], dtype=torch.float64)
        magnitude = self.bounds[source].magnitude
        return rows.dot(a, Price(None, magnitude)) * amply_up(rate)

    def upper(self, form: Form, at: str | None = None) -> Tensor:
        """Maximise a form over the bounds of the value it is about: (S, B), rounded up to the dtype."""
        box = self.bounds[at or self.program.graph.input]
        best = maximum(form.coefficients, box, form.offset, self.mode)
        if isinstance(box, Ball):
            best = torch.fmin(best, ball_maximum(form.coefficients, box, form.offset, self.mode))
        if self.infeasible is None:
            return best
        return torch.where(self.infeasible, torch.full_like(best, -torch.inf), best)

    def unpaid(self) -> Relaxed:
        """Drop the rounding terms of the affine layers: for gradients, and to compare."""
        steps = {
            name: replace(step, error=None, absolute=None) if isinstance(step, AffineStep) else step
            for name, step in self.steps.items()
        }
        return replace(self, mode=Soundness.NONE, steps=steps)

    def widened(self) -> Relaxed:
        """Take the same bounds, with coefficients in float64: little is paid but the network's own rounding."""
        if self.wide:
            return self
        nodes, place = self.program.graph.by_name, (self.bounds, self.mode, self.slopes)
        steps = {
            name: step_of(self.constants, nodes[name], *place, wide=True) if name in nodes else step
            for name, step in self.steps.items()
        }
        return replace(self, steps=steps, wide=True)

    def corner(self, form: Form) -> Tensor:
        """Return the input (S, B, *input) that maximises a form about the input: where to look for a counterexample."""
        box = self.bounds[self.program.graph.input]
        middle = torch.where(form.coefficients < 0, box.lower, box.center)
        return torch.where(form.coefficients > 0, box.upper, middle)

    def select(self, index: Index) -> Relaxed:
        """Select boxes, in any order and with repetitions."""
        return replace(
            self,
            bounds={name: box.take(index) for name, box in self.bounds.items()},
            steps={name: step.select(index) for name, step in self.steps.items()},
            infeasible=None if self.infeasible is None else self.infeasible[index],
        )


def maximum(a: Tensor, box: Interval, offset: Tensor, mode: Soundness) -> Tensor:
    """Maximise a.x + offset over a box, a (S, B, *x): (S, B) in the narrower dtype. In the sound modes rounded up."""
    dtype = box.dtype if a.dtype == torch.float64 else a.dtype
    magnitude = box.magnitude
    finite = bool(magnitude.isfinite().all())
    if mode is Soundness.NONE and finite:
        return (offset + largest(a, box.center, box.radius)).to(dtype)
    # A sum of so many products and the offset, in float64, and once more for the sum of the payments.
    rate = several_sums(math.prod(a.shape[2:]) + 8, 4)
    if finite:
        best = rows.upper(a, box.lower, box.upper, offset, rate)
        return best if best.dtype == dtype else round_up(best, dtype)
    # A coefficient of 0 contributes nothing even where the bound is infinite; NaN at one end is NaN at both.
    positive, odd = a.clamp(min=0), box.lower.isnan() | box.upper.isnan()
    ends = ((positive, box.upper), (a - positive, box.lower))
    sides = [(part, end.double().masked_fill(odd, torch.nan)) for part, end in ends]
    products = [torch.where(part == 0, 0.0, part.double() * end) for part, end in sides]
    best = sum((p.flatten(2).sum(2) if p.dim() > 2 else p for p in products), offset)
    if mode is Soundness.NONE:
        return best.to(dtype)
    size = abs_dot(a, magnitude) * covering(dot_rounding(magnitude.shape, a.dtype)) + offset.abs()
    return round_up(size.mul_(rate).add_(tiny(torch.float64)).add_(best), dtype)

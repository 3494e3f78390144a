"""Walks from the input to the output with a domain that keeps track of dependencies: zonotopes, symbolic intervals.

The domains compute in float64 and add its rounding error bound; the network's own comes with the steps that backward
propagation uses too (docs/soundness.md). Bounds of every value are intersected with interval bounds. In training the
same walk computes in the network's dtype, pays for nothing and keeps gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from surebound.bounds.by_example import check_by_example, check_first_axis
from surebound.bounds.constants import Constants
from surebound.bounds.interval import apply_rule
from surebound.bounds.linear.steps import AffineStep, step_of
from surebound.errors import BoundError, InputError
from surebound.flags import exact_kernels
from surebound.graph import Node, Program
from surebound.graph.fit import in_batches
from surebound.graph.walk import Env, forward
from surebound.interval import Interval, intersect
from surebound.numerics import Soundness, Working, next_down, next_up
from surebound.rules import Context, check_supported
from surebound.rules.relax.join import Join
from surebound.rules.relax.lines import Lines, Slopes

Form = TypeVar("Form")


@dataclass(frozen=True)
class Map:
    """An affine call as maps on tensors (N, *in) -> (N, *out) in the working dtype: W x, |W| x, b, and roundings."""

    linear: Callable[[Tensor], Tensor]
    absolute: Callable[[Tensor], Tensor]
    constant: Tensor  # (1, *out)
    own: Tensor  # (B, *out): the network's rounding
    rate: float  # of the working dtype: the error of W x is at most rate |W| |x|; 0 if nobody pays
    mixes: bool  # are there entries of W x that depend on several of x?


class Domain(Protocol[Form]):
    """The operations of a domain; a form is its representation of one value (B, *value)."""

    @property
    def slopes(self) -> Slopes:
        """Which lower slopes activations get where they are free."""

    @property
    def working(self) -> Working:
        """The arithmetic: ``WIDE`` in the sound modes."""

    def start(self, box: Interval) -> Form:
        """Return the form of the input."""

    def bounds(self, form: Form) -> Interval:
        """Bound a value in the working dtype, rounding included."""

    def affine(self, map: Map, form: Form) -> Form:
        """Return the form of W x + b."""

    def relaxed(self, lines: Lines, boxes: list[Interval], forms: list[Form], loose: Tensor) -> Form:
        """Return the form of a value between lines of its operands; ``loose`` where these differ beyond rounding."""

    def join(self, join: Callable[[list[Tensor]], Tensor], parts: list[Form | Tensor]) -> Form:
        """Return the form of joined parts; a tensor is a constant."""

    def constant(self, box: Interval) -> Form:
        """Return the form of a value of which only bounds are known."""

    def upper(self, form: Form, c: Tensor, d: Tensor) -> Tensor:
        """Bound c.z + d from above, c (B, S, K), in the working dtype, rounding included: (B, S)."""


@dataclass(frozen=True)
class Forward(Generic[Form]):
    """A domain's way from call to call of a program; affine calls and coefficients in the domain's dtype."""

    constants: Constants
    mode: Soundness
    domain: Domain[Form]

    def run(self, box: Interval) -> Form:
        """Return the form of the output over a box (B, ...)."""
        if self.mode is Soundness.NONE:
            raise InputError(
                "this method is for verification and pays for rounding; give soundness='real' or 'deployed'"
            )
        self._check(box)
        with torch.no_grad(), exact_kernels():
            return self._walk(box)[0]

    def train(self, box: Interval, keep: Collection[str] = ()) -> tuple[Form, dict[str, Interval]]:
        """Return the form of the output and the bounds of the values named, with gradients, without rounding control.

        Values between the output and the last one named must not be asked for: the walk ends at the output.
        """
        if self.mode is not Soundness.NONE or self.domain.working.pays:
            raise BoundError(
                "a walk that trains pays for no rounding: give Soundness.NONE and a domain that does not pay"
            )
        self._check(box)
        return self._walk(box, frozenset(keep))

    def _check(self, box: Interval) -> None:
        program = self.constants.program
        check_supported(program.graph)
        check_by_example(program)
        program.check_input(box.lower)

    def _walk(self, box: Interval, keep: frozenset[str] = frozenset()) -> tuple[Form, dict[str, Interval]]:
        constants, graph = self.constants, self.constants.program.graph
        env: Env = {**constants.of(box.shape[0]), graph.input: box}
        kept: dict[str, Interval] = {}

        def visit(node: Node, forms: dict[str, Form]) -> Form | None:
            if node.name in env:
                return None
            out = env[node.name] = apply_rule(Context(self.mode), node, *node.arguments(env))
            if not isinstance(out, Interval) or not out.dtype.is_floating_point:
                return None
            check_first_axis(node, out.shape, box.shape[0])
            form = self.step(node, env, forms)
            env[node.name] = self.narrowed(form, out)
            if node.name in keep:
                kept[node.name] = env[node.name]
            return form

        forms = forward(constants.steps(), {graph.input: self.domain.start(box)}, visit, graph.output)
        if graph.output not in forms:
            raise BoundError("the output does not depend on the input in a way that this method follows")
        return forms[graph.output], kept

    def step(self, node: Node, bounds: Mapping[str, Any], forms: Mapping[str, Form]) -> Form:
        """Return the form of a call's value from those of its operands, and bounds of it and of its operands."""
        out, sources = bounds[node.name], self.constants.sources(node)
        step = step_of(self.constants, node, bounds, self.mode, self.domain.slopes, wide=self.domain.working.pays)
        if not all(name in forms for name in sources):
            return self.domain.constant(out)
        if isinstance(step, AffineStep) and step.affine.additive:
            return self.domain.affine(_map(step, out, self.domain.working), forms[sources[0]])
        if isinstance(step, Lines):
            free = step.loose
            everywhere = torch.full_like(out.lower, free, dtype=torch.bool) if isinstance(free, bool) else free
            boxes = [bounds[name] for name in sources]
            if any(len(box.shape) != len(out.shape) for box in boxes):
                # An operand of fewer axes lines up with the result's last ones: its terms would stand for examples.
                return self.domain.constant(out)
            return self.domain.relaxed(step, boxes, [forms[name] for name in sources], everywhere)
        if isinstance(step, Join):
            waiting = [forms[name] for name in sources]
            parts = [waiting.pop(0) if c is None else self.domain.working.of(c) for c in step.constants]
            return self.domain.join(step.forward, parts)
        return self.domain.constant(out)

    def narrowed(self, form: Form, box: Interval) -> Interval:
        """Intersect bounds of a value with those of its form, rounded outwards to the network's dtype."""
        tight = self.domain.bounds(form)
        if not self.domain.working.pays:
            return intersect(box, tight)
        lower, upper = tight.lower.to(box.dtype), tight.upper.to(box.dtype)
        return intersect(box, Interval(next_down(lower), next_up(upper)))


def blocks(program: Program, box: Interval, memory: int, *, noise: bool) -> Iterator[tuple[slice, Interval]]:
    """Cut a box into blocks of examples whose forms take about ``memory`` bytes: one term per input, and with ``noise``
    one per value as well."""
    sizes = program.graph.sizes()
    terms = sum(sizes) if noise else sizes[0]
    together = max(1, memory // (8 * 6 * terms * max(sizes)))
    if program.graph.input_shape[0] is not None:  # the network fixes its batch size
        together = max(1, box.shape[0])
    for first in range(0, box.shape[0], together):
        part = slice(first, first + together)
        yield part, box.select(itemgetter(part))


def _map(step: AffineStep, out: Interval, working: Working) -> Map:
    """Return an affine step, whose arguments are in the working dtype, as maps of tensors; out: bounds of its value."""
    affine = step.affine

    def linear(x: Tensor) -> Tensor:
        """Return W x. Not (W x + b) - b, which rounds every coefficient by as much as b."""
        if not working.pays:
            return step.linear(x)
        rest, kwargs = step.arguments(x.shape[0])
        if step.constant is None:
            return step.apply(x, rest, kwargs)
        if affine.linear is not None:
            return affine.linear(x, *rest, **kwargs)
        # The adjoint's adjoint: gradients know nothing of b.
        forward: Any = torch.func.vjp(lambda v: step.apply(v, rest, kwargs), x * 0)
        again: Any = torch.func.vjp(lambda g: forward[1](g)[0], torch.zeros_like(forward[0]))[1]
        result: Tensor = again(x)[0]
        return result

    def magnitude(x: Tensor) -> Tensor:
        if step.fixed is not None and x.shape[0] != step.fixed:
            return in_batches(magnitude, x, step.fixed)
        rest, kwargs = step.arguments(x.shape[0])
        return affine.magnitude(x, *rest, **kwargs)

    def absolute(x: Tensor) -> Tensor:
        return magnitude(x) - magnitude(x[:1] * 0)

    rest, kwargs = step.arguments(out.shape[0])
    terms = affine.count(step.in_shape, *rest, **kwargs)
    none = torch.zeros((), dtype=working.dtype, device=out.device)
    constant = (none if step.constant is None else step.constant).expand(1, *out.shape[1:])
    own = none.expand(out.shape) if step.error is None else step.error
    rate = working.sums(terms + 64, 8)
    return Map(linear, absolute, constant, own, rate, mixes=terms > 0 and not affine.entrywise)

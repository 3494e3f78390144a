"""Walks from the input to the output with a domain that keeps track of dependencies: zonotopes, symbolic intervals.

The domains compute in float64 and add its rounding error bound; the network's own comes with the steps that backward
propagation uses too (docs/soundness.md). Bounds of every value are intersected with interval bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from surebound.bounds.by_example import check_by_example, check_first_axis
from surebound.bounds.constants import Constants
from surebound.bounds.interval import apply_rule
from surebound.bounds.linear.backward import intersect
from surebound.bounds.linear.steps import AffineStep, step_of
from surebound.errors import BoundError, InputError
from surebound.flags import exact_kernels
from surebound.graph import Node, Program
from surebound.graph.fit import in_batches
from surebound.graph.walk import Env, forward
from surebound.interval import Interval
from surebound.numerics import Soundness, next_down, next_up, several_sums
from surebound.rules import Context, check_supported
from surebound.rules.relax.join import Join
from surebound.rules.relax.lines import Lines

Form = TypeVar("Form")


@dataclass(frozen=True)
class Map:
    """An affine call as maps on float64 tensors (N, *in) -> (N, *out): W x, |W| x, b, and its rounding error bound."""

    linear: Callable[[Tensor], Tensor]
    absolute: Callable[[Tensor], Tensor]
    constant: Tensor  # (1, *out)
    own: Tensor  # (B, *out): the network's rounding
    rate: float  # of float64: the error of W x is at most rate |W| |x|


class Domain(Protocol[Form]):
    """The operations of a domain; a form is its representation of one value (B, *value)."""

    def start(self, box: Interval) -> Form:
        """Return the form of the input."""

    def bounds(self, form: Form) -> Interval:
        """Bound a value in float64, rounding included."""

    def affine(self, map: Map, form: Form) -> Form:
        """Return the form of W x + b."""

    def relaxed(self, lines: Lines, boxes: list[Interval], forms: list[Form], loose: Tensor) -> Form:
        """Return the form of a value between lines of its operands; ``loose`` where these differ beyond rounding."""

    def join(self, join: Callable[[list[Tensor]], Tensor], parts: list[Form | Tensor]) -> Form:
        """Return the form of joined parts; a tensor is a constant."""

    def constant(self, box: Interval) -> Form:
        """Return the form of a value of which only bounds are known."""

    def upper(self, form: Form, c: Tensor, d: Tensor) -> Tensor:
        """Bound c.z + d from above, c (B, S, K), in float64, rounding included: (B, S)."""


@dataclass
class Forward(Generic[Form]):
    """One forward walk of a domain over a program."""

    program: Program
    mode: Soundness
    domain: Domain[Form]

    def run(self, box: Interval) -> Form:
        """Return the form of the output over a box (B, ...)."""
        if self.mode is Soundness.NONE:
            raise InputError(
                "this method is for verification and pays for rounding; give soundness='real' or 'deployed'"
            )
        check_supported(self.program.graph)
        check_by_example(self.program)
        self.program.check_input(box.lower)
        with torch.no_grad(), exact_kernels():
            return self._walk(box)

    def _walk(self, box: Interval) -> Form:
        graph, constants = self.program.graph, Constants(self.program)
        env: Env = {**constants.of(box.shape[0]), graph.input: box}
        wide = _Wide(constants)

        def visit(node: Node, forms: dict[str, Form]) -> Form | None:
            if node.name in env:
                return None
            out = env[node.name] = apply_rule(Context(self.mode), node, *node.arguments(env))
            if not isinstance(out, Interval) or not out.dtype.is_floating_point:
                return None
            check_first_axis(node, out.shape, box.shape[0])
            form = self._step(wide, node, constants.sources(node), env, forms)
            env[node.name] = _narrowed(self.domain.bounds(form), out)
            return form

        forms = forward(constants.steps(), {graph.input: self.domain.start(box)}, visit, graph.output)
        if graph.output not in forms:
            raise BoundError("the output does not depend on the input in a way that this method follows")
        form: Form = forms[graph.output]
        return form

    def _step(
        self,
        wide: _Wide,
        node: Node,
        sources: tuple[str, ...],
        env: Mapping[str, Any],
        forms: Mapping[str, Form],
    ) -> Form:
        step = step_of(wide.constants, node, env, self.mode, "upper")
        if not all(name in forms for name in sources):
            return self.domain.constant(env[node.name])
        if isinstance(step, AffineStep) and step.affine.additive:
            return self.domain.affine(wide.map(step, env[node.name]), forms[sources[0]])
        if isinstance(step, Lines):
            free = step.loose
            out = env[node.name].lower
            everywhere = torch.full_like(out, free, dtype=torch.bool) if isinstance(free, bool) else free
            boxes = [env[name] for name in sources]
            return self.domain.relaxed(step, boxes, [forms[name] for name in sources], everywhere)
        if isinstance(step, Join):
            waiting = [forms[name] for name in sources]
            parts = [waiting.pop(0) if c is None else c.double() for c in step.constants]
            return self.domain.join(step.forward, parts)
        return self.domain.constant(env[node.name])


def _narrowed(tight: Interval, box: Interval) -> Interval:
    """Round float64 bounds outwards to the network's dtype and intersect them with interval bounds."""
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


class _Wide:
    """Affine calls in float64."""

    def __init__(self, constants: Constants) -> None:
        self.constants = constants

    def map(self, step: AffineStep, out: Interval) -> Map:
        affine = step.affine

        def arguments(batch: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
            rest, kwargs = step.arguments(batch)
            return _double(rest), _double(kwargs)

        def linear(x: Tensor) -> Tensor:
            """Return W x. Not (W x + b) - b, which rounds every coefficient by as much as b."""
            if step.constant is None:
                return step.apply(x, *arguments(x.shape[0]))
            if affine.linear is not None:
                rest, kwargs = arguments(x.shape[0])
                return affine.linear(x, *rest, **kwargs)
            # The adjoint's adjoint: gradients know nothing of b.
            forward: Any = torch.func.vjp(lambda v: step.apply(v, *arguments(x.shape[0])), x * 0)
            again: Any = torch.func.vjp(lambda g: forward[1](g)[0], torch.zeros_like(forward[0]))[1]
            result: Tensor = again(x)[0]
            return result

        def magnitude(x: Tensor) -> Tensor:
            if step.fixed is not None and x.shape[0] != step.fixed:
                return in_batches(magnitude, x, step.fixed)
            rest, kwargs = arguments(x.shape[0])
            return affine.magnitude(x, *rest, **kwargs)

        def absolute(x: Tensor) -> Tensor:
            return magnitude(x) - magnitude(x[:1] * 0)

        rest, kwargs = step.arguments(out.shape[0])
        terms = affine.count(step.in_shape, *rest, **kwargs)
        zero = torch.zeros((1, *step.in_shape[1:]), dtype=torch.float64, device=out.device)
        constant = step.apply(zero, *arguments(1))
        own = torch.zeros_like(out.lower, dtype=torch.float64) if step.error is None else step.error.double()
        return Map(linear, absolute, constant, own, several_sums(terms + 64, 8))


def _double(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().double() if value.is_floating_point() else value
    if isinstance(value, dict):
        return {k: _double(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_double(v) for v in value)
    return value

"""One backward step per operator call: how coefficients of its value become coefficients of its operands."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from surebound.errors import BoundError
from surebound.graph import Node, Program
from surebound.graph.program import Ref, resolve, resolve_kwargs
from surebound.interval import Interval
from surebound.numerics import Soundness, dot, dot_rounding, gamma, round_up, tiny
from surebound.rules import Affine, Context, describe, find
from surebound.rules.relax_lines import Index, Lines, Pulled, Relaxation, Slopes

Arguments = Callable[[int], tuple[tuple[Any, ...], dict[str, Any]]]  # batch size -> constant arguments


@dataclass(frozen=True)
class AffineStep:
    """y = W x + b: coefficients a become W^T a, the offset grows by a.b and, for rounding, by |a|.error.

    error (B, *out) is ``rate`` times |W| max|x| + |b|: one vector per region, whatever the specification
    (docs/soundness.md, Lemma 2).
    """

    affine: Affine
    arguments: Arguments
    in_shape: torch.Size  # (B, *in)
    constant: Tensor | None  # b as (1, *out); None if zero
    error: Tensor | None = None
    absolute: Tensor | None = None  # (B,), float64: underflow

    @property
    def loose(self) -> bool:
        return False

    def pull(self, a: Tensor, slope: Tensor | None = None) -> Pulled:
        rest, kwargs = self.arguments(a.shape[1])
        back = self.affine.adjoint(a, torch.Size((a.shape[1], *self.in_shape[1:])), *rest, **kwargs)
        offset = torch.zeros(a.shape[:2], dtype=torch.float64, device=a.device)
        if self.constant is not None:
            offset = offset + dot(a, self.constant)
        if self.error is not None and self.absolute is not None:
            offset = offset + dot(a.abs(), self.error) + self.absolute
        return Pulled((back,), offset)

    def select(self, index: Index) -> AffineStep:
        if self.error is None or self.absolute is None:
            return self
        return dataclasses.replace(self, error=self.error[index], absolute=self.absolute[index])

    @classmethod
    def of(cls, node: Node, affine: Affine, x: Interval, mode: Soundness, constants: Constants) -> AffineStep:
        """The step of a call whose operand has the bounds x (B, *in)."""
        source = node.args[affine.position].name
        single = {**constants.of(1), source: torch.zeros((1, *x.shape[1:]), dtype=x.dtype, device=x.device)}
        constant = node.target(*resolve(node.args, single), **resolve_kwargs(node.kwargs, single))

        def arguments(batch: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
            env = constants.of(batch)
            rest = tuple(resolve(v, env) for i, v in enumerate(node.args) if i != affine.position)
            return rest, resolve_kwargs(node.kwargs, env)

        rest, kwargs = arguments(x.shape[0])
        step = cls(affine, arguments, x.shape, constant if bool((constant != 0).any()) else None)
        terms, back = affine.terms(*rest, **kwargs), affine.adjoint_terms(*rest, **kwargs)
        if mode is Soundness.NONE or not (terms or back):
            return step
        return step._paying(affine.magnitude(x.magnitude, *rest, **kwargs), x, terms, back, mode)

    def _paying(self, size: Tensor, x: Interval, terms: int, back: int, mode: Soundness) -> AffineStep:
        """With the cost of rounding: the network's own (DEPLOYED), the constant's, the coefficients', the sums'."""
        own = gamma(terms + 2, x.dtype) * (2 if mode is Soundness.DEPLOYED else 1)
        rate = own + gamma(back + 2, x.dtype) + dot_rounding(size.shape, x.dtype)
        # size itself is a rounded sum of ``terms`` products, and its dot product rounds too.
        rate *= (1 + 2 * gamma(terms + 8, x.dtype)) * (1 + 2 * dot_rounding(size.shape, x.dtype))
        per_example = size.double().flatten(1).amax(1) if size[0].numel() else size.new_zeros(size.shape[0])
        largest = 1 + per_example + x.magnitude.double().flatten(1).amax(1)  # (B,)
        under = 8.0 * (terms + back + 1) * tiny(x.dtype) * largest
        wide = size.double() * rate + under.reshape(-1, *([1] * (size.dim() - 1)))
        return dataclasses.replace(
            self, error=round_up(wide, x.dtype), absolute=2.0 * math.prod(size.shape[1:]) * under
        )


@dataclass(frozen=True)
class ConstantStep:
    """The operator has no relaxation: its value is only known to lie between its bounds."""

    lower: Tensor  # (B, *out)
    upper: Tensor

    @property
    def loose(self) -> bool:
        return True

    def pull(self, a: Tensor, slope: Tensor | None = None) -> Pulled:
        wide = a.double()
        best = torch.where(wide >= 0, wide * self.upper.double(), wide * self.lower.double())
        best = torch.where(wide == 0, torch.zeros_like(best), best).flatten(2)  # 0 times infinity
        paid = best.sum(2) + best.abs().sum(2) * (2 * gamma(best.shape[2] + 4, torch.float64))
        return Pulled((), paid)

    def select(self, index: Index) -> ConstantStep:
        return dataclasses.replace(self, lower=self.lower[index], upper=self.upper[index])


def environment(program: Program, batch: int) -> dict[str, Any]:
    """Parameters, and the values of the calls that no input value reaches, for a batch of this size."""
    graph = program.graph
    env: dict[str, Any] = program.parameters()
    shapes = {graph.input: graph.input_shape, **{n.name: n.shape for n in graph.nodes}}
    for node in graph.nodes:
        if node.op == "aten.sym_size.int":
            size = (shapes[node.args[0].name] or ())[node.args[1]]
            env[node.name] = batch if size is None else size
        elif not node.varies:
            env[node.name] = node.target(*resolve(node.args, env), **resolve_kwargs(node.kwargs, env))
    return env


class Constants:
    """``environment`` for any batch size, each computed once."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._known: dict[int, dict[str, Any]] = {}

    def of(self, batch: int) -> dict[str, Any]:
        """The environment of a batch of this size."""
        if batch not in self._known:
            self._known[batch] = environment(self.program, batch)
        return self._known[batch]


def varying_sources(program: Program, node: Node) -> tuple[str, ...]:
    """The names of the operands that depend on the input, in the order of the arguments, with repetitions."""
    graph = program.graph
    return tuple(
        name
        for name in node.refs()
        if name == graph.input or (name in graph.by_name and graph.by_name[name].varies)
    )


def affine_in_one(program: Program, node: Node) -> Affine | None:
    """The affine column, if the call is affine in its one varying operand."""
    rule, sources = find(node.op), varying_sources(program, node)
    if rule is None or rule.affine is None or len(sources) != 1:
        return None
    at = rule.affine.position
    return rule.affine if len(node.args) > at and node.args[at] == Ref(sources[0]) else None


def step_of(
    program: Program,
    constants: Constants,
    node: Node,
    values: Mapping[str, Any],
    mode: Soundness,
    slopes: Slopes = "adaptive",
) -> Relaxation:
    """How to go back through one call, given the bounds of its operands and of its own value."""
    affine = affine_in_one(program, node)
    sources = varying_sources(program, node)
    out = values[node.name]
    if affine is not None:
        return AffineStep.of(node, affine, values[sources[0]], mode, constants)
    rule = find(node.op)
    if rule is not None and rule.relax is not None:
        env = {**constants.of(out.shape[0]), **{name: values[name] for name in sources}}
        try:
            step: Relaxation = rule.relax(
                Context(mode), *resolve(node.args, env), **resolve_kwargs(node.kwargs, env)
            )
        except TypeError as error:
            raise BoundError(f"the relaxation does not cover this use: {error} ({describe(node)})") from error
        return step.with_lower(slopes) if isinstance(step, Lines) else step
    return ConstantStep(out.lower, out.upper)

"""One backward step per operator call: how coefficients of its value become coefficients of its operands."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from surebound.bounds.constants import Constants, affine_in_one, moved_from, taken_from
from surebound.bounds.linear.centred import centred
from surebound.bounds.linear.wide import Narrowed, names_dtype, rounds_numbers, wide_arguments, widened
from surebound.errors import BoundError
from surebound.graph import Node
from surebound.graph.fit import in_batches
from surebound.graph.program import resolve, resolve_kwargs
from surebound.interval import Interval
from surebound.kernels import rounding, rows
from surebound.numerics import (
    PREPAID_ROUNDINGS,
    Soundness,
    add_up,
    by_rows,
    covering,
    defined,
    dot_rounding,
    gamma,
    per_example,
    several_sums,
    tiny,
)
from surebound.rules import Affine, Context, describe, find
from surebound.rules.registry import Sizes
from surebound.rules.relax.gradient import along
from surebound.rules.relax.lines import Index, Lines, Pulled, Relaxation, Slopes
from surebound.rules.shape import zero
from surebound.rules.vjp import vjp_adjoint

Arguments = Callable[[int], tuple[tuple[Any, ...], dict[str, Any]]]  # batch size -> constant arguments


@dataclass(frozen=True)
class AffineStep:
    """y = W x + b: coefficients a become W^T a, the offset grows by a.b and, for rounding, by |a|.error.

    error (B, *out) is ``rate`` times |W| max|x| + |b|: one vector per region, whatever the specification
    (docs/soundness.md, Lemma 2).
    """

    affine: Affine
    operator: Callable[..., Tensor]
    arguments: Arguments
    in_shape: torch.Size  # (B, *in)
    constant: Tensor | None  # b as (1, *out), or with 1 for axes along which it does not change; None if zero
    # y = W (x - at) + constant (B, *out) instead: minus ``at`` (B, *in), and the rounding error bound of its products.
    recentre: rows.Price | None = dataclasses.field(default=None, kw_only=True)
    error: Tensor | None = None
    absolute: Tensor | None = None  # (B,), float64: underflow
    trains: bool = False  # no rounding control: the offset may be summed in the dtype itself
    fixed: int | None = None  # the batch size, where the network fixes it

    owes = 0.0

    @property
    def loose(self) -> bool:
        return False

    def apply(self, x: Tensor, rest: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Run the operator itself on x (N, *in), with the constant arguments given."""
        at = self.affine.position
        if self.fixed is not None and x.shape[0] != self.fixed:
            return in_batches(lambda part: self.apply(part, rest, kwargs), x, self.fixed)
        return self.operator(*rest[:at], x, *rest[at:], **kwargs)

    def linear(self, x: Tensor) -> Tensor:
        """Return W x for x (N, *in), N a multiple of the batch size; of a step that is not recentred."""
        rest, kwargs = self.arguments(x.shape[0])
        if self.affine.linear is not None:
            return self.affine.linear(x, *rest, **kwargs)
        value = self.apply(x.contiguous(), rest, kwargs)
        return value if self.constant is None else value - self.constant

    @property
    def price(self) -> rows.Price | None:
        """The vectors that the offset multiplies coefficients with: bias and rounding error bound; None: nothing."""
        if self.constant is None and self.error is None:
            return None
        return rows.Price(self.constant, self.error, self.absolute)

    def price_of_entries(self, index: Tensor, shape: torch.Size) -> Tensor:
        """Return the offsets (2R, B) that single entries ``index`` (B, R) of the value (B, *out) and minus them add."""
        paid = torch.zeros(index.shape, dtype=torch.float64, device=index.device)
        if self.error is not None and self.absolute is not None:
            paid = by_rows(self.error).gather(1, index).double().add_(self.absolute.unsqueeze(1))
        if self.constant is None:
            return torch.cat([paid, paid], 1).t()
        own = by_rows(self.constant.expand(shape)).gather(1, index).double()
        return torch.cat([paid + own, paid - own], 1).t()

    def pull(self, a: Tensor, slope: Tensor | None = None, priced: Tensor | None = None) -> Pulled:
        """Take coefficients back to the operand; ``priced`` (S, B): what they add to the offset, if known."""
        rest, kwargs = self.arguments(a.shape[1])
        if self.trains and self.constant is not None and torch.is_grad_enabled() and a.dim() > 2:
            fixed, a = along(a, self.constant)
            return Pulled((self._adjoint(a, rest, kwargs),), fixed.double())
        coefficients, offset = self._adjoint(a, rest, kwargs), self._offset(a, priced)
        if self.recentre is not None:
            offset = add_up(offset, rows.dot(coefficients, self.recentre))
        return Pulled((coefficients,), offset)

    def opposite(self, a: Tensor, coefficients: Tensor) -> Tensor:
        """Return the offsets (S, B) that minus a (S, B, *out) would add; ``coefficients``: W^T a."""
        price, offset = self.price, torch.zeros(a.shape[:2], dtype=torch.float64, device=a.device)
        if price is not None:
            offset = rows.dot(a, _mirrored(price))
        if self.recentre is not None:
            offset = add_up(offset, rows.dot(coefficients, _mirrored(self.recentre)))
        return offset

    def _adjoint(self, a: Tensor, rest: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Return W^T a (S, B, *in). Its shape is checked, because compiled passes over it check nothing."""
        in_shape = torch.Size((a.shape[1], *self.in_shape[1:]))
        back = self.affine.adjoint(a, in_shape, *rest, **kwargs)
        if back.shape[1:] != in_shape:
            raise BoundError(
                f"the adjoint of {self.operator} has shape {tuple(back.shape)}, its operand {tuple(in_shape)}: "
                "a mistake in its rule; use method='interval' and report it"
            )
        return back

    def _offset(self, a: Tensor, priced: Tensor | None) -> Tensor:
        """Return a.b + |a|.error + underflow: (S, B)."""
        if priced is not None:
            return priced
        price = self.price
        if price is None:
            return torch.zeros(a.shape[:2], dtype=torch.float64, device=a.device)
        return rows.dot(a, price)

    def select(self, index: Index) -> AffineStep:
        if self.error is None or self.absolute is None:
            return self
        step = dataclasses.replace(self, error=self.error[index], absolute=self.absolute[index])
        return step.recentred(lambda v: v[index], lambda v: v[index])

    def recentred(self, operand: Callable[[Tensor], Tensor], value: Callable[[Tensor], Tensor]) -> AffineStep:
        """Apply maps to what a recentred step keeps of its operand's size and of its value's."""
        if self.recentre is None or self.constant is None:
            return self
        minus, lost = self.recentre.plain, self.recentre.absolute
        price = rows.Price(*(None if v is None else operand(v) for v in (minus, lost)))
        return dataclasses.replace(self, constant=value(self.constant), recentre=price)

    @classmethod
    def plain(
        cls,
        node: Node,
        affine: Affine,
        in_shape: torch.Size,
        like: Tensor,
        constants: Constants,
        operator: Callable[..., Tensor] | None = None,
        *,
        wide: bool = False,
    ) -> AffineStep:
        """Make the step without rounding: the operand's shape (B, *in) is enough. A bias of 0 keeps its gradient.

        ``wide``: for coefficients in float64, of the same weights.
        """

        def arguments(batch: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
            given = constants.arguments(node, affine.position, batch)
            return wide_arguments(given, constants.wide) if wide else given

        fixed = constants.program.graph.input_shape[0]
        step = cls(affine, operator or node.target, arguments, in_shape, None, fixed=fixed)
        rest, kwargs = arguments(1)
        if affine.constant is not None and operator is None:
            return dataclasses.replace(step, constant=affine.constant(in_shape, *rest, **kwargs))
        constant = step.apply(like.new_zeros((fixed or 1, *in_shape[1:])), rest, kwargs)
        if fixed is not None:
            constant = _of_one_example(constant, node)
        if constant.requires_grad:  # equal numbers may have different gradients
            return dataclasses.replace(step, constant=constant)
        return dataclasses.replace(step, constant=_compressed(constant)) if bool((constant != 0).any()) else step

    @classmethod
    def of(
        cls,
        node: Node,
        affine: Affine,
        x: Interval,
        mode: Soundness,
        constants: Constants,
        operator: Callable[..., Tensor] | None = None,
        sizes: Sizes | None = None,
        *,
        wide: bool = False,
    ) -> AffineStep:
        """Make the step of a call whose operand has the bounds x (B, *in); ``operator`` if it is not the node's own.

        ``sizes``: what the interval rule of the same call left; overwritten. ``wide``: for coefficients in float64.
        """
        like = torch.empty((), dtype=torch.float64 if wide else x.dtype, device=x.device)
        step = cls.plain(node, affine, x.shape, like, constants, operator, wide=wide)
        if step.constant is not None and not (step.constant.requires_grad or bool((step.constant != 0).any())):
            step = dataclasses.replace(step, constant=None)
        rest, kwargs = step.arguments(x.shape[0])
        terms = affine.count(x.shape, *rest, **kwargs)
        back = affine.adjoint_count(x.shape, *rest, **kwargs)
        if mode is Soundness.NONE or not (terms or back):
            return step
        given = constants.arguments(node, affine.position, x.shape[0])
        # Over the reals a number in the code is what the network's dtype makes of it: a rounding, and not of float64.
        rounded = mode is Soundness.DEPLOYED or (wide and rounds_numbers(given, x.dtype))
        network = x.dtype if rounded else None
        about = None if rounded or wide else centred(step, x, constants, terms, back)
        if about is not None:
            return about
        if not wide and sizes is not None and sizes.product is not None and sizes.entry is not None:
            bias = None if step.constant is None else step.constant.abs()
            return step._paying(sizes.product, bias, sizes.entry, terms, back, network)
        largest = x.magnitude.double() if wide else x.magnitude
        size = affine.magnitude(largest, *rest, **kwargs)
        return step._paying(size, None, per_example(largest), terms, back, network)

    def _paying(
        self,
        size: Tensor,
        bias: Tensor | None,
        x: Tensor,
        terms: int,
        back: int,
        network: torch.dtype | None,
    ) -> AffineStep:
        """Add the rounding error bound: the network's own, the constant's, the coefficients', the sums'.

        x: the largest |x| of each example (B,). size + bias: |W| max|x| + |b|; size (B, *out) is overwritten, bias is
        (1, *out), or with 1 where it is the same, or None. All in the dtype of the coefficients. network: the dtype in
        which executions sum; None: exactly.
        """
        own = gamma(terms + 2, x.dtype) + (0.0 if network is None else gamma(terms + 2, network))
        # The coefficients may have been rounded, too: PREPAID_ROUNDINGS / 2 times since a bound was added.
        coefficients = gamma(back + 2, x.dtype) + gamma(PREPAID_ROUNDINGS // 2, x.dtype)
        sums = dot_rounding(size.shape, x.dtype)
        # size itself is a rounded sum of ``terms`` products, and so are its own multiples and their dot products.
        paid = covering(sums + gamma(rows.NARROW, torch.float32))
        rate = (own + coefficients + sums) * covering(gamma(terms + 8, x.dtype)) * paid
        smallest = 8.0 * (terms + back + 1) * tiny(network or x.dtype)
        limit = math.inf if network is None else torch.finfo(network).max / 4
        size, under = rounding.grow(size, bias, x, rate, smallest, limit)
        return dataclasses.replace(self, error=size, absolute=2.0 * math.prod(size.shape[1:]) * under)


def _mirrored(price: rows.Price) -> rows.Price:
    """Return what minus the coefficients cost."""
    return dataclasses.replace(price, plain=None if price.plain is None else -price.plain)


def _compressed(constant: Tensor) -> Tensor:
    """Shrink the last axes along which a bias is the same to size 1: cheaper to multiply with."""
    for kept in range(2, constant.dim()):
        first = constant.flatten(kept)[..., :1]
        if bool((constant.flatten(kept) == first).all()):
            return first.reshape(*constant.shape[:kept], *([1] * (constant.dim() - kept)))
    return constant


@dataclass(frozen=True)
class ConstantStep:
    """The operator has no relaxation: its value is only known to lie between its bounds."""

    lower: Tensor  # (B, *out)
    upper: Tensor

    owes = 0.0

    @property
    def loose(self) -> bool:
        return True

    def pull(self, a: Tensor, slope: Tensor | None = None) -> Pulled:
        wide = a.double()
        best = torch.where(wide >= 0, wide * self.upper.double(), wide * self.lower.double())
        best = torch.where(wide == 0, torch.zeros_like(best), best)  # 0 times infinity
        best = best.flatten(2) if best.dim() > 2 else best.unsqueeze(2)
        paid = best.sum(2) + best.abs().sum(2) * several_sums(best.shape[2] + 4, 2)
        return Pulled((), paid)

    def select(self, index: Index) -> ConstantStep:
        return dataclasses.replace(self, lower=self.lower[index], upper=self.upper[index])


def _part(producer: Node, index: int) -> Callable[..., Tensor]:
    """Return the operator that gives one part of a tensor taken apart."""

    def pick(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        part: Tensor = producer.target(x, *args, **kwargs)[index]
        return part

    return pick


def step_of(
    constants: Constants,
    node: Node,
    values: Mapping[str, Any],
    mode: Soundness,
    slopes: Slopes = "adaptive",
    sizes: Sizes | None = None,
    *,
    wide: bool = False,
) -> Relaxation:
    """Return the backward step of one call from the bounds of its operands and its own value, and ``sizes`` from it.

    ``wide``: with coefficients in float64.
    """
    sources, out = constants.sources(node), values[node.name]
    split = moved_from(constants.program, node)
    if split is not None:
        pick = _part(split, node.args[1])
        moves = Affine(partial(vjp_adjoint, pick), pick, zero, zero)
        return AffineStep.of(split, moves, values[sources[0]], mode, constants, pick, wide=wide)
    affine = affine_in_one(node, sources)
    if affine is not None:
        if wide and names_dtype(constants.arguments(node, affine.position, out.shape[0])):
            return Narrowed(AffineStep.of(node, affine, values[sources[0]], mode, constants), out)
        return AffineStep.of(node, affine, values[sources[0]], mode, constants, sizes=sizes, wide=wide)
    producer = taken_from(constants.program, node) or node
    rule = find(producer.op)
    if rule is not None and rule.relax is not None:
        env = {**constants.of(out.shape[0]), **{name: values[name] for name in producer.refs() if name in values}}
        try:
            found = rule.relax(Context(mode), *resolve(producer.args, env), **resolve_kwargs(producer.kwargs, env))
        except TypeError as error:
            raise BoundError(f"the relaxation does not cover this use: {error} ({describe(node)})") from error
        step: Relaxation | None = found[node.args[1]] if rule.several else found
        if step is not None:
            step = step.with_lower(slopes) if isinstance(step, Lines) else step
            return widened(step) if wide else step
    return ConstantStep(*defined(out.lower, out.upper))


def _of_one_example(constant: Tensor, node: Node) -> Tensor:
    """Return the constant (1, *out) of a batch (B, *out) of equal examples."""
    if not torch.equal(constant, constant[:1].expand_as(constant)):
        raise BoundError(
            "the network fixes its batch size and treats its examples differently; give it a free batch size "
            f"({describe(node)})"
        )
    return constant[:1]

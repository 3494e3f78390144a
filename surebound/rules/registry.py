"""The one table of what surebound knows about each operator: op -> Rule, one column per use.

Adding a layer: open the file of its family, register one Rule, add one case to tests/rules/cases.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from surebound.errors import SureboundError, UnsupportedOperatorError
from surebound.graph.program import Graph, Node, once_per_graph
from surebound.numerics import Soundness
from surebound.rules.facts import Activation


@dataclass
class Sizes:
    """What a rule for y = A x + b may leave for the backward step of the same call, where both multiply with |A|."""

    entry: Tensor | None = None  # max |x| of each example, (B,)
    # At least |A| max |x|, (B, *out), but for the rounding of one such product; the reader may overwrite it.
    product: Tensor | None = None


@dataclass(frozen=True)
class Context:
    """What a rule may know besides its arguments.

    ``owned``: nobody else reads the memory of the first argument, now or later, and no gradient is wanted: the rule
    may overwrite it (``Interval.consume_ends``, ``Interval.consume_center``).
    ``sizes``: somebody wants these too; a rule need not give them.
    """

    soundness: Soundness
    owned: bool = False
    sizes: Sizes | None = None


IntervalRule = Callable[..., Any]  # (ctx, *args, **kwargs): Interval where the operator has a varying tensor


@dataclass(frozen=True)
class Local:
    """An output at a position of the last two axes depends on a window of the input there.

    Along each axis it starts at ``stride`` times the position minus ``pad`` and has ``kernel`` entries, ``dilation``
    apart; what lies outside of the input counts as 0.
    """

    kernel: tuple[int, ...] = (1, 1)
    stride: tuple[int, ...] = (1, 1)
    pad: tuple[int, ...] = (0, 0)
    dilation: tuple[int, ...] = (1, 1)


@dataclass(frozen=True)
class Affine:
    """Facts about an operator that is affine in one varying argument: y = A x + b.

    ``adjoint(a, in_shape, *args, **kwargs)`` maps a (S, B, *out) to A^T a (S, B, *in), where ``args`` are the
    operator's without the varying one. ``magnitude`` maps a bound on |x| to |A| |x| + |b|. ``terms`` counts the
    summands of one output and ``adjoint_terms`` those of one input's coefficient: 0 if entries only move.
    Ask for them through ``count`` and ``adjoint_count``.
    """

    adjoint: Callable[..., Tensor]
    magnitude: Callable[..., Tensor]
    terms: Callable[..., int]
    adjoint_terms: Callable[..., int]
    position: int = 0  # of the varying argument
    # For operators where the counts follow from the operand's shape: (in_shape, *args, **kwargs) -> int.
    terms_in: Callable[..., int] | None = None
    adjoint_terms_in: Callable[..., int] | None = None
    # b where the arguments name it: (in_shape, *args, **kwargs) -> (1, *out), with 1 for axes along which it does
    # not change, or None for zero. Without this it is found by a call on zeros.
    constant: Callable[..., Tensor | None] | None = None
    # A x alone: (x, *args, **kwargs) -> (N, *out). Without this, the operator's value minus b.
    linear: Callable[..., Tensor] | None = None
    # For images (B, C, H, W), where entries depend on windows: (*args, **kwargs) -> Local, or None if they do not.
    local: Callable[..., Local | None] | None = None
    # ``adjoint`` from windows of the output to windows of the input, all of them without what lies outside: no padding.
    local_adjoint: Callable[..., Tensor] | None = None
    # Is ``magnitude`` |A| m + |b| itself, and not more than it, so that it can be taken apart into sums?
    additive: bool = True

    def count(self, in_shape: tuple[int, ...], *args: Any, **kwargs: Any) -> int:
        """``terms`` for an operand of shape ``in_shape`` (B, *in)."""
        if self.terms_in is not None:
            return self.terms_in(in_shape, *args, **kwargs)
        return self.terms(*args, **kwargs)

    def adjoint_count(self, in_shape: tuple[int, ...], *args: Any, **kwargs: Any) -> int:
        """``adjoint_terms`` for an operand of shape ``in_shape`` (B, *in)."""
        if self.adjoint_terms_in is not None:
            return self.adjoint_terms_in(in_shape, *args, **kwargs)
        return self.adjoint_terms(*args, **kwargs)


@dataclass(frozen=True)
class BatchNorm:
    """Facts about a normalisation by running statistics that training replaces by those of the clean batch."""

    statistics: Callable[[Tensor], tuple[Tensor, Tensor]]  # clean input -> mean, biased variance
    replace: Callable[..., tuple[Any, ...]]  # (args, mean, var) -> args
    apply: Callable[..., Tensor]  # the operator on tensors, differentiable in the statistics too
    scale: Callable[..., tuple[Tensor, Tensor, Tensor]]  # (dims, *args after x) -> scale, shift, size
    running: int  # position of the running mean among the arguments
    parts: Callable[..., tuple[Any, ...]]  # args -> weight, bias, mean, var, eps


@dataclass(frozen=True)
class Rule:
    """One row: an operator and what each method can do with it (None: nothing)."""

    op: str
    family: str
    interval: IntervalRule
    affine: Affine | None = None
    activation: Activation | None = None
    relax: Callable[..., Any] | None = None
    mip: Callable[..., Any] | None = None
    batch_norm: BatchNorm | None = None
    note: str = ""
    several: bool = False  # tensors result: ``relax`` gives one relaxation for each, None where there is none
    also: tuple[Affine, ...] = ()  # the affine facts for other positions of the one varying argument

    @property
    def makes_memory(self) -> bool:
        """Does its interval rule always return bounds in memory of their own?"""
        product = self.family in ("linear", "convolution") and self.op != "aten.einsum.default"
        exact = self.activation is not None and self.activation.deferred is not None
        return product or exact or self.batch_norm is not None or self.op in _COPIES

    @property
    def passes_memory(self) -> bool:
        """Are its bounds a rearranged view of its argument's, each entry once?"""
        return self.op in _RESHAPINGS

    def affine_at(self, position: int) -> Affine | None:
        """The affine facts when only the argument at ``position`` varies."""
        known = (self.affine, *self.also)
        return next((facts for facts in known if facts is not None and facts.position == position), None)


_COPIES = ("aten.clone.default", "aten.constant_pad_nd.default", "aten.pad.default")
_RESHAPINGS = (
    "aten.view.default",
    "aten.reshape.default",
    "aten.flatten.using_ints",
    "aten.squeeze.dim",
    "aten.unsqueeze.default",
)
_rules: dict[str, Rule] = {}


def register(rule: Rule) -> Rule:
    """Add a row; a second row for the same operator is a mistake."""
    if rule.op in _rules:
        raise SureboundError(
            f"a rule for {rule.op} is registered already, in family {_rules[rule.op].family!r}"
        )
    _rules[rule.op] = rule
    return rule


def attach(op: str, **columns: Any) -> None:
    """Fill further columns of a row that a family's file has registered; a column that is taken is a mistake."""
    rule = _rules.get(op)
    if rule is None:
        raise SureboundError(
            f"{op} has no row to attach {', '.join(columns)} to; register its interval rule first"
        )
    taken = [name for name in columns if getattr(rule, name) is not None]
    if taken:
        raise SureboundError(f"the row of {op} has {', '.join(taken)} already")
    _rules[op] = dataclasses.replace(rule, **columns)


def find(op: str) -> Rule | None:
    """The row of an operator, if there is one."""
    return _rules.get(op)


def all_rules() -> Iterator[Rule]:
    """Every row, by family and name."""
    yield from sorted(_rules.values(), key=lambda rule: (rule.family, rule.op))


#: What to do about operators that networks often have and no rule covers.
_REMEDIES = {
    "layer_norm": "its statistics depend on the input: use BatchNorm, or write it with mean, square, sqrt and /",
    "group_norm": "its statistics depend on the input: use BatchNorm, or write it with mean, square, sqrt and /",
    "rms_norm": "its statistics depend on the input: use BatchNorm, or write it with mean, square, sqrt and /",
    "scaled_dot_product_attention": "write it as softmax(q @ k.mT / sqrt(d)) @ v",
    "upsample_bicubic2d": "use mode='bilinear' or 'nearest'",
    "floor": "steps have no useful bounds: leave it out",
    "ceil": "steps have no useful bounds: leave it out",
    "round": "steps have no useful bounds: leave it out",
    "rrelu": "use leaky_relu with the mean of its slopes, which is what it does in eval mode",
}


@once_per_graph
def check_supported(graph: Graph) -> None:
    """Raise one error that lists every operator of the graph without a rule."""
    missing = [node for node in graph.nodes if node.varies and node.op != "getitem" and node.op not in _rules]
    if missing:
        lines = "\n".join(f"  {describe(node)}{_remedy(node)}" for node in missing)
        raise UnsupportedOperatorError(
            f"{len(missing)} operator call(s) of this network have no bound rule:\n{lines}\n"
            "Replace them by supported ones ('surebound ops' lists them), "
            "or add a rule: CONTRIBUTING.md, 'Add a layer'."
        )


def _remedy(node: Node) -> str:
    name = node.op.removeprefix("aten.").partition(".")[0]
    return f"\n    -> {_REMEDIES[name]}" if name in _REMEDIES else ""


def describe(node: Node) -> str:
    """An operator call as a person finds it: op, module path, source line."""
    module = f" in module {node.module!r}" if node.module else ""
    source = f" at {node.source}" if node.source else ""
    return f"{node.op}{module}{source}"

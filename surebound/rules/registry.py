"""The one table of what surebound knows about each operator: op -> Rule, one column per use.

Adding a layer: open the file of its family, register one Rule, add one case to tests/rules/cases.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from surebound.errors import SureboundError, UnsupportedOperatorError
from surebound.graph.chosen import INSTEAD
from surebound.graph.program import Graph, Node, once_per_graph
from surebound.numerics import Soundness
from surebound.rules.facts import Activation, Affine, BatchNorm, Memory, Move, Stacks
from surebound.rules.layouts import WeightedLayer


@dataclass
class Sizes:
    """Products with |A| that the interval rule of y = A x + b leaves for the backward step of the same call."""

    entry: Tensor | None = None  # max |x| of each example, (B,)
    # At least |A| max |x|, (B, *out), but for the rounding of one such product; the reader may overwrite it.
    product: Tensor | None = None


@dataclass(frozen=True)
class Context:
    """The executions to cover, and where a rule may leave what the backward step needs too.

    ``sizes``: None if not wanted; a rule need not fill them. ``fans``: are several lines wanted, to choose from?
    """

    soundness: Soundness
    sizes: Sizes | None = None
    fans: bool = False


IntervalRule = Callable[..., Any]  # (ctx, *args, **kwargs): Interval where the operator has a varying tensor


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
    apart: bool = False  # tensors result that hold the entries of its argument, unchanged
    also: tuple[Affine, ...] = ()  # the affine facts for other positions of the one varying argument
    reads_shape: bool = False  # reads nothing but the shape of its first argument
    sizes_after_first: bool = False  # its value is its first argument's; the others say how large roundings may be
    multiplies: bool = False  # of several operands that vary it is a product or a quotient
    chooses: bool = False  # gives the largest or smallest of several entries
    # Of an operator that is constant almost everywhere and jumps: a function whose gradients attacks follow instead.
    surrogate: Callable[[Tensor], Tensor] | None = None
    pointwise: bool = False  # each entry reads one of each operand, at the same place, with broadcasting
    memory: Memory = Memory.UNKNOWN  # of what its interval rule returns
    # Training's fused column: the product of a weighted operator, from its arguments after (x, weight, bias); None
    # where these have no fast form. And moves of entries.
    layer: Callable[..., WeightedLayer | None] | None = None
    move: Move | None = None
    stacks: Stacks | None = None

    def affine_at(self, position: int) -> Affine | None:
        """Return the affine facts when only the argument at ``position`` varies."""
        known = (self.affine, *self.also)
        return next((facts for facts in known if facts is not None and facts.position == position), None)

    @property
    def is_affine(self) -> bool:
        """Is it affine in one of its arguments, the others being constant?"""
        return self.affine is not None or bool(self.also)

    @property
    def is_relu(self) -> bool:
        """Is it max(x, 0)?"""
        return self.activation is not None and self.activation.relu

    @property
    def decided_by_signs(self) -> bool:
        """Is it exact once the signs of all ReLUs' inputs are fixed? So for ReLUs, and for what is affine or moves."""
        if self.activation is not None:
            return self.is_relu
        # What has an encoding is affine, moves entries, or chooses one of several.
        return not self.chooses and (self.is_affine or self.mip is not None)


_rules: dict[str, Rule] = {}


def register(rule: Rule) -> Rule:
    """Add a row; a second row for the same operator is a mistake."""
    if rule.op in _rules:
        raise SureboundError(f"a rule for {rule.op} is registered already, in family {_rules[rule.op].family!r}")
    _rules[rule.op] = rule
    return rule


def find(op: str) -> Rule | None:
    """Return the row of an operator, if there is one."""
    return _rules.get(op)


def layer_of(node: Node, rest: Sequence[Any]) -> WeightedLayer | None:
    """Return the fast form of a weighted call with the arguments ``rest`` after (x, weight, bias), if there is one."""
    rule = find(node.op)
    return None if rule is None or rule.layer is None else rule.layer(*rest)


def all_rules() -> Iterator[Rule]:
    """Yield every row, by family and name."""
    yield from sorted(_rules.values(), key=lambda rule: (rule.family, rule.op))


#: What to do about operators that networks often have and no rule covers.
_REMEDIES = {
    "scaled_dot_product_attention": "write it as softmax(q @ k.mT / sqrt(d)) @ v, with heads of k and v repeated",
    "lstm": "use layers without projections (proj_size=0) and without packed sequences",
    "upsample_bicubic2d": "use mode='bilinear' or 'nearest'",
    "rrelu": "use leaky_relu with the mean of its slopes, which is what it does in eval mode",
    **dict.fromkeys(("quantize_per_tensor", "quantize_per_channel", "dequantize"), INSTEAD),
}


@once_per_graph
def check_supported(graph: Graph) -> None:
    """Raise one error that lists every operator of the graph without a rule."""
    missing = graph.calls(lambda node: node.varies and not node.is_part and node.op not in _rules)
    if missing:
        lines = "\n".join(f"  {describe(node)}{_advised(node)}" for node in missing)
        raise UnsupportedOperatorError(
            f"{len(missing)} operator call(s) of this network have no bound rule:\n{lines}\n"
            "Replace them by supported ones ('surebound ops' lists them), "
            "or add a rule: CONTRIBUTING.md, 'Add a layer'."
        )


def remedy(op: str) -> str:
    """Say what to do about an operator without a rule; empty if nothing special is known of it."""
    return _REMEDIES.get(op.removeprefix("aten.").partition(".")[0], "")


def _advised(node: Node) -> str:
    return f"\n    -> {remedy(node.op)}" if remedy(node.op) else ""


def describe(node: Node) -> str:
    """Describe an operator call so that a person finds it: op, module path, source line."""
    module = f" in module {node.module!r}" if node.module else ""
    source = f" at {node.source}" if node.source else ""
    return f"{node.op}{module}{source}"

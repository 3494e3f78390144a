"""The registry: one row per operator, and errors that say everything at once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import surebound as sb
from surebound.errors import BoundError, SureboundError, UnsupportedOperatorError
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.rules import Context, Rule, all_rules, find, register

CONTEXT = Context(Soundness.DEPLOYED)


def _rule(op: str) -> Rule:
    rule = find(op)
    assert rule is not None
    return rule


def test_a_second_row_is_refused() -> None:
    with pytest.raises(SureboundError, match=r"a rule for aten.relu.default is registered already, in family 'activ"):
        register(Rule("aten.relu.default", "activation", lambda ctx, x: x))


def test_rows_come_sorted_and_with_a_family() -> None:
    keys = [(rule.family, rule.op) for rule in all_rules()]
    assert keys == sorted(keys) and all(family for family, _ in keys)
    assert find("aten.nothing.default") is None


class _Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RReLU()

    def forward(self, x: Tensor) -> Tensor:
        h = torch.lgamma(x)
        return torch.special.i0e(self.norm(h))


def test_unsupported_operators_are_reported_all_at_once() -> None:
    """Each with the operator, the module, the user's line and what to do."""
    with pytest.raises(UnsupportedOperatorError) as caught:
        sb.interval_bounds(_Odd(), sb.Box(torch.zeros(1, 4), torch.ones(1, 4)))
    text = str(caught.value)
    assert text.startswith("3 operator call(s) of this network have no bound rule:")
    assert "aten.rrelu.default in module 'norm'" in text
    assert "aten.lgamma.default" in text and "test_registry.py" in text and "h = torch.lgamma(x)" in text
    assert "-> use leaky_relu with the mean of its slopes" in text
    assert "aten.special_i0e.default" in text and "CONTRIBUTING.md, 'Add a layer'" in text


def _box(low: float, high: float) -> Interval:
    return Interval(torch.tensor([[float(low)]]), torch.tensor([[float(high)]]))


@pytest.mark.parametrize(
    ("op", "args", "message"),
    [
        ("aten.div.Tensor", (_box(1, 2), _box(-1, 1)), "division by an interval that contains 0"),
        ("aten.div.Tensor", (_box(1, 2), torch.zeros(1)), "division by a constant that is 0"),
        ("aten.reciprocal.default", (_box(0, 1),), "the reciprocal of an interval that contains 0"),
        ("aten.reciprocal.default", (_box(1e-40, 1),), "the reciprocal of an interval that contains 0"),
        (
            "aten.rsqrt.default",
            (_box(-2, -1),),
            "reaches below 0: no bound exists; keep the argument positive",
        ),
        (
            "aten.log.default",
            (_box(-1, 1),),
            r"only known to lie in \[-1, 1\], which leaves the function's domain \[0, inf",
        ),
        ("aten.pow.Tensor_Scalar", (_box(-1, 1), 0.5), r"leaves the function's domain \[0, inf\]"),
        ("aten.pow.Tensor_Scalar", (_box(-1, 1), -2), "a negative power of an interval that contains 0"),
        (
            "aten.pow.Tensor_Tensor",
            (_box(-1, 1), torch.tensor([0.5])),
            "a fractional power of an interval that reaches",
        ),
        (
            "aten.pow.Scalar",
            (-2.0, _box(-1, 1)),
            "a power with a varying exponent of an interval that reaches below 0",
        ),
        (
            "aten.gather.default",
            (_box(0, 1), 1, _box(0, 1)),
            "an index or a size depends on the input's values",
        ),
        ("aten.conv1d.default", (torch.ones(1, 1, 3), _box(0, 1)), "only constant ones are supported"),
        ("aten._to_copy.default", (_box(0, 1),), "bounds are computed in float32 and float64"),
        ("aten.sum.default", (_box(0, 1),), "computes in torch.float64; convert the tensor before it"),
        ("aten.einsum.default", ("a,b,c->", [_box(0, 1)] * 3), "einsum of 3 tensors"),
    ],
)
def test_where_no_bound_exists_the_error_says_why(op: str, args: tuple[object, ...], message: str) -> None:
    kwargs = {
        "aten._to_copy.default": {"dtype": torch.float16},
        "aten.sum.default": {"dtype": torch.float64},
    }.get(op, {})
    with pytest.raises(BoundError, match=message):
        _rule(op).interval(CONTEXT, *args, **kwargs)


def test_the_error_names_the_call() -> None:
    class Inverse(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 1 / x

    with pytest.raises(BoundError, match=r"contains 0.*\(aten.reciprocal.default at .*return 1 / x\)"):
        sb.interval_bounds(Inverse(), sb.Box(-torch.ones(1, 2), torch.ones(1, 2)))


def test_facts_are_bound_to_parameters() -> None:
    leaky = _rule("aten.leaky_relu.default").activation
    assert leaky is not None and not leaky.increasing  # whatever the slope
    assert leaky.bind(0.5).increasing and not leaky.bind(-0.5).increasing
    assert leaky.bind(0.5).fn(torch.tensor(-2.0)).item() == -1.0
    pieces = leaky.bind(0.5).pieces
    assert pieces is not None and pieces() == ((-float("inf"), 0.5, 0.0), (0.0, 1.0, 0.0))
    gelu = _rule("aten.gelu.default").activation
    assert gelu is not None and gelu.bind().valley != gelu.bind(approximate="tanh").valley
    clamp = _rule("aten.clamp.default").activation
    assert clamp is not None
    found = clamp.bind(-1.0, 2.0).pieces
    assert found is not None
    assert found() == ((-float("inf"), 0.0, -1.0), (-1.0, 1.0, 0.0), (2.0, 0.0, 2.0))
    upper_only = clamp.bind(max=2.0).pieces
    assert upper_only is not None and upper_only() == ((-float("inf"), 1.0, 0.0), (2.0, 0.0, 2.0))


@pytest.mark.parametrize("rule", [r for r in all_rules() if r.activation is not None], ids=lambda r: r.op)
def test_pieces_are_the_function(rule: Rule) -> None:
    """Between and beyond the breakpoints, the lines agree with the function."""
    parameters = {
        "aten.leaky_relu.default": (0.25,),
        "aten.prelu.default": (torch.tensor([0.5], dtype=torch.float64),),
    }
    parameters |= {
        "aten.clamp_max.default": (0.5,),
        "aten.clamp_min.default": (0.5,),
        "aten.clamp.default": (-1, 0.5),
    }
    parameters |= {
        "aten.clip.default": (None, 0.5),
        "aten.threshold.default": (0.5, 0.5),
        "aten.pow.Tensor_Scalar": (1,),
    }
    assert rule.activation is not None
    facts = rule.activation.bind(*parameters.get(rule.op, ()))
    if facts.pieces is None:
        pytest.skip("not piecewise linear")
    x = torch.linspace(-8, 8, 97, dtype=torch.float64)
    y = facts.fn(x)
    for start, slope, intercept in facts.pieces():
        line = slope * x + intercept
        y = torch.where(x >= start, line, y)
    assert torch.allclose(y, facts.fn(x), atol=1e-12)

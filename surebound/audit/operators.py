"""Draw calls of every operator that has a rule, from the schema that PyTorch has of it.

Nothing here knows an operator: arguments are drawn by their types and names, and what does not run is drawn again. A
new rule is tried as soon as it is registered.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from surebound.audit.draw import Draw
from surebound.audit.pieces import Shape
from surebound.audit.text import Piece
from surebound.rules.registry import Rule, all_rules

#: Shapes of one example that operators are tried on; the entries that there are get repeated to fill them.
_SHAPES: tuple[Shape, ...] = ((3,), (4,), (2, 4), (3, 3), (4, 2, 3), (2, 4, 4), (1, 4, 4), (2, 3, 2, 3), (2, 3, 4, 4))

#: Arguments that say how a value is kept, not what it is.
_BESIDE = ("dtype", "layout", "device", "pin_memory", "memory_format", "copy", "non_blocking", "implicit")

#: What to apply before an operator, so that its domain is met: roots and logarithms want positive numbers.
_BEFORE = ("", "", "", "x = x.abs() + 0.25", "x = 4 * x - 2", "x = x.clamp(-0.7, 0.7)")


@functools.cache
def rules() -> tuple[Rule, ...]:
    """Return the rows of the registry whose operators PyTorch can call."""
    return tuple(each for each in all_rules() if schema(each) is not None)


def schema(rule: Rule) -> Any:
    """Return PyTorch's schema of an operator; None if it is not one of PyTorch's."""
    try:
        return functools.reduce(getattr, str(rule.op).split("."), torch.ops)._schema
    except AttributeError:
        return None


def called(draw: Draw, rule: Rule) -> Piece:
    """Draw one call of an operator on values of a drawn shape."""
    shape = draw.choice(_SHAPES)
    sizes = ", ".join(map(str, shape))
    count = math.prod(shape)
    entries = f"x = x.flatten(1).repeat(1, {count})[:, :{count}] * torch.linspace(0.5, 1.5, {count})"
    before = (entries, f"x = x.reshape(-1, {sizes})", draw.choice(_BEFORE))
    arguments = ", ".join(_arguments(draw, schema(rule).arguments, shape))
    if draw.chance(0.15):  # truth values
        arguments = draw.pick("x > 0.1", "x > 0.1, x < x.flip(-1)", "x > 0.1, x, 0.5 * x", "x, x > 0.1, 0.5", arguments)
    call = f"x = torch.ops.{rule.op}({arguments})"
    after = (draw.pick(_FIRST, _SUM), "x = x if x.is_floating_point() else x.float()")
    return Piece((*(line for line in before if line), call, *after))


_FIRST = "x = x[0] if isinstance(x, (list, tuple)) else x"
_SUM = "x = sum(each.flatten(1).sum(1, keepdim=True) for each in x) if isinstance(x, (list, tuple)) else x"


def _arguments(draw: Draw, arguments: Any, shape: Shape) -> list[str]:
    """Draw the text of every argument; those with a default are left out most of the time."""
    found: list[str] = []
    taken = False
    for each in arguments:
        name, kind = each.name, str(each.type)
        if name in _BESIDE:
            continue
        optional = each.has_default_value() or kind.startswith("Optional")
        if optional and not draw.chance(0.45):
            if each.has_default_value():
                if not each.kwarg_only:
                    break  # what follows has defaults, too
                continue
            found.append("None" if not each.kwarg_only else f"{name}=None")
            continue
        if kind.removeprefix("Optional[").startswith(("Tensor", "List[Tensor")) and not taken:
            text, taken = ("[x, 0.5 * x]" if "List" in kind else "x"), True
            if draw.chance(0.1) and "List" not in kind:
                text, taken = _constant(draw, (shape[-1],)), False
        else:
            text = _value(draw, name, kind.removeprefix("Optional[").rstrip("]"), shape)
        found.append(f"{name}={text}" if each.kwarg_only else text)
    return found


def _value(draw: Draw, name: str, kind: str, shape: Shape) -> str:
    rank = len(shape) + 1
    if kind.startswith("Tensor"):
        return _tensor(draw, name, shape)
    if kind.startswith(("List[Tensor", "List[Optional[Tensor")):
        return f"[None, {_index(draw, shape[0])}]"
    if kind.startswith(("List[int", "List[SymInt", "List[float")):
        return _list(draw, name, kind, shape)
    if kind in ("int", "SymInt"):
        if "dim" in name or "axis" in name:
            return str(draw.pick(*range(1, rank), *range(1 - rank, 0)))
        return str(draw.pick(1, 1, 2, 2, 3, 0, -1))
    if kind == "bool":
        return str(draw.chance(0.5))
    if kind == "str":
        return draw.pick(
            "'same'", "'valid'", "'none'", "'tanh'", "'constant'", "'reflect'", "'replicate'", "'circular'"
        )
    if kind in ("number", "float", "Scalar"):
        return str(draw.pick(0.5, 2.0, 1.0, -0.5, 3, 0, 1.5, 0.1, -2, math.pi))
    return "None"


def _list(draw: Draw, name: str, kind: str, shape: Shape) -> str:
    spatial = max(1, len(shape) - 1)
    if ("size" in name and "kernel" not in name and "output" not in name) or "shape" in name or "repeats" in name:
        sizes = draw.pick(
            ["x.shape[0]", str(math.prod(shape))], ["-1", *map(str, shape[::-1])], ["1"] * (len(shape) + 1)
        )
        return f"[{', '.join(sizes)}]"
    if "dim" in name:
        return f"[{draw.pick(*range(1, len(shape) + 1), *range(-len(shape), 0))}]"
    if kind.startswith("List[float"):
        return str(draw.several((2.0, 1.5, 1.0), spatial))
    options = {"padding": (0, 1), "pad": (0, 1, 2, -1), "stride": (1, 2), "dilation": (1, 2), "kernel_size": (1, 2, 3)}
    choices = next((values for key, values in options.items() if key in name), (1, 2, 3))
    count = 2 * draw.randint(1, spatial) if name == "pad" or ("padding" in name and draw.chance(0.3)) else spatial
    return str(draw.several(choices, count))


def _tensor(draw: Draw, name: str, shape: Shape) -> str:
    """Draw an operand: of weights by their names, of others another value, a constant, or something that broadcasts."""
    spatial = draw.several((1, 2, 3), max(0, len(shape) - 1))
    if name == "weight" or (name in ("mat2", "other", "vec2") and draw.chance(0.3)):
        out = draw.pick(1, 2, 4)
        if name == "weight" and len(shape) > 1:
            ends = draw.pick((out, shape[0]), (out, 1), (shape[0], out), (shape[0], 1))
            return _constant(draw, draw.pick((*ends, *spatial), (out, shape[-1]), (shape[0],), (1,)))
        return _constant(draw, draw.pick((out, shape[-1]), (shape[-1], out), (shape[-1],), (1,)))
    if name in ("running_var",):
        return f"{_constant(draw, (shape[0],))}.abs() + 0.3"
    if name in ("bias", "running_mean"):
        return _constant(draw, (draw.pick(shape[0], shape[0], shape[-1], 1, 2, 4),))
    if "index" in name or name == "indices":
        return draw.pick(_index(draw, shape[0]), f"{_index(draw, shape[-1])}.expand(*x.shape[:-1], -1)")
    if name in ("condition", "mask"):
        return draw.pick("x > 0.1", "x < x.flip(-1)", f"{_constant(draw, (shape[-1],))} > 0")
    return draw.pick(
        "0.5 * x", "x.flip(-1)", "x", "x - 0.3", "x[..., :1]", "x.mT", _constant(draw, (shape[-1],)),
        _constant(draw, (1,)), _constant(draw, shape), "x.abs() + 0.5", "x[:, 0]", "x[:, :1]",
    )  # fmt: skip


def _constant(draw: Draw, shape: Shape) -> str:
    low, high = draw.pick((-1, 1), (-2, 2), (0.5, 1.5), (-1, 0.001))
    count = math.prod(shape)
    return f"torch.linspace({low}, {high}, {count}).sin().reshape({', '.join(map(str, shape))})"


def _index(draw: Draw, size: int) -> str:
    return f"torch.tensor({draw.several(range(size), draw.randint(1, 4))})"

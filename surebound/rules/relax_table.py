"""Which operator has which linear relaxation. Operators that are affine in one operand need none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from surebound.rules import activation, arithmetic, convolution, linear, normalization, shape  # noqa: F401  (rows first)
from surebound.rules.registry import attach
from surebound.rules.relax_relu import relu_lines

RELAXATIONS: dict[str, Callable[..., Any]] = {
    "aten.relu.default": relu_lines,
}

for _op, _relax in RELAXATIONS.items():
    attach(_op, relax=_relax)

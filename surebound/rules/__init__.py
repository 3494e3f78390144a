"""Every per-operator fact, one file per family. Importing this package fills the registry."""

from __future__ import annotations

from surebound.rules import (  # noqa: F401  (they register)
    about,
    activation,
    arithmetic,
    clamp,
    convolution,
    curved,
    joining,
    linear,
    normalization,
    padding,
    piecewise,
    pooling,
    power,
    reduction,
    selection,
    shape,
    smooth,
    softmax,
    steps,
)
from surebound.rules.facts import Affine, BatchNorm
from surebound.rules.registry import (
    Context,
    Rule,
    all_rules,
    check_supported,
    describe,
    find,
    layer_of,
    register,
)

__all__ = [
    "Affine",
    "BatchNorm",
    "Context",
    "Rule",
    "all_rules",
    "check_supported",
    "describe",
    "find",
    "layer_of",
    "register",
]

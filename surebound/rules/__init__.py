"""Every per-operator fact, one file per family. Importing this package fills the registry."""

from __future__ import annotations

from surebound.rules import (  # noqa: F401  (they register)
    activation,
    arithmetic,
    convolution,
    curved,
    joining,
    linear,
    mip_table,
    normalization,
    piecewise,
    pooling,
    power,
    reduction,
    relax_table,
    selection,
    shape,
    smooth,
    softmax,
)
from surebound.rules.registry import (
    Affine,
    BatchNorm,
    Context,
    Rule,
    all_rules,
    attach,
    check_supported,
    describe,
    find,
    register,
)

__all__ = [
    "Affine",
    "BatchNorm",
    "Context",
    "Rule",
    "all_rules",
    "attach",
    "check_supported",
    "describe",
    "find",
    "register",
]

"""Which operator has which MIP encoding.

Operators that are affine in their one varying operand need none (their matrix is read off them), nor do
elementwise functions with ``pieces``. What is in neither table is beyond LP and MIP.
"""

from __future__ import annotations

from surebound.rules import (  # noqa: F401  (they register the rows that this file adds a column to)
    joining,
    pooling,
    reduction,
    selection,
)
from surebound.rules.mip.apart import APART, encode_apart
from surebound.rules.mip.maximum import (
    encode_larger,
    encode_largest,
    encode_max_pool,
    encode_smaller,
    encode_smallest,
)
from surebound.rules.registry import attach

for _op in ("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices"):
    attach(f"aten.{_op}.default", mip=encode_max_pool)

for _op in ("maximum.default", "max.other", "fmax.default"):
    attach(f"aten.{_op}", mip=encode_larger)

for _op in ("minimum.default", "min.other", "fmin.default"):
    attach(f"aten.{_op}", mip=encode_smaller)

attach("aten.amax.default", mip=encode_largest)
attach("aten.amin.default", mip=encode_smallest)

for _op in APART:
    attach(_op, mip=encode_apart(_op))

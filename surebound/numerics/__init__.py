"""Rounding, tolerances and exact numbers: the only place that knows floating-point arithmetic.

Notation of docs/soundness.md: ``u`` is the unit roundoff (2^-24 for float32), ``gamma(n) = n u / (1 - n u)``
bounds the relative error of a sum of n products in *any* order, with or without fused multiply-add (Higham,
*Accuracy and Stability of Numerical Algorithms*, 2nd ed., section 3.1), ``tiny`` is the smallest normal number,
so that flushing subnormals to zero is covered too.
"""

from __future__ import annotations

from surebound.numerics.eigenvalue import largest_eigenvalue
from surebound.numerics.fractions import exact_fraction, float_up, outer_float32
from surebound.numerics.neighbours import (
    extent_of_sizes,
    has_subnormal,
    next_down,
    next_up,
    round_down,
    round_up,
    step_towards,
    strictly_above,
)
from surebound.numerics.outward import PREPAID_ROUNDINGS, AffineRounding, down, outward, pay, up
from surebound.numerics.radii import radii_down, radii_up, spread_outwards
from surebound.numerics.slack import (
    FEW_ROUNDINGS,
    FUNCTION_ERROR,
    UNDERFLOW,
    amply_up,
    covering,
    several_sums,
    slightly_up,
)
from surebound.numerics.sums import (
    CACHE_ENTRIES,
    abs_dot,
    add_up,
    by_rows,
    cache_blocks,
    dot,
    dot_rounding,
    per_example,
    sum_rounding,
    sum_up,
)
from surebound.numerics.tolerances import SOLVER_FEASIBILITY, TRACE_TOLERANCE, WITNESS_MARGIN
from surebound.numerics.units import Soundness, gamma, tiny, unit_roundoff
from surebound.numerics.unknown import defined, no_information, nothing_known, proved
from surebound.numerics.working import WIDE, Working

__all__ = [
    "CACHE_ENTRIES", "FEW_ROUNDINGS", "FUNCTION_ERROR", "PREPAID_ROUNDINGS", "SOLVER_FEASIBILITY",
    "TRACE_TOLERANCE", "UNDERFLOW", "WIDE", "WITNESS_MARGIN", "AffineRounding", "Soundness", "Working", "abs_dot",
    "add_up", "amply_up", "by_rows", "cache_blocks", "covering", "defined", "dot", "dot_rounding", "down",
    "exact_fraction", "extent_of_sizes", "float_up", "gamma", "has_subnormal", "largest_eigenvalue",
    "next_down", "next_up",
    "no_information", "nothing_known", "outer_float32", "outward", "pay", "per_example", "proved", "radii_down",
    "radii_up", "round_down", "round_up", "several_sums", "slightly_up", "spread_outwards", "step_towards",
    "strictly_above",
    "sum_rounding", "sum_up", "tiny", "unit_roundoff", "up",
]  # fmt: skip

"""Piecewise linear functions, exactly: no binary where one piece covers the bounds, one where two do.

With its binary relaxed to [0, 1] the two-piece encoding projects to the triangle of Ehlers (Formal
verification of piece-wise linear feed-forward neural networks, 2017), so one builder serves MIP and LP.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from surebound.rules.mip.expression import Encoder, Expression, Vector, replaced, scale_and_shift

Pieces = tuple[tuple[float, float, float], ...]  # (from x, slope, intercept), ascending, continuous

#: A bent entry's input with more terms gets a variable: its expression stands in several rows.
_DENSE = 2


def encode_pieces(encoder: Encoder, pieces: Pieces, x: Expression) -> Expression:
    """Encode f(x) for a continuous piecewise linear f."""
    starts, slopes, intercepts = (np.array(column, dtype=np.float64) for column in zip(*pieces, strict=True))
    breaks = starts[1:]
    first = np.searchsorted(breaks, x.lower, side="right")  # the piece of the lower end
    last = np.maximum(np.searchsorted(breaks, x.upper, side="left"), first)
    y = scale_and_shift(x, slopes[first], intercepts[first])
    for chosen, encode in ((last - first == 1, _encode_two), (last - first > 1, _encode_many)):
        index = np.flatnonzero(chosen)
        if len(index):
            bent = encoder.materialised(x.take(index), _DENSE)
            y = replaced(y, index, encode(encoder, bent, breaks, slopes, intercepts, first[index], last[index]))
    return y


def _encode_two(
    encoder: Encoder, x: Expression, breaks: Vector, slopes: Vector, intercepts: Vector,
    first: NDArray[np.intp], last: NDArray[np.intp],
) -> Expression:  # fmt: skip
    """Encode a left line L1 up to t and a right line L2 after it (Tjeng et al. 2019, eq. 6-10, for any two slopes).

    With sign s = 1 for a convex bend and -1 for a concave one: s y >= s L1, s y >= s L2,
    s y <= s L1 + |bend| (u - t) a and s y <= s L2 + |bend| (t - l) (1 - a); a = 1 means x >= t.
    """
    t = breaks[first]
    s1, c1, s2, c2 = slopes[first], intercepts[first], slopes[last], intercepts[last]
    sign, bend = np.where(s2 > s1, 1.0, -1.0), np.abs(s2 - s1)
    at_ends = np.stack([s1 * x.lower + c1, s1 * t + c1, s2 * x.upper + c2])
    y = encoder.variables(at_ends.min(0), at_ends.max(0))
    active = encoder.binaries(x.size)
    for slope, intercept in ((s1, c1), (s2, c2)):
        # A constant line is a bound of y already.
        rows = np.flatnonzero(slope != 0)
        terms = [(sign[rows], y.take(rows)), ((-sign * slope)[rows], x.take(rows))]
        encoder.at_least(terms, (sign * intercept)[rows])
    above, below = bend * (x.upper - t), bend * (t - x.lower)
    encoder.at_most([(sign, y), (-sign * s1, x), (-above, active)], sign * c1)
    encoder.at_most([(sign, y), (-sign * s2, x), (below, active)], sign * c2 + below)
    return y


def _encode_many(
    encoder: Encoder, x: Expression, breaks: Vector, slopes: Vector, intercepts: Vector,
    first: NDArray[np.intp], last: NDArray[np.intp],
) -> Expression:  # fmt: skip
    """Add a binary b_j and a copy x_j of x per piece: sum b_j = 1, sum x_j = x, y = sum (slope_j x_j + c_j b_j).

    The convex hull of the graph of f (disaggregated convex combination; Vielma, Ahmed and Nemhauser, 2010).
    """
    starts, ends = np.append(-np.inf, breaks), np.append(breaks, np.inf)
    chosen_terms, copy_terms, y_terms = [], [], []
    lower, upper = np.full(x.size, np.inf), np.full(x.size, -np.inf)
    for piece in range(int(first.min()), int(last.max()) + 1):
        used = (first <= piece) & (piece <= last)
        low, high = np.maximum(x.lower, starts[piece]), np.minimum(x.upper, ends[piece])
        for end in (low, high):
            value = slopes[piece] * end + intercepts[piece]
            lower, upper = (
                np.where(used, np.minimum(lower, value), lower),
                np.where(used, np.maximum(upper, value), upper),
            )
        low, high = np.where(used, low, 0.0), np.where(used, high, 0.0)
        chosen = encoder.binaries(x.size)
        copy = encoder.variables(np.minimum(low, 0.0), np.maximum(high, 0.0))
        encoder.at_most([(1.0, copy), (-high, chosen)], 0.0)
        encoder.at_least([(1.0, copy), (-low, chosen)], 0.0)
        encoder.at_most([(1.0, chosen)], used.astype(np.float64))
        chosen_terms.append((1.0, chosen))
        copy_terms.append((1.0, copy))
        y_terms += [(np.full(x.size, slopes[piece]), copy), (np.full(x.size, intercepts[piece]), chosen)]
    encoder.equal(chosen_terms, 1.0)
    encoder.equal([*copy_terms, (-1.0, x)], 0.0)
    y = encoder.variables(lower, upper)
    encoder.equal([(1.0, y), *((-coefficient, term) for coefficient, term in y_terms)], 0.0)
    return y

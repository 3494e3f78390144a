"""A proof within a solver's tolerance is no proof over the reals."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from surebound.verdict import Status
from surebound.vnnlib.solve import decide
from surebound.vnnlib.text import parse_query
from tests.vnnlib.nets import dense, model

#: y = relu(x0 + w x1 - 1) over [0, 1] x {1}: the exact maximum is w, about 3e-8, which no float32 execution shows.
WEIGHT = np.float32(3e-8)
QUERY = """
(declare-const X_0 Real)(declare-const X_1 Real)(declare-const Y_0 Real)
(assert (>= X_0 0.0))(assert (<= X_0 1.0))(assert (>= X_1 1.0))(assert (<= X_1 1.0))
(assert (>= Y_0 0.00000001))
"""


def test_a_maximum_below_the_tolerance_is_not_unsat() -> None:
    assert Fraction(float(WEIGHT)) > Fraction(1, 10**8)  # sat, in exact arithmetic, at x = (1, 1)
    network = dense([[[1.0], [float(WEIGHT)]], [[1.0]]], [[-1.0], [0.0]])
    assert decide(parse_query(QUERY), {"N": model(network)}, 60).status is not Status.ROBUST
    asked_for = decide(parse_query(QUERY), {"N": model(network)}, 60, tolerance=True)
    assert not asked_for.float_sound

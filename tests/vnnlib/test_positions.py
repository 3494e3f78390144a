"""Networks that cut at positions which their input names: one case per whole number, proofs of all of them together."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from surebound.errors import DataDependentError
from surebound.graph.onnx.file import Model, parse_model
from surebound.vnnlib.positions import cells
from surebound.vnnlib.runtime import Session
from surebound.vnnlib.solve import decide
from surebound.vnnlib.text import parse_query
from tests.vnnlib.onnx_cases import make_model, whole
from tests.vnnlib.onnx_steps import INT64, cast


def chooser() -> Model:
    """y = x[n] + w[m], with n and m what x[0] and x[1] are cut to."""
    calls = (
        ("Gather", ["x", "zero"], ["a"], {}), cast("a", INT64, "n"), ("Add", ["n", "one"], ["next"], {}),
        ("Slice", ["x", "n", "next"], ["picked"], {}),
        ("Gather", ["x", "one"], ["b"], {}), cast("b", INT64, "m"), ("Add", ["m", "one"], ["after"], {}),
        ("Slice", ["w", "m", "after"], ["read"], {}), ("Add", ["picked", "read"], ["y"], {}),
    )  # fmt: skip
    constants = {"zero": whole(0), "one": whole(1), "w": np.array([0, 10, 20, -5], np.float32)}
    return parse_model(make_model(calls, constants, {"x": (4,)}, ["y"]))


def query(assertion: str, high: float = 3.9) -> str:
    names = "".join(f"(declare-const X_{i} Real)" for i in range(4)) + "(declare-const Y_0 Real)"
    box = f"(assert (>= X_0 2.0))(assert (<= X_0 {high}))(assert (>= X_1 0.0))(assert (<= X_1 2.5))"
    rest = "".join(f"(assert (>= X_{i} 0.25))(assert (<= X_{i} 0.75))" for i in (2, 3))
    return names + box + rest + f"(assert {assertion})"


@pytest.mark.parametrize(
    ("assertion", "word"),
    [("(>= Y_0 20.5)", "sat"), ("(>= Y_0 20.76)", "unsat"), ("(<= Y_0 0.3)", "sat"), ("(<= Y_0 0.2)", "unsat"),
     ("(and (>= Y_0 1.0) (<= Y_0 10.2))", "unsat"), ("(and (>= Y_0 1.0) (<= Y_0 10.3) (>= X_0 3.0))", "sat")],
)  # fmt: skip
def test_every_position_is_a_case(assertion: str, word: str) -> None:
    model = chooser()
    answer = decide(parse_query(query(assertion)), {"N": model}, timeout=60)
    assert answer.word == word
    if word == "sat":
        found = Session(model).run({"x": answer.assignment["X"].reshape(4)})["y"]
        assert np.array_equal(found.reshape(-1), answer.assignment["Y"].reshape(-1))


def test_too_many_positions_are_refused() -> None:
    with pytest.raises(DataDependentError, match="a position or a shape,? depends on the network's input"):
        decide(parse_query(query("(>= Y_0 0.0)", high=1e6)), {"N": chooser()}, timeout=20)


def test_cells_cover_an_interval_and_are_cut_to_their_number() -> None:
    rng = np.random.default_rng(0)
    for low, high in np.sort(rng.uniform(-4, 4, size=(20, 2)), axis=1):
        found = cells(Fraction(low), Fraction(high))
        assert found[0][1] == Fraction(low) and found[-1][2] == Fraction(high)
        for x in rng.uniform(low, high, size=50):
            inside = [k for k, first, last in found if first <= Fraction(x) <= last]
            assert int(np.trunc(x)) in inside

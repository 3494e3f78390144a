"""Products of variables in queries, and how the texts of 2026 write comparisons and shapes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from surebound.cli import build_app
from surebound.vnnlib.infix import prefixed, standard
from surebound.vnnlib.solve import decide
from surebound.vnnlib.text import parse_query
from tests.vnnlib.nets import IDENTITY, SUM, VERSION, between, declare, model


@pytest.mark.parametrize("dtype", ["float32", "real"])
@pytest.mark.parametrize(
    ("assertion", "word"),
    [
        # with x + y = s: x y <= s^2 / 4
        ("(and (>= (* X[0,0] X[0,1]) 0.2) (<= Y[0,0] 1.0))", "sat"),
        ("(and (>= (* X[0,0] X[0,1]) 0.3) (<= Y[0,0] 1.0))", "unsat"),
        ("(>= (* X[0,0] X[0,0] X[0,0]) (+ 0.01 X[0,0]))", "unsat"),  # x^3 <= x in [0, 1]
        ("(>= (+ 0.01 (* X[0,0] X[0,0] X[0,0])) X[0,0])", "sat"),
        ("(>= (* Y[0,0] Y[0,0]) 4.001)", "unsat"),
        ("(>= (* Y[0,0] Y[0,0]) 3.999)", "sat"),
        # (x + y)^2 = x^2 + 2 x y + y^2
        ("(>= (- (* Y[0,0] (+ X[0,0] X[0,1])) (* 2.0 X[0,0] X[0,1])) 2.01)", "unsat"),
        ("(== (* (- X[0,0] 0.5) (+ X[0,1] 1.0)) 0.0)", "sat"),
    ],
)
def test_products_of_variables(assertion: str, word: str, dtype: str) -> None:
    text = VERSION + declare(2, 1, dtype) + between([0, 0], [1, 1]) + f"(assert {assertion})"
    answer = decide(parse_query(text), {"N": model(SUM)}, timeout=60)
    assert answer.word == word, answer.detail


def test_a_witness_is_judged_by_the_exact_product() -> None:
    """The square of the float32 number closest to 1 / 3 is not 1 / 9, whatever it is rounded to."""
    text = VERSION + declare(2, 1) + between([0.333333343, 0], [0.333333343, 1])
    third = np.float32(1 / 3)
    exact = float(third) ** 2  # in float64, exactly
    assert float(np.float32(exact)) != exact
    query = text + f"(assert (and (>= (* X[0,0] X[0,0]) {exact:.20f}) (<= (* X[0,0] X[0,0]) {exact:.20f})))"
    found = decide(parse_query(query), {"N": model(SUM)}, timeout=20)
    assert found.word != "unsat"


def test_a_version_without_brackets() -> None:
    body = declare(2, 1) + between([0, 0], [1, 1]) + "(assert (Y[0,0] > 2.5))"
    for version in ("(vnnlib-version 2.0)", "; (vnnlib-version 2.0)\n(vnnlib-version 2.0)"):
        assert decide(parse_query(version + body), {"N": model(SUM)}, timeout=120).word == "unsat"
    assert standard("(vnnlib-version <2.0>)") == "(vnnlib-version <2.0>)"


def test_infix_comparisons() -> None:
    prefix = "(assert (and (>= X[0,0] 0.0) (<= X[0,0] 1.0) (>= X[0,1] 0.0) (<= X[0,1] 1.0)))"
    infix = "(assert (and (X[0,0] >= 0.0) (X [0,0] <= 1.0) (X[0,1] >= 0.0) (X[0,1] <= 1.0))) ; (a < b)\n"
    for last, word in (("(Y[0,0] > (* 2.0 X[0,0]))", "sat"), ("(Y[0,0] > (+ X[0,0] X[0,1] 0.5))", "unsat")):
        for box in (prefix, infix):
            text = VERSION + declare(2, 1) + box + f"(assert {last})"
            assert decide(parse_query(text), {"N": model(SUM)}, timeout=20).word == word
    assert prefixed("(assert (< A[0] (B[0] < 1)))").count("<") == 2
    assert prefixed("(x\n<\ny) ; (a < b)") == "(< x\n \ny) ; (a < b)"


def test_another_shape_of_as_many_entries_is_a_reshape(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(IDENTITY)
    text = VERSION + "(declare-network N (declare-input X float32 [2]) (declare-output Y float32 [2,1]))"
    text += "(assert (and (>= X[0] 0.0) (<= X[0] 1.0) (>= X[1] 0.0) (<= X[1] 1.0) (>= Y[1,0] {})))"
    for bound, word in ((0.5, "sat"), (1.5, "unsat")):
        (tmp_path / "q.vnnlib").write_text(text.format(bound))
        words = ["verify", str(tmp_path / "q.vnnlib"), "--network", f"N={tmp_path / 'net.onnx'}"]
        result = CliRunner().invoke(build_app(), words)
        assert result.exit_code == 0 and result.stdout.splitlines()[0] == word
        assert "X is declared with shape [2] but has [1, 2]" in result.stderr and "taken as a reshape" in result.stderr
        assert "Y is declared with shape [2, 1] but has [1, 2]" in result.stderr

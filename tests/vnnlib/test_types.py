"""Networks that count, compare and choose: whole numbers and truth values inside, and as outputs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from surebound.bounds.interval import propagate
from surebound.errors import GraphError
from surebound.graph.onnx.file import Model, parse_model
from surebound.graph.onnx.importer import imported
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.search import formula
from surebound.vnnlib.problem import build
from surebound.vnnlib.runtime import Session
from surebound.vnnlib.solve import decide
from surebound.vnnlib.text import parse_query
from tests.vnnlib.onnx_cases import make_model, weight
from tests.vnnlib.onnx_steps import FLOAT, INT32, INT64, cast, floats


def old_query(inputs: int, outputs: int, assertions: str, low: float = -1.0, high: float = 1.0) -> str:
    names = [f"(declare-const X_{i} Real)" for i in range(inputs)] + [
        f"(declare-const Y_{i} Real)" for i in range(outputs)
    ]
    box = [f"(assert (>= X_{i} {low}))(assert (<= X_{i} {high}))" for i in range(inputs)]
    return "\n".join([*names, *box, assertions])


def segmenter(seed: int) -> Model:
    """How many of 4 pixels with 3 classes each are of class 2, as a whole number."""
    rng = np.random.default_rng(seed)
    calls = (
        ("Gemm", ["x", "w", "b"], ["z"], {}), ("Reshape", ["z", "shape"], ["image"], {}),
        ("Transpose", ["image"], ["t"], {"perm": [0, 2, 1]}), ("Softmax", ["t"], ["p"], {"axis": 2}),
        ("Transpose", ["p"], ["q"], {"perm": [0, 2, 1]}), ("ArgMax", ["q"], ["k"], {"axis": 1, "keepdims": 0}),
        ("Equal", ["k", "two"], ["e"], {}), cast("e", INT32, "n"), cast("n", INT64, "m"),
        ("ReduceSum", ["m"], ["y"], {"keepdims": 0}),
    )  # fmt: skip
    constants = {
        "w": rng.normal(size=(2, 12)).astype(np.float32), "b": rng.normal(size=12).astype(np.float32),
        "shape": np.array([1, 3, 4]), "two": np.array(2),
    }  # fmt: skip
    made = make_model(calls, constants, {"x": (1, 2)}, ["y"])
    proto = parse_model(made).proto
    proto.graph.output[0].type.tensor_type.elem_type = 7
    proto.graph.output[0].type.tensor_type.shape.Clear()
    return parse_model(proto.SerializeToString())


@pytest.mark.parametrize("seed", range(3))
def test_counts_of_classes_against_a_grid(seed: int) -> None:
    model = segmenter(seed)
    session = Session(model)
    grid = np.linspace(-0.3, 0.3, 61, dtype=np.float32)
    seen = {int(session.run({"x": np.array([[a, b]], np.float32)})["y"]) for a, b in itertools.product(grid, grid)}
    for count in range(5):
        text = old_query(2, 1, f"(assert (>= Y_0 {count}))", -0.3, 0.3)
        answer = decide(parse_query(text), {"N": model}, timeout=60)
        if count <= max(seen):
            assert answer.word == "sat" and float(answer.assignment["Y"].reshape(-1)[0]) >= count
        else:
            assert answer.word == "unsat"


def test_over_the_reals_the_largest_of_a_softmax_is_the_largest() -> None:
    query = parse_query(old_query(2, 1, "(assert (>= Y_0 1))"))
    problem = build(query, {"N": segmenter(0)})
    assert not problem.network.graph.calls(lambda node: "softmax" in node.op)
    env, network = imported(segmenter(0))  # as executed, equal entries may come out of different ones
    assert network.graph.calls(lambda node: "softmax" in node.op) and env.value("y").dtype == "int64"


def test_comparisons_of_a_softmax_are_asked_of_what_it_normalises() -> None:
    calls = (("Gemm", ["x", "w"], ["z"], {}), ("Softmax", ["z"], ["y"], {"axis": 1}))
    model = parse_model(make_model(calls, {"w": 400 * weight(2, 3)}, {"x": (1, 2)}, ["y"]))
    compared = build(parse_query(old_query(2, 3, "(assert (or (>= Y_0 Y_1) (> Y_2 Y_1)))")), {"N": model})
    assert not compared.network.graph.calls(lambda node: "softmax" in node.op)
    for assertion in ("(>= Y_0 0.5)", "(>= Y_0 (* 2.0 Y_1))", "(and (>= Y_0 Y_1) (<= Y_0 0.9))"):
        other = build(parse_query(old_query(2, 3, f"(assert {assertion})")), {"N": model})
        assert other.network.graph.calls(lambda node: "softmax" in node.op)


def test_numbers_beyond_a_whole_type_are_unknown() -> None:
    calls = (("Mul", ["x", "big"], ["t"], {}), cast("t", INT32, "n"), cast("n", FLOAT, "y"))
    model = parse_model(make_model(calls, {"big": floats(1e6)}, {"x": (1, 2)}, ["y"]))
    network = imported(model)[1]
    box = Interval(torch.tensor([[-3000.0, 1.0]]), torch.tensor([[-1.0, 2.0]]))
    found = propagate(network.program, box, Soundness.DEPLOYED)
    assert bool(found.lower[0, 0].isnan()) and bool(found.upper[0, 0].isnan())
    assert float(found.lower[0, 1]) <= 1e6 and float(found.upper[0, 1]) >= 2e6


def test_an_operator_for_numbers_refuses_whole_ones() -> None:
    calls = (cast("x", INT64, "n"), ("Softmax", ["n"], ["y"], {}))
    with pytest.raises(GraphError, match="reads int64 values that depend on the input"):
        imported(parse_model(make_model(calls, {}, {"x": (1, 3)}, ["y"])))


def test_a_large_network_is_attacked_before_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linear bounds of a large network take longer than most witnesses."""
    methods: list[str] = []
    bounded = formula.row_bounds

    def noted(program, region, c, d, method, mode):  # type: ignore[no-untyped-def]
        methods.append(method)
        return bounded(program, region, c, d, method, mode)

    monkeypatch.setattr(formula, "row_bounds", noted)
    model = parse_model(make_model((("Gemm", ["x", "w"], ["y"], {}),), {"w": weight(2, 3)}, {"x": (1, 2)}, ["y"]))
    query = parse_query(old_query(2, 3, "(assert (or (>= Y_0 Y_1) (> Y_2 Y_1)))"))
    for costly, expected in ((formula.COSTLY, ["interval", "crown"]), (0, ["interval"])):
        methods.clear()
        monkeypatch.setattr(formula, "COSTLY", costly)
        answer = decide(query, {"N": model}, timeout=60)
        assert (answer.word, answer.stage, methods) == ("sat", "attack", expected)

"""Verdicts on queries: against brute force, at corners, at equality, across networks, and what is refused."""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from surebound.errors import QueryError
from surebound.graph.onnx.file import Model
from surebound.search import rule as module
from surebound.search.question import Finding, Proof
from surebound.search.stages import branch
from surebound.verdict import Status
from surebound.vnnlib import witness
from surebound.vnnlib.problem import build
from surebound.vnnlib.query import Query
from surebound.vnnlib.runtime import Session
from surebound.vnnlib.solve import Answer, decide
from surebound.vnnlib.text import parse_query
from surebound.vnnlib.witness import Judge, holds
from tests.vnnlib.nets import CANCEL, IDENTITY, SUM, VERSION, between, declare, dense, model, random_dense
from tests.vnnlib.onnx_cases import make_model, weight

SAT, UNSAT = Status.FALSIFIED, Status.ROBUST


def ask(text: str, seconds: float = 200, **networks: bytes) -> Answer:
    return decide(parse_query(text), {name: model(each) for name, each in networks.items()}, seconds)


def outputs(network: Model, points: np.ndarray) -> np.ndarray:
    """onnxruntime on points (N, n): (N, K)."""
    session, name = Session(network), network.outputs[0][0]
    return np.stack([session.run({"x": p[None].astype(np.float32)})[name].reshape(-1) for p in points])


def some_point_satisfies(query: Query, network: Model, low: Sequence[float], high: Sequence[float]) -> bool:
    axes = [np.linspace(a, b, 25) for a, b in zip(low, high, strict=True)]
    points = np.stack(np.meshgrid(*axes), -1).reshape(-1, len(low)).astype(np.float32)
    results = outputs(network, points)
    whole = np.concatenate([points, results], 1)
    return any(holds(query.formula, lambda e, row=row: row[e]) for row in whole)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("dtype", ["float32", "real"])
def test_against_a_grid(seed: int, dtype: str) -> None:
    rng = np.random.default_rng(seed)
    content, low = random_dense([2, 8, 8, 3], seed), rng.uniform(-1, 0, 2)
    high = low + rng.uniform(0.5, 1.5, 2)
    level = rng.uniform(-0.5, 1.0)
    text = VERSION + declare(2, 3, dtype) + between(low, high) + (
        f"(assert (or (and (>= Y[0,0] Y[0,1]) (>= Y[0,0] Y[0,2])) (<= (- Y[0,2] X[0,0]) {-level:.4f})))"
    )  # fmt: skip
    answer = ask(text, N=content)
    found = some_point_satisfies(parse_query(text), model(content), low, high)
    assert answer.status is SAT if found else answer.status in (SAT, UNSAT)
    if answer.status is SAT:
        check(text, answer, model(content))


@pytest.mark.parametrize("seed", range(4))
def test_several_rows_by_splitting_signs_against_a_grid(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Conjunctions over ReLUs alone: as decisive as splitting boxes, and never against a grid."""
    rng = np.random.default_rng(seed)
    content, low, high = random_dense([2, 6, 6, 3], seed), [-1.0, -1.0], [1.0, 1.0]
    levels = outputs(model(content), rng.uniform(-1, 1, (1, 2)))[0] + rng.uniform(-0.05, 0.2, 3)
    text = VERSION + declare(2, 3) + between(low, high) + (
        f"(assert (>= Y[0,0] {levels[0]:.4f})) (assert (>= Y[0,1] {levels[1]:.4f}))"
        f"(assert (or (>= Y[0,2] {levels[2]:.4f}) (<= (+ X[0,0] Y[0,2]) {levels[2] - 1:.4f})))"
    )  # fmt: skip
    verdicts = []
    for few in (0, 16):
        monkeypatch.setattr(module, "FEW_INPUTS", few)
        verdicts.append(ask(text, N=content).status)
    assert verdicts[0] is verdicts[1]
    assert verdicts[0] in (SAT, UNSAT)
    if some_point_satisfies(parse_query(text), model(content), low, high):
        assert verdicts[0] is SAT


def check(text: str, answer: Answer, network: Model) -> None:
    """An assignment satisfies the formula with what onnxruntime returns for its inputs."""
    again = outputs(network, answer.assignment["X"].reshape(1, -1))[0]
    assert np.array_equal(again, answer.assignment["Y"].reshape(-1))
    whole = np.concatenate([answer.assignment["X"].reshape(-1), again])
    query = parse_query(text)
    places = {element: element for element in query.networks[0].inputs[0].elements}
    assert holds(query.formula, lambda e: whole[e], places)


@pytest.mark.parametrize("splits", ["inputs", "signs"])
def test_both_ways_of_splitting_agree(splits: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FEW_INPUTS", 16 if splits == "inputs" else 0)
    content = random_dense([3, 12, 12, 3], 5)
    middle = np.array([0.3, -0.2, 0.1])
    label = int(outputs(model(content), middle[None])[0].argmax())
    others = " ".join(f"(>= Y[0,{k}] Y[0,{label}])" for k in range(3) if k != label)
    verdicts = []
    for radius in (0.02, 0.25, 2.0):
        text = VERSION + declare(3, 3) + between(middle - radius, middle + radius) + f"(assert (or {others}))"
        verdicts.append(ask(text, N=content).status)
    assert verdicts == [UNSAT, UNSAT, SAT]


def test_violated_only_at_a_corner() -> None:
    text = VERSION + declare(2, 1) + between([0, 0], [1, 1]) + "(assert (>= Y[0,0] 2.0))"
    answer = ask(text, N=SUM)
    assert answer.status is SAT
    assert answer.assignment["X"].tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize(("relation", "verdict"), [(">=", SAT), (">", UNSAT)])
def test_equality_and_strictness(relation: str, verdict: Status) -> None:
    text = VERSION + declare(2, 2) + between([0, 0], [1, 1]) + f"(assert ({relation} Y[0,0] 1.0))"
    assert ask(text, N=IDENTITY).status is verdict


def test_a_bound_that_only_rounding_reaches_is_not_proved() -> None:
    """x0 + x1 < 2 is false; x0 + x1 <= 2 holds with equality, within the rounding of the sum: nobody may say unsat."""
    text = VERSION + declare(2, 1) + between([0, 0], [1, 1]) + "(assert (> Y[0,0] 2.0))"
    assert ask(text, 3, N=SUM).status is not SAT


def test_true_over_the_reals_but_not_for_every_order_of_summation() -> None:
    point = [100000000.0, 1.0, -100000000.0]
    text = VERSION + declare(3, 1) + between(point, point) + "(assert (<= Y[0,0] 0.5))"
    assert ask(text, 5, N=CANCEL).status is not UNSAT


def test_a_proof_within_a_solvers_tolerance_is_no_unsat_for_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """With many inputs a margin of exactly 0 is left to the solver: an answer for reals, none for float32."""
    monkeypatch.setattr(module, "FEW_INPUTS", 0)
    verdicts = {}
    for dtype in ("float32", "real"):
        text = VERSION + declare(2, 1, dtype) + between([0, 0], [1, 1]) + "(assert (> Y[0,0] 2.0))"
        verdicts[dtype] = ask(text, 10, N=SUM).status
    assert verdicts["float32"] is Status.UNKNOWN
    assert verdicts["real"] is Status.UNKNOWN
    trusting = decide(parse_query(text), {"N": model(SUM)}, 10, tolerance=True)
    assert trusting.status in (UNSAT, Status.UNKNOWN) and not trusting.float_sound


def test_bounds_over_the_reals_prove_nothing_about_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a search returns: without its word for every float32 execution, a float32 query stays open."""
    monkeypatch.setattr(module, "FEW_INPUTS", 0)
    real = Finding(margins=torch.tensor([-1.0], dtype=torch.float64), proof=Proof.REAL)
    monkeypatch.setattr(branch, "search", lambda *_: real)
    for dtype, verdict in (("float32", Status.UNKNOWN), ("real", UNSAT)):
        text = VERSION + declare(2, 1, dtype) + between([0, 0], [1, 1]) + "(assert (> Y[0,0] 2.0))"
        assert ask(text, 10, N=SUM).status is verdict


@pytest.mark.parametrize("few", [16, 0])
def test_constraints_between_inputs_are_used_in_the_proof(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FEW_INPUTS", few)
    text = VERSION + declare(2, 1) + between([0, 0], [1, 1])
    text += "(assert (<= (+ X[0,0] X[0,1]) 1.0)) (assert (>= Y[0,0] {}))"
    assert ask(text.format(1.25), N=SUM).status is UNSAT
    answer = ask(text.format(0.75), N=SUM)
    assert answer.status is SAT
    assert answer.assignment["X"].sum() <= 1.0


def test_alternatives_with_boxes_of_their_own() -> None:
    text = (
        VERSION
        + declare(2, 1)
        + """
    (assert (or (and (>= X[0,0] 0.0) (<= X[0,0] 0.25) (>= X[0,1] 0.0) (<= X[0,1] 0.25))
                (and (>= X[0,0] 0.5) (<= X[0,0] 0.75) (>= X[0,1] 0.0) (<= X[0,1] 0.25))))
    (assert (>= Y[0,0] {}))"""
    )
    assert ask(text.format(1.125), N=SUM).status is UNSAT
    answer = ask(text.format(0.75), N=SUM)
    assert answer.status is SAT
    assert answer.assignment["X"][0, 0] >= 0.5


def test_a_long_disjunction_is_cut_before_it_is_multiplied_out() -> None:
    choices = [f"(or {' '.join(f'(>= Y[0,{j}] {5 + i + j}.0)' for j in range(2))})" for i in range(40)]
    text = VERSION + declare(2, 2) + between([0, 0], [1, 1]) + "\n".join(f"(assert {c})" for c in choices)
    assert ask(text, N=IDENTITY).status is UNSAT  # 2^40 cases otherwise


def test_an_empty_box_has_no_assignment() -> None:
    text = VERSION + declare(2, 1) + between([0, 1], [1, 0]) + "(assert (>= Y[0,0] 0.0))"
    assert ask(text, N=SUM).status is UNSAT


def test_numbers_that_are_no_floats() -> None:
    """0.1 <= x <= 0.1 means the float32 number that 0.1 is written for."""
    text = VERSION + declare(2, 1) + between([0.1, 0.1], [0.1, 0.1]) + "(assert (>= Y[0,0] 0.15))"
    answer = ask(text, N=SUM)
    assert answer.status is SAT
    assert answer.assignment["X"].tolist() == [[np.float32(0.1), np.float32(0.1)]]
    text = VERSION + declare(2, 1) + between([0.1, 0.1], [0.1, 0.1]) + "(assert (>= Y[0,0] 0.21))"
    assert ask(text, N=SUM).status is UNSAT


TWO = VERSION + declare(4, 2, name="f") + (
    "(declare-network g (equal-to f) (declare-input A float32 [1,4]) (declare-output B float32 [1,2]))\n"
)  # fmt: skip


EQUATED = "".join(f"(assert (== X[0,{i}] A[0,{i}]))\n" for i in range(4))


def test_equal_networks_on_equated_inputs_are_one() -> None:
    text = TWO + between([-1] * 4, [1] * 4) + EQUATED + "(assert (!= Y[0,0] B[0,0]))"
    assert ask(text, f=random_dense([4, 10, 2], 3)).status is UNSAT
    apart = TWO + between([-1] * 4, [1] * 4) + between([-1] * 4, [1] * 4, "A") + "(assert (>= (- Y[0,0] B[0,0]) 0.01))"
    answer = ask(apart, f=random_dense([4, 10, 2], 3))
    assert answer.status is SAT
    assert answer.assignment["Y"][0, 0] - answer.assignment["B"][0, 0] >= 0.01


@pytest.mark.parametrize("few", [16, 0])
def test_differences_of_networks_are_bounded_jointly(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Apart, each output moves by more than 1 over the box; together they differ by the last bias, 0.125."""
    monkeypatch.setattr(module, "FEW_INPUTS", few)
    rng = np.random.default_rng(0)
    layers = [rng.normal(size=(4, 5)).tolist(), rng.normal(size=(5, 1)).tolist()]
    f, g = dense(layers, [[0.1] * 5, [0.0]]), dense(layers, [[0.1] * 5, [0.125]])
    text = VERSION + declare(4, 1, name="f") + declare(4, 1, name="g", x="A", y="B")
    text += between([-0.3] * 4, [0.3] * 4) + EQUATED
    assert ask(text + "(assert (>= (- B[0,0] Y[0,0]) 0.5))", f=f, g=g).status is UNSAT
    assert ask(text + "(assert (>= (- B[0,0] Y[0,0]) 0.1))", f=f, g=g).status is SAT


def test_different_networks_side_by_side() -> None:
    text = VERSION + declare(2, 1, name="f") + declare(2, 1, name="g", x="A", y="B")
    text += between([0, 0], [1, 1]) + "".join(f"(assert (== X[0,{i}] A[0,{i}]))" for i in range(2))
    double = dense([[[2.0], [2.0]]], [[0.5]])
    assert ask(text + "(assert (<= B[0,0] Y[0,0]))", f=SUM, g=double).status is UNSAT
    assert ask(text + "(assert (<= B[0,0] (+ Y[0,0] 0.75)))", f=SUM, g=double).status is SAT


def test_isomorphic_networks() -> None:
    text = VERSION + declare(2, 1, name="f") + (
        "(declare-network g (isomorphic-to f) (declare-input A float32 [1,2]) (declare-output B float32 [1,1]))"
    ) + between([0, 0], [1, 1]) + between([0, 0], [1, 1], "A") + "(assert (>= (+ Y[0,0] B[0,0]) 8.0))"  # fmt: skip
    assert ask(text, f=SUM, g=dense([[[2.0], [2.0]]], [[0.5]])).status is UNSAT
    with pytest.raises(QueryError, match="not built alike"):
        ask(text, f=SUM, g=random_dense([2, 3, 1], 0))


def test_hidden_tensors_and_comparisons_across_nodes() -> None:
    network = dense([[[1.0, -1.0], [1.0, 1.0]], [[1.0], [1.0]]], [[0.0, 0.0], [0.0]])
    text = VERSION + (
        '(declare-network N (declare-input X float32 [1,2]) (declare-hidden H float32 [1,2] "r0")'
        " (declare-output Y float32 [1,1]))"
    ) + between([0, 0], [1, 1])  # fmt: skip
    assert ask(text + "(assert (>= H[0,1] 1.5))", N=network).status is UNSAT  # relu(x1 - x0) <= 1
    answer = ask(text + "(assert (>= H[0,1] 0.75)) (assert (<= Y[0,0] (+ X[0,1] 1.0)))", N=network)
    assert answer.status is SAT
    x = answer.assignment["X"][0]
    assert answer.assignment["H"][0, 1] == np.float32(x[1] - x[0])
    with pytest.raises(QueryError, match="no tensor named 'nothing'"):
        ask(text.replace('"r0"', '"nothing"') + "(assert (>= H[0,1] 1.5))", N=network)


def test_several_inputs_and_outputs() -> None:
    calls = (("Add", ["a", "b"], ["s"], {}), ("Sub", ["a", "b"], ["d"], {}))
    content = make_model(calls, {}, {"a": (1, 2), "b": (2,)}, ["s", "d"])
    text = VERSION + (
        "(declare-network N (declare-input A float32 [1,2]) (declare-input B float32 [2])"
        " (declare-output S float32 [1,2]) (declare-output D float32 [1,2]))"
        "(assert (and (>= A[0,0] 0.0) (<= A[0,0] 1.0) (>= A[0,1] 0.0) (<= A[0,1] 1.0)))"
        "(assert (and (>= B[0] 0.0) (<= B[0] 1.0) (>= B[1] 0.0) (<= B[1] 1.0)))"
    )  # fmt: skip
    assert ask(text + "(assert (>= S[0,0] 1.5)) (assert (>= D[0,0] 0.75))", N=content).status is UNSAT
    answer = ask(text + "(assert (>= S[0,0] 1.5)) (assert (>= D[0,0] 0.25))", N=content)
    assert answer.status is SAT
    assert list(answer.assignment) == ["A", "B", "S", "D"]


def test_old_queries() -> None:
    text = "".join(f"(declare-const {n} Real)\n" for n in ("X_0", "X_1", "Y_0"))
    text += "; a comment (\n(assert (>= X_0 0))(assert (<= X_0 1e0))(assert (>= X_1 -1.0E-1))(assert (<= X_1 .5))\n"
    assert ask(text + "(assert (or (and (>= Y_0 1.75) (<= X_0 0.9)) (<= Y_0 -0.25)))", N=SUM).status is UNSAT
    assert ask(text + "(assert (>= Y_0 1.25))", N=SUM).status is SAT


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (declare(2, 1) + "(assert (>= Y[0,0] 0.5))", r"X\[0,0\] is not bounded below"),
        (declare(2, 1) + between([0], [1]) + "(assert (<= X[0,1] 0.5))", r"X\[0,1\] is not bounded below"),
        (
            declare(2, 1, "float64") + between([0, 0], [1, 1]),
            "float64; the analysis is sound for float32 and real",
        ),
        (declare(2, 1, "float16") + between([0, 0], [1, 1]), "float16; the analysis"),
        (declare(3, 1) + between([0] * 3, [1] * 3), r"shape \[1, 3\] but has \[1, 2\]"),
        (declare(2, 4) + between([0] * 2, [1] * 2), r"Y is declared with shape \[1, 4\] but has \[1, 1\]"),
        (
            declare(2, 1, name="M") + between([0] * 2, [1] * 2),
            "needs --network for: M; missing: M; not wanted: N",
        ),
        (declare(2, 1).replace("float32 [1,2]", "float32 [1,2] initialized"), "initialized"),
    ],
)
def test_what_is_refused(text: str, match: str) -> None:
    if "assert" not in text:
        text += "(assert (>= Y[0,0] 0.5))"
    with pytest.raises(QueryError, match=match):
        ask(VERSION + text, N=SUM)


def test_networks_must_be_named_exactly() -> None:
    text = VERSION + declare(2, 1) + between([0, 0], [1, 1])
    with pytest.raises(QueryError, match="not wanted: other"):
        ask(text, N=SUM, other=SUM)
    with pytest.raises(QueryError, match="missing: N"):
        ask(text)
    with pytest.raises(QueryError, match="not wanted: g"):  # an equal network has no file of its own
        ask(TWO + between([-1] * 4, [1] * 4), f=random_dense([4, 3, 2], 0), g=random_dense([4, 3, 2], 0))


def test_a_convolutional_network_with_many_inputs_and_several_rows() -> None:
    calls = (
        ("Conv", ["x", "w"], ["h"], {}), ("Relu", ["h"], ["r"], {}), ("Flatten", ["r"], ["f"], {}),
        ("Gemm", ["f", "v"], ["y"], {}),
    )  # fmt: skip
    content = make_model(calls, {"w": weight(2, 1, 3, 3), "v": weight(18, 3)}, {"x": (1, 1, 5, 5)}, ["y"])
    head = "(declare-network N (declare-input X float32 [1,1,5,5]) (declare-output Y float32 [1,3]))"
    box = "".join(
        f"(assert (>= X[0,0,{i},{j}] 0.4)) (assert (<= X[0,0,{i},{j}] 0.45))" for i in range(5) for j in range(5)
    )
    answer = ask(VERSION + head + box + "(assert (and (>= Y[0,0] 50.0) (<= Y[0,1] -50.0)))", N=content)
    assert answer.status is UNSAT
    z = outputs_of_image(content)
    low = f"(assert (and (<= Y[0,0] {z[0] + 0.01:.4f}) (>= Y[0,0] {z[0] - 0.01:.4f}) (>= Y[0,1] {z[1] - 0.01:.4f})))"
    assert ask(VERSION + head + box + low, N=content).status is SAT


def outputs_of_image(content: bytes) -> np.ndarray:
    network = model(content)
    x = np.full((1, 1, 5, 5), 0.425, dtype=np.float32)
    return Session(network).run({"x": x})["y"].reshape(-1)


def test_time_ends_the_search() -> None:
    content = random_dense([8, 60, 60, 60, 2], 1)
    text = VERSION + declare(8, 2) + between([-1] * 8, [1] * 8) + "(assert (>= Y[0,0] 3.9))"
    answer = ask(text, 1, N=content)
    assert answer.status in (Status.TIMEOUT, UNSAT, SAT)
    assert answer.seconds < 15


def test_over_the_reals_rounding_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A margin below float32's rounding: proved over the reals by bounds in float64, without any solver's tolerance."""
    monkeypatch.setattr(module, "FEW_INPUTS", 0)
    content = dense([[[1.0, -1.0], [1.0, 1.0]], [[1.0], [1.0]]], [[0.0, 0.0], [0.0]])  # relu(x0 + x1) + relu(x1 - x0)
    verdicts = {}
    for dtype in ("float32", "real"):
        text = VERSION + declare(2, 1, dtype) + between([0, 0], [1, 1]) + "(assert (>= Y[0,0] 2.0000001))"
        verdicts[dtype] = ask(text, 60, N=content)
    assert verdicts["float32"].status is not UNSAT
    assert (verdicts["real"].status, verdicts["real"].float_sound) == (UNSAT, False)


def test_a_network_in_float64_has_the_same_weights_and_names_no_other_dtype() -> None:
    network = build(parse_query(VERSION + declare(2, 1) + between([0, 0], [1, 1]) + "(assert (>= Y[0,0] 1.0))"),
                    {"N": model(SUM)}).network  # fmt: skip
    wide = copy.deepcopy(network).double()
    x = torch.rand(3, 2)
    assert wide.program.graph.dtype == torch.float64 and network.program.graph.dtype == torch.float32
    torch.testing.assert_close(wide(x.double()).float(), network(x))


def test_a_witness_has_to_hold_in_onnxruntime_too(monkeypatch: pytest.MonkeyPatch) -> None:
    query = parse_query(VERSION + declare(2, 2) + between([0, 0], [1, 1]) + "(assert (>= Y[0,0] 0.5))")
    problem, x = build(query, {"N": model(IDENTITY)}), torch.tensor([[0.75, 0.5]])
    found = Judge(problem)(x)
    assert found is not None and float(found["Y"].flatten()[0]) == 0.75
    real = witness.run
    monkeypatch.setattr(
        witness, "run", lambda *given: {k: v * (0.5 if k == "Y" else 1) for k, v in real(*given).items()}
    )
    assert Judge(problem)(x) is None


@pytest.mark.parametrize(("dtype", "asked"), [("float32", False), ("real", True)])
def test_solvers_are_asked_about_reals_only(dtype: str, asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A solver's optimum says nothing about what float32 executions round, whatever tolerance is allowed."""
    seen: list[tuple[bool, bool]] = []
    solve = sys.modules["surebound.vnnlib.solve"]
    real = solve.decide_formula

    def spy(*given: Any, stages: Any, tolerance: bool, **named: Any) -> Any:
        seen.append(("mip" in stages, tolerance))
        return real(*given, stages=stages, tolerance=tolerance, **named)

    monkeypatch.setattr(solve, "decide_formula", spy)
    text = VERSION + declare(2, 2, dtype) + between([0, 0], [1, 1]) + "(assert (>= Y[0,0] 2.0))"
    assert decide(parse_query(text), {"N": model(IDENTITY)}, 20, tolerance=True).word == "unsat"
    assert seen == [(asked, asked)]

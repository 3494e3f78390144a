"""False claims about a network whose truth is known, |x| - t over [-1, 1]: the checker rejects each disguise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from surebound.certificates.files import network_digest, pack
from surebound.checker import Rejected, check

#: The label 0 stays the largest within 1 of 0 if t is above 1, and does not if t is below.
TRUE, FALSE = 1.25, 0.75


def network(t: float) -> bytes:
    """z = (0, |x| - t), and two layers: relu(x) and relu(-x), then their sum by a ReLU of its own."""
    steps = [
        {"op": "dense", "in": [0], "weight": "a"},
        {"op": "relu", "in": [1], "left": 0.0},
        {"op": "dense", "in": [2], "weight": "b"},
        {"op": "relu", "in": [3], "left": 0.0},
        {"op": "dense", "in": [4], "weight": "c", "bias": "t"},
    ]
    arrays = {
        "a": np.array([[1.0], [-1.0]], "<f4"),
        "b": np.array([[1.0, 1.0]], "<f4"),
        "c": np.array([[0.0], [1.0]], "<f4"),
        "t": np.array([0.0, -t], "<f4"),
    }
    return pack({"input": [1], "steps": steps}, arrays)


UNITS = np.array([[0, 0], [0, 1]], "<i4")
FOUR = np.array([0, 1, -1, -1, 1, -1, -1], "<i4")  # both signs of both


def splits(**changed: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    arrays: dict[str, Any] = {"units": UNITS, "tree": FOUR, "slopes": np.zeros((4, 2)), "betas": np.zeros(8)}
    for name in set(changed) - {"inner", "cases"}:
        each = np.asarray(changed[name])
        arrays[name] = each.astype("<i4") if each.dtype.kind == "i" else each  # the type that files have
    proof = {"by": "splits", "cases": changed.get("cases", [0]), **{name: name for name in arrays}}
    if "inner" in changed:
        arrays |= {"entries": np.array([0], "<i4"), "lines": changed["inner"][1]}
        proof["inner"] = [[changed["inner"][0], "entries", "lines"]]
    return proof, arrays


def boxes(tree: list[int], cuts: list[float], **arrays: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    arrays = {"tree": np.array(tree, "<i4"), "cuts": np.array(cuts, "<f8"), **arrays}
    return {"by": "boxes", "cases": [0], **{name: name for name in arrays}}, arrays


def certificate(
    of: bytes, proof: dict[str, Any], arrays: dict[str, Any], region: dict[str, Any] | None = None, **header: Any
) -> bytes:
    given = {"claim": "robust", "network": network_digest(of), "mode": "real", "label": 0, "proofs": [proof],
             "region": region or {"kind": "ball", "eps": "1", "clip": None}, **header}  # fmt: skip
    return pack(given, {"center": np.zeros(1, "<f4"), **arrays})


DISGUISES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "honest splits": splits(),
    "a unit of a layer that is not there": splits(units=[[7, 0], [-1, 0]]),
    "one unit under two names": splits(units=[[0, 0], [0, 0]]),
    "one unit under a negative name": splits(units=[[0, 0], [0, -2]]),
    "a unit beyond its layer": splits(units=[[0, 0], [0, 2]]),
    "only the leaf that is true": splits(tree=[0, 1, -1], slopes=np.zeros((1, 2)), betas=np.zeros(2)),
    "leaves of which one is missing": splits(tree=[0, 1, -1, -1, -1], slopes=np.zeros((2, 2)), betas=np.zeros(4)),
    "slopes beyond every number": splits(slopes=np.full((4, 2), 1e300)),
    "slopes whose products are infinite": splits(slopes=np.full((4, 2), 2.0**199), betas=np.full(8, 2.0**199)),
    "coefficients for leaves counted from the end": splits(leaves=np.array([-1, -2], "<i4"), through=np.zeros((2, 2))),
    "coefficients that are no numbers": splits(leaves=np.array([0], "<i4"), through=np.full((1, 2), np.nan)),
    "inner lines steeper than any": splits(inner=(1, np.full((2, 1, 2), 2.0**199))),
    "inner lines of no number": splits(inner=(1, np.full((2, 1, 2), np.nan))),
    "inner lines of the input of the first layer": splits(inner=(0, np.full((2, 1, 2), 5.0))),
    "inner lines for half of the ends": splits(inner=(1, np.zeros((1, 1, 2)))),
    "weights that are 0 in a leaf": splits(weights=[[1.0], [1.0], [0.0], [1.0]]),
    "weights below 0": splits(weights=np.full((4, 1), -1.0)),
    "fewer weights than leaves": splits(weights=np.ones((3, 1))),
    "another case proved twice": splits(cases=[0, 0]),
    "honest boxes": boxes([0, -1, -1], [0.0]),
    "a cut at no number": boxes([0, -1, -1], [np.nan]),
    "a cut beyond the box": boxes([0, -1, -1], [-5.0]),
    "a cut at the end, and nothing behind it": boxes([0, -1], [-1.0]),
    "a cut along no axis": boxes([-2, -1, -1], [0.0]),
    "cuts that end early": boxes([0, 0, -1, -1, -1], [0.0]),
    "a box that is bounded with no weight": boxes([-1], [], weights=np.zeros((1, 1))),
}


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", DISGUISES)
def test_false_claims_are_rejected(name: str, exact: bool) -> None:
    with pytest.raises(Rejected):
        check(certificate(network(FALSE), *DISGUISES[name]), network(FALSE), exact)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", ["honest splits", "honest boxes", "inner lines steeper than any"])
def test_the_same_proofs_of_true_claims_are_valid(name: str, exact: bool) -> None:
    assert check(certificate(network(TRUE), *DISGUISES[name]), network(TRUE), exact)[0] == "robust"


@pytest.mark.parametrize("exact", [False, True])
def test_a_true_proof_under_another_question_is_rejected(exact: bool) -> None:
    of, other = network(TRUE), network(FALSE)
    proof, arrays = splits()

    def rejected(content: bytes, about: bytes, match: str) -> None:
        with pytest.raises(Rejected, match=match):
            check(content, about, exact)

    rejected(certificate(of, proof, arrays), other, "another network")
    rejected(certificate(other, proof, arrays), of, "another network")
    rejected(certificate(of, proof, arrays, {"kind": "ball", "eps": "13/10", "clip": None}), of, "not below 0")
    rejected(certificate(of, proof, arrays, {"kind": "ball", "eps": "-1", "clip": None}), of, "empty region")
    rejected(certificate(of, proof, arrays, label=1), of, "not below 0")
    rejected(certificate(of, proof, arrays, label=2), of, "label")
    rejected(certificate(of, proof, arrays, label=None), of, "unreadable")
    rejected(certificate(of, proof, arrays, proofs=[]), of, "inf, not below 0")
    rejected(certificate(of, proof, arrays, mode="float64"), of, "mode")
    rejected(certificate(of, proof, arrays, claim="unsat"), of, "claim")
    box = {"kind": "box"}
    rejected(certificate(of, proof, {**arrays, "lower": np.ones(1), "upper": -np.ones(1)}, box), of, "empty region")
    # rows: z1 > 0 is one case; with z1 + 2 > 0 added to it the sum's weight alone proves nothing
    rows = {"c": np.array([[[0.0, 1.0], [0.0, 1.0]]]), "d": np.array([[0.0, 2.0]])}
    only = {**arrays, **rows, "weights": np.tile([0.0, 1.0], (4, 1))}
    rejected(certificate(of, {**proof, "weights": "weights"}, only, label=None), of, "not below 0")
    only["weights"] = np.tile([1.0, 0.0], (4, 1))
    assert check(certificate(of, {**proof, "weights": "weights"}, only, label=None), of, exact)[0] == "robust"


@pytest.mark.parametrize("exact", [False, True])
def test_counterexamples_that_are_none(exact: bool) -> None:
    of = network(FALSE)

    def ask(x: Any, **header: Any) -> str:
        content = certificate(of, {}, {"witness": np.asarray(x)}, claim="falsified", proofs=[], **header)
        return check(content, of, exact)[0]

    assert ask(np.array([0.875], "<f4")) == "falsified"
    for x in ([0.75], [0.0], [1.0000001], [np.nan], [np.inf], [0.875, 0.875], [[0.875]], []):
        with pytest.raises(Rejected):
            ask(np.asarray(x, "<f8"))
    with pytest.raises(Rejected, match="sure to hold"):
        ask(np.array([0.875], "<f4"), label=1)

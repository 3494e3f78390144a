"""Every ONNX operator that is imported, against onnxruntime, in every batch size, with bounds."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from onnx import TensorProto

from surebound.bounds.interval import propagate
from surebound.errors import GraphError, MissingExtraError, TraceMismatchError, UnsupportedOperatorError
from surebound.graph import ImportedNetwork
from surebound.graph.onnx.call import TRANSLATIONS
from surebound.graph.onnx.file import Model, parse_model, read_model
from surebound.graph.onnx.importer import imported, network_of
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.vnnlib.check import check_import, samples
from surebound.vnnlib.operators import check_operators
from surebound.vnnlib.runtime import Session
from surebound.vnnlib.text import parse_query
from tests.vnnlib.onnx_cases import CASES, Case, make_model, one, weight, whole
from tests.vnnlib.onnx_steps import STEPS, floats

ALL = CASES + STEPS

POSITIVE = ("Sqrt", "Log", "Reciprocal", "Div of a constant")
CLEAR_OF_ZERO = ("ReduceLogSum", "LpNormalization", "MatMulInteger", "ConvInteger")  # a scale must not be 0


def box_of(case: Case, network: ImportedNetwork) -> Interval:
    shape = [int(n or 1) for n in network.graph.input_shape[1:]]
    least = 0.0 if case.name in POSITIVE else 0.25 if case.name in CLEAR_OF_ZERO else -0.9
    return Interval(torch.full((1, *shape), least), torch.full((1, *shape), 0.9))


def run(model: Model, x: torch.Tensor) -> torch.Tensor:
    """onnxruntime on one example (1, *input): (1, K)."""
    fed = {model.inputs[0].name: x.numpy().reshape(model.inputs[0].shape)}
    return torch.from_numpy(Session(model).run(fed)[model.outputs[0][0]].reshape(1, -1).copy())


@pytest.mark.parametrize("case", ALL, ids=lambda case: f"{case.name}-{case.opset}")
def test_an_operator_is_what_onnxruntime_computes(case: Case) -> None:
    model = parse_model(case.model())
    network = network_of(model)
    box = box_of(case, network)
    check_import(network, model, box)
    points = torch.cat(samples(network.graph.input_shape[1:], box))
    together = network(points)
    for i, x in enumerate(points):
        assert torch.allclose(together[i : i + 1], network(x.unsqueeze(0)), atol=1e-5, rtol=1e-5)
    bounds = propagate(network.program, box, Soundness.DEPLOYED)
    assert bool(bounds.contains(run(model, points[:1])).all())


def test_every_translation_has_a_case() -> None:
    used = {call[0] for case in ALL for call in case.calls}
    assert sorted(set(TRANSLATIONS) - used) == []


def test_a_batch_of_several_examples_is_not_mixed() -> None:
    """Reductions and products over axes that look like a batch stay inside one example."""
    model = parse_model(one("ReduceSum", (3, 4), whole(0), keepdims=0).model())
    network = network_of(model)
    x = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(network(x), x.sum(1), atol=1e-6)


def test_gzip_and_plain_files_are_the_same_network(tmp_path: Path) -> None:
    content = CASES[0].model()
    (tmp_path / "a.onnx").write_bytes(content)
    (tmp_path / "a.onnx.gz").write_bytes(gzip.compress(content))
    assert read_model(tmp_path / "a.onnx").content == read_model(tmp_path / "a.onnx.gz").content


def test_weights_are_taken_as_they_are() -> None:
    given = weight(6, 4)
    network = network_of(parse_model(one("Gemm", (1, 6), given, weight(4)).model()))
    assert any(torch.equal(each, torch.from_numpy(given.T.copy())) for each in network.buffers())


@pytest.mark.parametrize("change", [1e-3, 1e-5])
def test_a_network_that_differs_by_more_than_rounding_is_refused(change: float) -> None:
    given = np.abs(weight(6, 4)) + 0.5
    right = parse_model(one("Gemm", (1, 6), given, weight(4)).model())
    wrong = network_of(right)
    for each in wrong.buffers():
        if each.dim() == 2:
            each += change
    with pytest.raises(TraceMismatchError, match="more than rounding explains"):
        check_import(wrong, right)


@pytest.mark.parametrize(
    ("model", "error", "match"),
    [
        (one("Det", (1, 3, 3)), UnsupportedOperatorError, "cannot be imported: Det"),
        (one("Gelu", (1, 3), opset=20, approximate="tanh"), GraphError, "approximate='tanh'"),
        (one("Conv", (2, 3, 4, 4), weight(1, 3, 3, 3)), GraphError, "a batch of one"),
        (one("Gather", (1, 5), whole(7), axis=1), GraphError, "outside an axis of 5"),
        (one("Cast", (1, 4), to=10), GraphError, "a type that is not supported"),
        (one("Pow", (1, 4), weight(4)), GraphError, "one constant number"),
        (one("Expand", (1, 4), whole(1 << 20, 1 << 20, 4)), GraphError, "too large"),
    ],
    ids=lambda v: v.name if isinstance(v, Case) else None,
)  # fmt: skip
def test_what_is_not_supported_is_refused(model: Case, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        network_of(parse_model(model.model()))


def test_all_missing_operators_are_named_at_once() -> None:
    calls = (("Det", ["x"], ["a"], {}), ("Hardmax", ["x"], ["b"], {}), ("Add", ["a", "b"], ["y"], {}))
    with pytest.raises(UnsupportedOperatorError, match="Det, Hardmax"):
        network_of(parse_model(make_model(calls, {}, {"x": (3, 3)}, ["y"])))


@pytest.mark.parametrize("kind", [TensorProto.DOUBLE, TensorProto.FLOAT16])
def test_other_element_types_are_refused(kind: int) -> None:
    model = parse_model(make_model((("Relu", ["x"], ["y"], {}),), {}, {"x": (1, 3)}, ["y"], kind=kind))
    with pytest.raises(GraphError, match="only float32 networks"):
        network_of(model)


def test_a_constant_whose_rounding_nobody_specifies_is_bounded() -> None:
    """Bounds at a point hold of every order in which the constant may be summed, and of exact arithmetic."""
    a, b = weight(3, 300), weight(300, 3)
    calls = (("MatMul", ["a", "b"], ["w"], {}), ("MatMul", ["x", "w"], ["y"], {}))
    model = parse_model(make_model(calls, {"a": a, "b": b}, {"x": (1, 3)}, ["y"]))
    env, network = imported(model)
    check_operators(env)
    check_import(network, model)
    x = torch.eye(3)
    for mode in (Soundness.REAL, Soundness.DEPLOYED):
        bounds = propagate(network.program, Interval.point(x), mode)
        exact = torch.from_numpy(a.astype(np.float64) @ b.astype(np.float64))
        terms = (np.outer(a[:, i], b[i]) for i in reversed(range(300)))
        backwards = torch.from_numpy(sum(terms, np.zeros((3, 3), np.float32)))
        assert bool((bounds.lower.double() <= exact).all() and (exact <= bounds.upper.double()).all())
        assert bool(bounds.contains(backwards).all())
        assert bool((bounds.upper - bounds.lower > 0).all() and (bounds.upper - bounds.lower < 1e-1).all())


def test_a_constant_of_sums_with_one_term_is_folded() -> None:
    calls = (("MatMul", ["a", "b"], ["w"], {}), ("Add", ["x", "w"], ["y"], {}))
    constants = {"a": np.eye(3, dtype=np.float32), "b": weight(3, 3)}
    network = network_of(parse_model(make_model(calls, constants, {"x": (3, 3)}, ["y"])))
    assert any(torch.equal(each, torch.from_numpy(constants["b"])) for each in network.buffers())


def test_a_weight_that_would_have_to_be_bounded_is_refused() -> None:
    calls = (("MatMul", ["a", "b"], ["w"], {}), ("Conv", ["x", "w"], ["y"], {}))
    constants = {"a": weight(2, 1, 3, 3), "b": weight(3, 3)}
    with pytest.raises(GraphError, match="differs between implementations; it must be constant"):
        network_of(parse_model(make_model(calls, constants, {"x": (1, 1, 5, 5)}, ["y"])))


@pytest.mark.parametrize(
    ("name", "given", "match"),
    [
        (
            "s",
            floats(0.008, 0.004, 0.002),
            r"scales of shape \[3\] for its first operand; one number.*DequantizeLinear",
        ),
        ("t", floats(0.04, 0.02, 0.01), r"scales of shape \[3\] for its result; one number"),
        ("z", np.array([1, 2, 3], np.int8), r"zero points of shape \[3\] for its result; one number is supported"),
        ("v", weight(5, 1), r"scales of shape \[5, 1\] for its second operand \[5, 3\]; .*one for each of its columns"),
        ("v", weight(5), r"scales of shape \[5\] for its second operand"),
    ],
)
def test_scales_by_row_of_whole_numbers_are_refused(name: str, given: np.ndarray, match: str) -> None:
    """Of a square result the importer took the scale of a row for that of a column; onnxruntime alone refused it."""
    constants = {
        "r": np.array(0.008, np.float32), "i": np.array(-7, np.int8), "s": np.array(0.008, np.float32),
        "w": whole(*range(15)).reshape(5, 3).astype(np.int8), "v": np.array(0.02, np.float32),
        "t": np.array(0.04, np.float32), "z": np.array(-7, np.int8),
    }  # fmt: skip
    calls = (
        ("QuantizeLinear", ["x", "r", "i"], ["q"], {}),
        ("QLinearMatMul", ["q", "s", "i", "w", "v", "i", "t", "z"], ["h"], {}),
        ("DequantizeLinear", ["h", "r", "i"], ["y"], {}),
    )
    with pytest.raises(GraphError, match=match):
        network_of(parse_model(make_model(calls, {**constants, name: given}, {"x": (3, 5)}, ["y"])))


def test_a_huge_constant_of_a_small_file_is_refused() -> None:
    calls = (("ConstantOfShape", ["n"], ["c"], {}), ("Add", ["x", "c"], ["y"], {}))
    model = parse_model(make_model(calls, {"n": whole(1 << 40)}, {"x": (1, 3)}, ["y"]))
    with pytest.raises(GraphError, match="too large"):
        network_of(model)


@pytest.mark.parametrize("opset", [6, 27])
def test_other_opsets_are_refused(opset: int) -> None:
    calls = (("Relu", ["x"], ["y"], {}),)
    with pytest.raises(GraphError, match=f"opset {opset}; 7 to 26"):
        parse_model(make_model(calls, {}, {"x": (1, 3)}, ["y"], opset=opset))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    content = CASES[0].model()
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtraError, match=r"'onnx', which is not installed. .*surebound\[onnx\]"):
        parse_model(content)
    monkeypatch.undo()
    model = parse_model(content)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match="onnxruntime"):
        Session(model)
    monkeypatch.setitem(sys.modules, "vnnlib", None)
    with pytest.raises(MissingExtraError, match="reading VNN-LIB 2.0"):
        parse_query("(vnnlib-version <2.0>)")

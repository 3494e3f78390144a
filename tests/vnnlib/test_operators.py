"""Operators of a file are compared one by one: what follows them hides nothing, and no attribute is overlooked."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from surebound.errors import GraphError, TraceMismatchError
from surebound.graph.onnx import call, export
from surebound.graph.onnx.call import ATTRIBUTES, TRANSLATIONS, Call, translates
from surebound.graph.onnx.file import parse_model
from surebound.graph.onnx.importer import imported, network_of
from surebound.verdict import Status
from surebound.vnnlib import check, effort, operators
from surebound.vnnlib.check import check_import, checked_network, samples
from surebound.vnnlib.files import load_onnx, write_network
from surebound.vnnlib.operators import check_operators
from surebound.vnnlib.solve import decide
from surebound.vnnlib.text import parse_query
from tests.vnnlib.nets import VERSION
from tests.vnnlib.onnx_cases import CASES, Case, make_model, one, weight, whole


def floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


REFUSED = [
    one("Resize", (1, 1, 4, 4), None, floats(1, 1, 2.1, 2.1), mode="nearest",
        coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
    one("Upsample", (1, 1, 4, 4), floats(1, 1, 2.1, 2.1), mode="nearest", opset=9),
    one("Resize", (1, 1, 4, 4), None, None, whole(8, 4), name="axes", mode="nearest", axes=[3, 2], opset=18,
        coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
    one("Resize", (1, 1, 4, 2), None, None, whole(1, 1, 8, 8), name="aspect", mode="nearest", opset=18,
        keep_aspect_ratio_policy="not_larger", coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
    one("Resize", (1, 1, 4, 4), None, floats(1, 1, 2, 2), name="ceil", mode="nearest",
        coordinate_transformation_mode="asymmetric", nearest_mode="ceil"),
    one("Conv", (1, 1, 4, 4), weight(1, 1, 2, 2), kernel_shape=[3, 3]),
]  # fmt: skip


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_resizing_and_convolutions_that_we_would_do_otherwise_are_refused(case: Case) -> None:
    with pytest.raises(GraphError, match=r"not supported|whole factors|a kernel of|no valid ONNX"):
        checked_network(parse_model(case.model()))


@pytest.mark.parametrize("power", [1.0, 2.0])
def test_an_exponent_of_more_axes_adds_axes(power: float) -> None:
    case = one("Pow", (1, 3), np.full((1, 1, 1), power, dtype=np.float32))
    env, network = imported(parse_model(case.model()))
    assert env.value("y").shape == (1, 1, 3)
    check_operators(env)
    assert network(torch.tensor([[1.0, 2.0, 3.0]])).tolist() == [[1.0, 2.0**power, 3.0**power]]


def test_an_attribute_that_nobody_reads_is_refused_unless_it_is_the_default() -> None:
    usual = one("Gather", (1, 6), whole(0, 2), axis=1).model()
    checked_network(parse_model(usual))
    proto = onnx.load_from_string(one("Cast", (1, 6), to=1, opset=19).model())
    proto.graph.node[0].attribute.append(onnx.helper.make_attribute("saturate", 1))
    checked_network(parse_model(proto.SerializeToString()))
    proto.graph.node[0].attribute[-1].i = 0
    with pytest.raises(GraphError, match="the attribute saturate=0 is not supported"):
        checked_network(parse_model(proto.SerializeToString()))


def test_a_translation_says_which_attributes_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "ATTRIBUTES", {**ATTRIBUTES, "LeakyRelu": frozenset()})
    given = Call("LeakyRelu", {"alpha": 0.5}, [], 1, 13, None, "here")  # type: ignore[arg-type]
    with pytest.raises(LookupError, match="reads 'alpha' without saying so"):
        given.attribute("alpha")
    with pytest.raises(GraphError, match="has a translation already"):
        translates("Relu")(lambda call: call.x)


def test_listed_attributes_are_the_operators_own() -> None:
    schemas = onnx.defs.get_all_schemas_with_history()
    for name, read in ATTRIBUTES.items():
        family = {other for other in TRANSLATIONS if TRANSLATIONS[other] is TRANSLATIONS[name]}
        assert read <= {key for each in schemas if each.name in family for key in each.attributes}, name


#: Faults of translations that a ReLU behind the operator hides from random inputs of the whole network.
FAULTS = {
    "LeakyRelu": (
        "LeakyRelu",
        lambda call: call.emit("leaky_relu.default", call.x, 0.3).reshaped(call.x.shape),
        {"alpha": 0.1},
    ),
    "Elu": ("Elu", lambda call: call.emit("elu.default", call.x, 1.0).reshaped(call.x.shape), {"alpha": 2.0}),
    "Softplus": ("Softplus", lambda call: call.emit("relu.default", call.x).reshaped(call.x.shape), {}),
    "Neg": ("Neg", lambda call: call.x, {}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_follows_an_operator_hides_no_fault(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op, wrong, attributes = FAULTS[name]
    calls = ((op, ["x"], ["h"], attributes), ("Mul", ["h", "zero"], ["s"], {}), ("Relu", ["s"], ["y"], {}))
    content = make_model(calls, {"zero": floats(0.0)}, {"x": (1, 3)}, ["y"])
    checked_network(parse_model(content))
    monkeypatch.setattr(operators, "_agreed", set())
    monkeypatch.setitem(TRANSLATIONS, op, wrong)
    with pytest.raises(TraceMismatchError, match=rf"{op}: as imported it differs from onnxruntime"):
        checked_network(parse_model(content))


#: Weighted sums of which one entry, or one place, is another.
SUMS = {
    "Gemm": (one("Gemm", (1, 5), weight(5, 4), weight(4)), (0, 1)),
    "MatMul": (one("MatMul", (2, 5), weight(5, 4)), (3, 2)),
    "Conv": (one("Conv", (1, 2, 5, 5), weight(3, 2, 3, 3), weight(3), pads=[1, 0, 0, 1]), (2, 1, 0, 2)),
    "ConvTranspose": (one("ConvTranspose", (1, 2, 4, 4), weight(2, 3, 2, 2), strides=[2, 1]), (1, 2, 1, 0)),
}


@pytest.mark.parametrize("name", SUMS)
def test_one_draw_shows_any_fault_of_a_weighted_sum(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, place = SUMS[name]
    heavy = parse_model(case.model())
    monkeypatch.setattr(effort, "HEAVY_OPERATOR", 0)
    monkeypatch.setattr(operators, "_draws", None)  # not called
    monkeypatch.setattr(operators, "_agreed", set())
    check_operators(imported(heavy)[0])
    right = TRANSLATIONS[name]

    def wrong(given: Call) -> object:
        moved = given.weight(1).clone()
        moved[place] *= 1.001
        operands = [given.operands[0], moved, *given.operands[2:]]
        return right(dataclasses.replace(given, operands=operands))

    monkeypatch.setitem(TRANSLATIONS, name, wrong)
    monkeypatch.setattr(operators, "_agreed", set())
    with pytest.raises(TraceMismatchError, match=f"{name}: as imported it differs from onnxruntime"):
        check_operators(imported(heavy)[0])


def test_only_weighted_sums_are_heavy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effort, "HEAVY_OPERATOR", 10)
    sizes = {
        name: effort.multiplications(network_of(parse_model(case.model())).program) for name, (case, _) in SUMS.items()
    }
    assert sizes == {"Gemm": 20, "MatMul": 40, "Conv": 3 * 16 * 18, "ConvTranspose": 3 * 8 * 5 * 8}
    assert effort.heavy_sum(network_of(parse_model(SUMS["Conv"][0].model())).program)
    calls = (("Gemm", ["x", "w"], ["h"], {}), ("Relu", ["h"], ["y"], {}))
    kinked = network_of(parse_model(make_model(calls, {"w": weight(5, 4)}, {"x": (1, 5)}, ["y"]))).program
    assert effort.multiplications(kinked) == 20 and not effort.heavy_sum(kinked)


def test_a_heavy_network_is_tried_on_fewer_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, few = samples((5,), None), samples((5,), None, heavy=True)
    assert len(usual) == 8 and len(few) == 3 and all(any(torch.equal(x, y) for y in usual) for x in few)
    assert torch.equal(few[-1], torch.full((1, 5), 0.5))
    model, tried = parse_model(SUMS["Gemm"][0].model()), list[int]()
    monkeypatch.setattr(check, "compare", lambda network, x, expected, source: tried.append(len(x)))
    check_import(network_of(model), model)
    monkeypatch.setattr(effort, "HEAVY_NETWORK", 10)
    check_import(network_of(model), model)
    assert tried == [8, 3]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}-{case.opset}")
def test_every_operator_agrees_by_itself(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "_agreed", set())
    check_operators(imported(parse_model(case.model()))[0])


def test_a_use_of_an_operator_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "_agreed", set())
    tried = []
    monkeypatch.setattr(operators, "_check", lambda model, node, *rest: tried.append(node.op_type))
    calls = (
        ("Mul", ["x", "a"], ["p"], {}), ("Mul", ["p", "a"], ["q"], {}), ("Mul", ["q", "b"], ["r"], {}),
        ("Mul", ["r", "r"], ["s"], {}), ("MatMul", ["s", "w"], ["t"], {}), ("MatMul", ["t", "v"], ["y"], {}),
    )  # fmt: skip
    constants = {"a": floats(2), "b": floats(3), "w": weight(4, 4), "v": weight(4, 4)}
    check_operators(imported(parse_model(make_model(calls, constants, {"x": (1, 4)}, ["y"])))[0])
    assert tried == ["Mul", "Mul", "Mul", "MatMul"]


def test_a_file_that_would_end_onnxruntime_is_refused_before() -> None:
    calls = (("Split", ["x", "n"], ["", "y"], {"axis": 1}),)
    model = parse_model(make_model(calls, {"n": whole(2, 4)}, {"x": (1, 6)}, ["y"]))
    with pytest.raises(GraphError, match="leaves out one of its results"):
        checked_network(model)
    query = VERSION + (
        "(declare-network N (declare-input X float32 [1,6]) (declare-output Y float32 [1,4]))\n"
        "(assert (>= Y[0,0] 2.0))" + "".join(f"(assert (>= X[0,{i}] 0.0))(assert (<= X[0,{i}] 1.0))" for i in range(6))
    )
    with pytest.raises(GraphError, match="leaves out one of its results"):
        decide(parse_query(query), {"N": model}, 5.0)


def test_a_query_about_a_wrongly_imported_operator_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict would be unsat; onnxruntime has a counterexample in the middle of the box."""
    calls = (
        ("Resize", ["x", "", "s"], ["h"],
         {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}),
        ("Flatten", ["h"], ["f"], {}), ("Gemm", ["f", "w"], ["g"], {}), ("Sub", ["g", "b"], ["t"], {}),
        ("Relu", ["t"], ["y"], {}),
    )  # fmt: skip
    w = np.zeros((8, 1), dtype=np.float32)
    w[4] = 1.0  # x[2] if the factor is 2, x[1] if it is 2.1
    constants = {"s": floats(1, 1, 2.1), "w": w, "b": floats(0.9)}
    model = parse_model(make_model(calls, constants, {"x": (1, 1, 4)}, ["y"]))
    query = VERSION + "(declare-network N (declare-input X float32 [1,1,4]) (declare-output Y float32 [1,1]))\n"
    bounds = [(0.0, 0.5), (0.0, 1.0), (0.0, 0.5), (0.0, 0.5)]
    query += "".join(f"(assert (>= X[0,0,{i}] {a}))(assert (<= X[0,0,{i}] {b}))" for i, (a, b) in enumerate(bounds))
    with pytest.raises(GraphError, match="whole factors"):
        decide(parse_query(query + "(assert (>= Y[0,0] 0.05))"), {"N": model}, 5.0)

    def truncating(call: Call) -> object:
        x = call.image(call.x)
        return call.from_image(call.emit("upsample_nearest1d.default", x, [8]))

    monkeypatch.setitem(TRANSLATIONS, "Resize", truncating)
    with pytest.raises(TraceMismatchError, match="Resize: as imported"):
        decide(parse_query(query + "(assert (>= Y[0,0] 0.05))"), {"N": model}, 5.0)


class Curved(nn.Module):
    def __init__(self, beta: float, threshold: float) -> None:
        super().__init__()
        self.layer, self.act = nn.Linear(3, 4), nn.Softplus(beta, threshold)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = torch.relu(self.act(self.layer(x)) - 1)
        return made


@pytest.mark.parametrize("beta", [1.0, 0.25, 4.0])
def test_softplus_is_exported_with_its_steepness(beta: float, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Curved(beta, 20).requires_grad_(False)
    write_network(net, torch.zeros(1, 3), tmp_path / "net.onnx")
    again, x = load_onnx(tmp_path / "net.onnx"), 4 * torch.randn(50, 3)
    torch.testing.assert_close(again(x), net(x), rtol=1e-5, atol=1e-6)


def test_a_softplus_that_is_cut_off_early_is_not_exported(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="threshold=1"):
        write_network(Curved(1.0, 1), torch.zeros(1, 3), tmp_path / "net.onnx")
    assert not (tmp_path / "net.onnx").exists()


class Rounded(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.avg_pool1d(x, 2, ceil_mode=True, count_include_pad=False) + x.mean(
            2, dtype=torch.float64
        ).to(torch.float32).unsqueeze(2)


def test_an_argument_that_an_export_does_not_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"dtype=torch.float64|cannot be exported"):
        write_network(Rounded(), torch.zeros(1, 2, 4), tmp_path / "net.onnx")


def test_an_export_that_differs_in_one_call_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hidden by what follows: the difference is told where it arises."""

    def steeper(call: object) -> object:
        return call.emit("LeakyRelu", call.args["self"], alpha=0.5 + 0 * call.args["negative_slope"])  # type: ignore[attr-defined]

    net = nn.Sequential(nn.Linear(2, 3), nn.LeakyReLU(0.1), nn.ReLU(), nn.Linear(3, 2))
    write_network(net, torch.zeros(1, 2), tmp_path / "right.onnx")
    monkeypatch.setitem(export.EXPORTS, "aten.leaky_relu.default", steeper)
    with pytest.raises(TraceMismatchError, match=r"aten.leaky_relu.default differs in the exported network"):
        write_network(net, torch.zeros(1, 2), tmp_path / "net.onnx")


def test_an_old_file_whose_weights_are_inputs_as_well_is_read() -> None:
    """The form of files before 2019, of IR version 3: every initializer is listed among the inputs."""
    model = one("Sub", (1, 3), floats(1, 2, 3)).model()
    proto = onnx.ModelProto()
    proto.ParseFromString(model)
    constant = proto.graph.initializer[0]
    proto.ir_version = 3
    proto.graph.input.append(onnx.helper.make_tensor_value_info(constant.name, 1, list(constant.dims)))
    network = checked_network(parse_model(proto.SerializeToString()))
    assert network(torch.tensor([[1.0, 1.0, 1.0]])).tolist() == [[0.0, -1.0, -2.0]]


def test_a_query_with_whole_factors_is_decided() -> None:
    case = one("Resize", (1, 1, 2), None, floats(1, 1, 2), mode="nearest",
               coordinate_transformation_mode="asymmetric", nearest_mode="floor")  # fmt: skip
    text = VERSION + "(declare-network N (declare-input X float32 [1,1,2]) (declare-output Y float32 [1,1,4]))\n"
    text += "".join(f"(assert (>= X[0,0,{i}] 0.0))(assert (<= X[0,0,{i}] 1.0))" for i in range(2))
    answer = decide(parse_query(text + "(assert (>= Y[0,0,3] 1.5))"), {"N": parse_model(case.model())}, 5.0)
    assert answer.status is Status.ROBUST

"""Linear models as scikit-learn's converters write them (ai.onnx.ml): the same numbers, and bounds that hold."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import surebound as sb
from surebound.errors import GraphError, TraceMismatchError

WEIGHTS = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
SHIFTS = np.array([0.1, -0.2, 0.3], np.float32)


def ml(op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> Any:
    return helper.make_node(op, inputs, outputs, domain="ai.onnx.ml", **attributes)


def classifier(after: str, **changed: Any) -> Any:
    given = {
        "coefficients": WEIGHTS.reshape(-1).tolist(),
        "intercepts": SHIFTS.tolist(),
        "classlabels_ints": [0, 1, 2],
        "post_transform": after,
    }
    return ml("LinearClassifier", ["s"], ["label", "scores"], **{**given, **changed})


def save(path: Path, *nodes: Any, outputs: tuple[str, ...] = ("label", "p")) -> Path:
    kinds, shapes = {"label": TensorProto.INT64}, {"label": [None]}
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 4])],
        [helper.make_tensor_value_info(o, kinds.get(o, TensorProto.FLOAT), shapes.get(o, ["N", "K"])) for o in outputs],
    )
    sets = [helper.make_opsetid("", 13), helper.make_opsetid("ai.onnx.ml", 1)]
    onnx.save(helper.make_model(graph, opset_imports=sets, ir_version=8), path)
    return path


def scaler() -> Any:
    return ml("Scaler", ["x"], ["s"], offset=[0.5, 0.4, 0.3, 0.2], scale=[2.0, 1.0, 3.0, 0.5])


@pytest.mark.parametrize("after", ["NONE", "SOFTMAX", "LOGISTIC"])
def test_a_pipeline_gives_what_onnxruntime_gives_and_bounds_hold(tmp_path: Path, after: str) -> None:
    """StandardScaler, LogisticRegression and the normalisation that converters write behind its probabilities."""
    last = ml("Normalizer", ["scores"], ["p"], norm="L1") if after != "NONE" else None
    nodes = [scaler(), classifier(after), *([last] if last is not None else [])]
    name = "p" if after != "NONE" else "scores"
    path = save(tmp_path / "model.onnx", *nodes, outputs=("label", name))
    net = sb.load(path)
    x = torch.rand(8, 4, generator=torch.Generator().manual_seed(1))
    session = importlib.import_module("onnxruntime").InferenceSession(str(path))
    label, found = session.run(None, {"x": x.numpy()})
    with torch.no_grad():
        assert torch.allclose(net(x), torch.from_numpy(found), atol=1e-6)
    assert net(x).argmax(1).tolist() == label.tolist()
    region = sb.LinfBall(x, "1/10", clip=(0, 1))
    bounds = sb.interval_bounds(net, region)
    upper = sb.worst_margins(net, region, torch.from_numpy(label), method="crown")
    draw = torch.Generator().manual_seed(2)
    for _ in range(50):
        point = (x + (2 * torch.rand(x.shape, generator=draw) - 1) * 0.0999).clamp(0, 1)
        z = torch.from_numpy(session.run([name], {"x": point.numpy()})[0])
        assert bool(bounds.contains(z).all())
        assert bool((z - z.gather(1, torch.from_numpy(label)[:, None]) <= upper).all())
    results = sb.verify(net, sb.LinfBall(x, "1/1000", clip=(0, 1)), torch.from_numpy(label))
    assert sum(record.verdict.status.value == "robust" for record in results) >= 6


def test_regression(tmp_path: Path) -> None:
    node = ml("LinearRegressor", ["x"], ["y"], coefficients=[1.0, 2.0, -1.0, 0.5], intercepts=[0.25], targets=1)
    net = sb.load(save(tmp_path / "model.onnx", node, outputs=("y",)))
    assert net(torch.tensor([[1.0, 1.0, 1.0, 2.0]])).tolist() == [[3.25]]


def test_what_is_not_rewritten_says_why(tmp_path: Path) -> None:
    cases = {
        "post_transform='PROBIT'; give one of NONE": (scaler(), classifier("PROBIT")),
        "1 rows of weights for 2 classes": (
            scaler(),
            classifier("LOGISTIC", coefficients=[1.0] * 4, intercepts=[0.0], classlabels_ints=[0, 1]),
        ),
    }
    for message, nodes in cases.items():
        with pytest.raises(GraphError, match=message):
            sb.load(save(tmp_path / "model.onnx", *nodes, outputs=("label", "scores")))
    norm = ml("Normalizer", ["x"], ["p"], norm="L2")
    with pytest.raises(GraphError, match="norm='L2'; L1, which converters write"):
        sb.load(save(tmp_path / "model.onnx", norm, outputs=("p",)))
    trees = ml("TreeEnsembleRegressor", ["x"], ["y"])
    with pytest.raises(GraphError, match="TreeEnsembleRegressor of ai.onnx.ml; known of these are LinearClassifier"):
        sb.load(save(tmp_path / "model.onnx", trees, outputs=("y",)))


def test_a_wrong_rewriting_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file as it is, not what was made of it, has the last word."""
    from surebound.graph.onnx import classical

    path = save(tmp_path / "model.onnx", scaler(), classifier("NONE"), outputs=("label", "scores"))
    monkeypatch.setitem(classical._AFTERWARDS, "NONE", "Sigmoid")
    with pytest.raises(TraceMismatchError, match="differs from onnxruntime"):
        sb.load(path)

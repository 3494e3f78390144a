"""``check`` says everything that is not supported, at once, and raises nothing about it."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import Tensor, nn

import surebound as sb
from surebound.errors import InputError
from surebound.graph.onnx.file import read_model
from surebound.rules.support import COLUMNS

X = torch.rand(2, 4)


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RReLU()

    def forward(self, x: Tensor) -> Tensor:
        h = torch.special.bessel_j0(x)
        return torch.exp(self.norm(h)).relu()


def test_every_call_with_its_place_columns_and_remedy() -> None:
    net = Odd()
    support = sb.check(net, X)
    assert not support.supported
    bessel, norm, exp, relu = support.operators
    assert bessel.op == "aten.special_bessel_j0.default"
    assert (bessel.columns, norm.columns) == ((), ())
    assert "bessel_j0(x)" in bessel.source
    assert "'surebound ops'" in bessel.remedy
    assert norm.module == "norm"
    assert "use leaky_relu" in norm.remedy
    assert exp.columns == ("interval", "linear")
    assert relu.columns == COLUMNS
    assert support.missing("interval") == (bessel, norm)
    assert support.missing("mip") == (bessel, norm, exp)
    lines = str(support).splitlines()
    assert lines[0] == "not supported; of 4 operator calls: interval 2, linear 2, mip 1"
    assert any("rrelu" in line and "in module 'norm'" in line and "no rule" in line for line in lines)
    assert not any("aten.relu" in line for line in lines)
    assert net.training  # left as it was


def test_it_agrees_with_what_bounds_do() -> None:
    net = sb.models.small((1, 12, 12)).eval()
    support = sb.check(net, torch.rand(1, 1, 12, 12))
    assert support.supported
    assert str(support).startswith("supported; ")
    assert len(str(support).splitlines()) == 1
    with pytest.raises(sb.errors.UnsupportedOperatorError, match="2 operator call"):
        sb.interval_bounds(Odd(), sb.LinfBall(X, "1/10"))


def test_what_cannot_be_traced_is_said_and_not_raised() -> None:
    class Branches(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if bool(x.sum() > 0) else -x

    support = sb.check(Branches(), X)
    assert not support.supported
    assert support.operators == ()
    assert str(support).startswith("not supported: ")
    with pytest.raises(InputError, match=r"x is missing; give an input \(B, ...\) of the Odd"):
        sb.check(Odd())
    with pytest.raises(InputError, match="column='lp'; give one of interval, linear, mip"):
        support.missing("lp")


def write(path: Path, *operators: str) -> Path:
    """An ONNX file that applies operators one after the other."""
    names = ["x", *(f"h{i}" for i in range(len(operators) - 1)), "y"]
    nodes = [helper.make_node(op, [names[i]], [names[i + 1]], name=f"call{i}") for i, op in enumerate(operators)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, 3]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_onnx_files(tmp_path: Path) -> None:
    good = write(tmp_path / "good.onnx", "Relu", "Exp")
    for given in (good, str(good), read_model(good), sb.load(good)):
        support = sb.check(given)
        assert support.supported
        assert "Exp 'call1'" in support.missing("mip")[0].source
    bad = sb.check(write(tmp_path / "bad.onnx", "Relu", "Det", "Hardmax", "Exp"))
    assert not bad.supported
    assert [(each.op, each.module) for each in bad.operators] == [("Det", "call1"), ("Hardmax", "call2")]
    assert "surebound supports --onnx-operators" in str(bad)
    (tmp_path / "empty.onnx").write_bytes(b"no")
    assert not sb.check(tmp_path / "empty.onnx").supported
    assert "cannot be read" in sb.check(tmp_path / "nowhere.onnx").trouble

"""Round trips: our networks as ONNX and back, our queries as VNN-LIB and back."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
import torch
from torch import nn

import surebound as sb
from surebound.errors import GraphError, QueryError, UnsupportedOperatorError
from surebound.graph import trace
from surebound.graph.onnx.export import export_program
from surebound.vnnlib.files import load_onnx, write_network, write_questions
from surebound.vnnlib.query import Query
from surebound.vnnlib.text import parse_query
from surebound.vnnlib.write import robustness_query, write_query


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.last = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.norm(self.conv(x)))
        h = torch.cat([h, h.clamp(0.1, 0.8)], 1)[:, 2:6]
        h = nn.functional.max_pool2d(h, 2) + 0.5 * nn.functional.avg_pool2d(h, 2)
        return self.last(torch.sigmoid(h).mean((2, 3)))


NETS = {
    "small": (lambda: sb.models.small(in_shape=(1, 14, 14), mean=(0.1,), std=(0.3,)), (1, 14, 14)),
    "medium, batch norm": (lambda: sb.models.medium(in_shape=(1, 16, 16), batch_norm=True), (1, 16, 16)),
    "toy": (sb.models.toy, (2,)),
    "branches": (Branches, (2, 6, 6)),
}


@pytest.mark.parametrize("name", NETS)
def test_a_network_comes_back_with_the_same_outputs_and_bounds(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    build, shape = NETS[name]
    net = build().eval()
    x = torch.rand(3, *shape)
    write_network(net, x[:1], tmp_path / "net.onnx")
    again = load_onnx(tmp_path / "net.onnx")
    with torch.no_grad():
        assert torch.allclose(net(x), again(x), atol=1e-5, rtol=1e-5)
        region = sb.LinfBall(x, "1/50", clip=(0, 1))
        spec = sb.LinearSpec(torch.eye(int(net(x).shape[1])))
        for method in ("interval", "crown") if name in ("toy", "branches") else ("interval",):
            before = sb.worst_margins(net, region, spec=spec, method=method)
            after = sb.worst_margins(again, region, spec=spec, method=method)
            assert torch.allclose(before, after, atol=1e-5, rtol=1e-4)


def test_every_linear_and_convolutional_weight_is_bit_for_bit(tmp_path: Path) -> None:
    net = sb.models.small(in_shape=(1, 14, 14))
    write_network(net, torch.zeros(1, 1, 14, 14), tmp_path / "net.onnx")
    found = list(load_onnx(tmp_path / "net.onnx").buffers())
    for weight in net.parameters():
        assert any(each.shape == weight.shape and torch.equal(each, weight) for each in found)


def test_what_cannot_be_exported_is_named() -> None:
    class Sorted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.logsumexp(x, 1, keepdim=True)

    with pytest.raises(UnsupportedOperatorError, match="aten.logsumexp.default"):
        export_program(trace(Sorted(), torch.zeros(1, 3)))
    with pytest.raises(GraphError, match="only float32"):
        export_program(trace(nn.Linear(2, 2).double(), torch.zeros(1, 2).double()))


def same(a: Query, b: Query) -> bool:
    return a.formula == b.formula and [v.size for v in a.variables] == [v.size for v in b.variables]


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("eps", ["1/10", "0.3"])
def test_a_query_comes_back_exactly(version: str, eps: str) -> None:
    image = torch.rand(1, 2, 3, generator=torch.Generator().manual_seed(0))
    query = robustness_query(image, 2, 4, eps)
    assert same(parse_query(write_query(query, version)), query)


def test_radii_without_decimal_form_are_rounded_outwards() -> None:
    image = torch.tensor([[[0.5]]])
    back = parse_query(write_query(robustness_query(image, 0, 2, "8/255"), "2.0"))
    low, high = back.formula.parts[:2]
    assert -low.constant <= Fraction(1, 2) - Fraction(8, 255)
    assert high.constant >= Fraction(1, 2) + Fraction(8, 255)
    assert high.constant - Fraction(1, 2) - Fraction(8, 255) < Fraction(1, 10**39)


def test_general_formulas_come_back() -> None:
    text = """(vnnlib-version <2.0>)
    (declare-network f (declare-input X real [2]) (declare-hidden H real [1, 2] "a \\"b\\"") (declare-output Y real []))
    (declare-network g (equal-to f) (declare-input A real [2]) (declare-output B real []))
    (assert (or (and (< Y 1.5) (> X[0] -0.25)) (!= (+ Y (* 2.0 X[1])) 2.0) (== H[0,1] (- A[0] B))))
    """
    query = parse_query(text)
    assert parse_query(write_query(query)) == query
    with pytest.raises(QueryError, match="one network with one input"):
        write_query(query, "1.0")


def test_queries_of_images_come_with_a_list(tmp_path: Path) -> None:
    count = write_questions(
        torch.rand(2, 1, 2, 2), torch.tensor([0, 1]), 3, "1/3", tmp_path / "props", onnx=tmp_path / "net.onnx"
    )
    assert count == 2
    lines = (tmp_path / "props" / "instances.csv").read_text().splitlines()
    assert lines == ["../net.onnx,0_1over3.vnnlib,60", "../net.onnx,1_1over3.vnnlib,60"]

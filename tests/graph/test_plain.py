"""Traces that are written out at once are what torch.export's decompositions make of them, call by call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from surebound.graph import plain, trace
from surebound.graph.identity import structure

tracing = sys.modules["surebound.graph.trace"]


class Code(nn.Module):
    """A network of one function, with a layer and a buffer to use."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.inner = function, nn.Linear(4, 4)
        self.register_buffer("k", torch.arange(4.0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def layers() -> nn.Module:
    found = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    found[1].running_mean.uniform_(-1, 1)
    return found.append(nn.Linear(8, 3)).eval()


#: Networks, and the shape of one input.
WRITTEN: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "layers": (layers, (1, 4, 4)),
    "two flattenings": (lambda: nn.Sequential(nn.Flatten(1, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)), (2, 2, 2)),
    "a buffer": (lambda: Code(lambda net, x: net.inner(x) * net.k), (4,)),
    "views": (lambda: Code(lambda net, x: net.inner(x[:, 1:].transpose(1, 2).unsqueeze(1)).mean((1, 2))), (5, 3)),
    "sizes": (lambda: Code(lambda net, x: net.inner(x.view(x.shape[0], 4)) + x.view(x.size(0), 4) * len(x)), (2, 2)),
    "an operand twice": (lambda: Code(lambda net, x: torch.maximum(x, net.inner(x)) @ net.inner.weight.t()), (4,)),
    "softmax": (lambda: Code(lambda net, x: F.log_softmax(net.inner(x), 1) + F.softmax(x, -1).expand(-1, 4)), (4,)),
    "another layer twice": (lambda: Code(lambda net, x: net.inner(torch.sigmoid(net.inner(x)).clamp(0.2, 0.7))), (4,)),
}

LEFT: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "in place": (lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)), (4,)),
    "written into a view": (lambda: Code(lambda net, x: _zeroed(net.inner(x))), (4,)),
    "normalised": (lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), (4,)),
    "dropout": (lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.ReLU()), (4,)),
    "its output flattened": (lambda: nn.Sequential(nn.ReLU(), nn.Flatten()), (2, 2)),
    "turned and flattened": (lambda: Code(lambda net, x: net.inner(x.permute(0, 2, 1).flatten(1))), (2, 2)),
    "nothing to flatten": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 4)), (4,)),
    "a constant of the code": (lambda: Code(lambda net, x: net.inner(x) * torch.tensor([1.0, 2.0, 3.0, 4.0])), (4,)),
    "statistics of its own": (lambda: nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False), nn.ReLU()), (4,)),
}


def _zeroed(x: Tensor) -> Tensor:
    x[:, 0].zero_()
    return x * 2


def _traced(net: nn.Module, x: Tensor, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, bool]:
    """Trace; also say whether the trace was written out."""
    written: list[bool] = []
    real = plain.written_out
    with monkeypatch.context() as patch:
        patch.setattr(plain, "written_out", lambda *args: written.append(real(*args)) or written[-1])
        return tracing._graph(net, x), written[-1]


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_is_what_decomposing_gives(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, shape = WRITTEN[name]
    net, x = make(), torch.rand(2, *shape)
    graph, written = _traced(net, x, monkeypatch)
    assert written
    torch.testing.assert_close(trace(net, x)(x), net(x), rtol=1e-6, atol=1e-6)
    monkeypatch.setattr(plain, "written_out", lambda *_: False)
    slow = tracing._graph(net, x)
    assert structure(graph) == structure(slow), f"{graph}\n{slow}"
    paths = [[(n.module, n.varies) for n in each.nodes if n.op != "aten.sym_size.int"] for each in (graph, slow)]
    assert paths[0] == paths[1]
    assert [graph.parameters[k] for k in graph.parameters] == [slow.parameters[k] for k in slow.parameters]


@pytest.mark.parametrize("name", LEFT)
def test_the_rest_is_left_to_the_decompositions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, shape = LEFT[name]
    net, x = make().eval(), torch.rand(2, *shape)
    graph, written = _traced(net, x, monkeypatch)
    assert not written
    monkeypatch.setattr(plain, "written_out", lambda *_: False)
    assert structure(graph) == structure(tracing._graph(net, x))

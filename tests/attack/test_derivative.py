"""Networks without a derivative are searched and attacked like others: it raised, or their verdict was an error."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import surebound as sb
from surebound.attack.derivative import derivative
from surebound.verdict import Status


class Cut(nn.Module):
    """Layers with something between them that has no derivative."""

    def __init__(self, kind: str, inputs: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.kind, self.a, self.b = kind, nn.Linear(inputs, 8), nn.Linear(8 if kind == "comparison" else 16, 3)
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        if self.kind == "comparison":
            return self.b((y > 0.1).float())
        h = torch.stack([y, y + 1], 1)
        return self.b(torch.clamp(torch.linspace(-1, 1, 8), h, h[:, :1] + 2).flatten(1))  # broadcasts to its ends


@pytest.mark.parametrize("inputs", [3, 12])
@pytest.mark.parametrize("kind", ["comparison", "ends"])
def test_they_are_decided(kind: str, inputs: int) -> None:
    net, found = Cut(kind, inputs), set[Status]()
    for seed in range(3):
        x = torch.rand(1, inputs, generator=torch.Generator().manual_seed(seed))
        label = net(x).argmax(1)
        for eps in ("1/50", "1/4", "2"):
            region = sb.LinfBall(x, eps)
            (record,) = sb.verify(net, region, label, "fast", timeout=2)
            (verdict,) = sb.decide(net, region, sb.Spec.label(int(label)), timeout=1)
            assert Status.ERROR not in (record.verdict.status, verdict.status), record.verdict.detail
            found |= {record.verdict.status, verdict.status}
            ends = region.interval()
            points = ends.lower + (ends.upper - ends.lower) * torch.rand(2000, inputs)
            if bool((net(points).argmax(1) != label).any()):
                assert Status.ROBUST not in (record.verdict.status, verdict.status)
    assert found >= {Status.ROBUST, Status.FALSIFIED}


def test_what_has_a_derivative_keeps_it() -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    assert derivative((x * x).sum(), x).tolist() == [2, 4]
    assert derivative(torch.tensor(3.0, requires_grad=True) * 2, x).tolist() == [0, 0]
    assert derivative((x > 1).float().sum(), x).tolist() == [0, 0]

"""Networks of operators beyond layers and ReLUs: linear bounds hold at samples and keep what intervals forget."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import surebound as sb

METHODS = ("zonotope", "symbolic", "hybrid", "crown-ibp", "crown", "alpha-crown")


class Net(nn.Module):
    """A linear layer, what is tested, a linear layer."""

    def __init__(self, middle: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 12), nn.Linear(6, 2)
        self.middle = middle

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.middle(self.first(x)))
        return result


def _written(h: Tensor) -> Tensor:
    kept = h[:, :6].clone()
    kept[:, 1:3] = h[:, 6:8]
    return kept - h[:, 6:]


MIDDLES: dict[str, Callable[[Tensor], Tensor]] = {
    "taken apart": lambda h: torch.relu(h.chunk(2, 1)[0]) - h.chunk(2, 1)[0] - torch.relu(h.chunk(2, 1)[1]),
    "largest of an axis": lambda h: h[:, :6] - h.max(1, keepdim=True)[0],
    "so far": lambda h: h[:, :6] - torch.cummin(h, 1)[0][:, 6:],
    "adaptive": lambda h: F.adaptive_max_pool1d(h.unsqueeze(1), 6).squeeze(1) - h[:, 6:],
    "product": lambda h: (h.reshape(-1, 3, 4) @ h.reshape(-1, 4, 3)).flatten(1)[:, :6] + h[:, 6:],
    "einsum": lambda h: torch.einsum("bij,bkj->bik", h.reshape(-1, 6, 2), h.reshape(-1, 6, 2)).mean(1),
    "written": _written,
    "interpolated": lambda h: F.interpolate(h.unsqueeze(1), 6, mode="linear").squeeze(1) - h[:, :6],
    "prelu": lambda h: F.prelu(h[:, :6], torch.tensor([0.3, -0.2, 0.5, 1.4, 0.0, 0.1])) - h[:, :6],
}
#: What zonotopes and symbolic intervals take by its interval (docs/linear-bounds.md).
BACKWARD_ONLY = ("largest of an axis", "so far", "adaptive", "product", "einsum", "written")


@pytest.mark.parametrize("name", MIDDLES)
def test_bounds_hold_and_are_tighter_than_intervals(name: str) -> None:
    torch.manual_seed(0)
    net = Net(MIDDLES[name]).eval().requires_grad_(False)
    x = torch.rand(2, 4)
    region, spec = sb.LinfBall(x, "1/20"), sb.LinearSpec(torch.cat([torch.eye(2), -torch.eye(2)]))
    shares = torch.rand(200, 2, 4)
    shares[::2] = shares[::2].round()
    box = region.interval()
    points = (box.lower + (box.upper - box.lower) * shares).clamp(min=box.lower, max=box.upper)
    z = torch.stack([net(p) for p in points])  # (200, 2, 2)
    best = torch.cat([z, -z], 2).amax(0)
    interval = sb.worst_margins(net, region, spec=spec, method="interval")
    for method in METHODS:
        upper = sb.worst_margins(net, region, spec=spec, method=method)
        assert bool((upper >= best).all())
        assert bool((upper <= interval + 1e-5).all())
        if "crown" in method or name not in BACKWARD_ONLY:
            assert float(upper.sum()) < float(interval.sum()) - 0.01, method

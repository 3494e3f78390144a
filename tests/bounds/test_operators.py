"""Networks of operators beyond layers and ReLUs: linear bounds hold at samples and keep what intervals forget."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import surebound as sb
from surebound.errors import BoundError

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


TRUTHS = {
    "clamp": lambda y: torch.clamp(y > 0, 0.0, 0.5) + y,
    "clamp with crossed ends": lambda y: torch.clamp(y, 0.7, -0.3) + y,
    "clamp by tensors": lambda y: torch.clamp(y > 0, torch.tensor(0.2), torch.tensor(0.5)) + y,
    "clamp_min": lambda y: torch.clamp_min(y, y > 0.1),
    "fmin": lambda y: torch.fmin(y, y > 0),
    "fmax": lambda y: torch.fmax(y > 0.5, y),
    "both": lambda y: torch.fmin(y > 0, y > 0.5) + y,
    "sigmoid": lambda y: torch.sigmoid(y > 0) + y,
    "fill": lambda y: torch.fill(y, 0.5) + y,
    "fill alone": lambda y: torch.fill(y, 0.5),
    "fill by a tensor": lambda y: y.clone().fill_(torch.tensor(-0.5)),
}


@pytest.mark.parametrize("method", ["crown", "crown-ibp", "alpha-crown", "zonotope", "symbolic"])
@pytest.mark.parametrize("kind", TRUTHS)
def test_truth_values_as_numbers_and_what_reads_a_shape(kind: str, method: str) -> None:
    class Between(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.last(torch.relu(TRUTHS[kind](self.first(x))))
            return found

    net, x = Between().requires_grad_(False), torch.rand(2, 4, generator=torch.Generator().manual_seed(1))
    labels = net(x).argmax(1)
    if method in ("zonotope", "symbolic") and kind in ("fill alone", "fill by a tensor"):
        with pytest.raises(BoundError, match="does not depend on the input"):
            sb.worst_margins(net, sb.LinfBall(x, "1/2"), labels, method=method)
        return
    margins = sb.worst_margins(net, sb.LinfBall(x, "1/2"), labels, method=method)
    for seed in range(20):
        draw = torch.Generator().manual_seed(seed)
        z = net(x + (torch.rand(x.shape, generator=draw) - 0.5))
        assert bool((z - z.gather(1, labels.unsqueeze(1)) <= margins).all())
    assert bool(margins.isfinite().all())

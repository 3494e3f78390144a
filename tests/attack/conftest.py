"""Networks of every kind that an attack may meet, small enough for a table of all attacks on all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor, nn


class InPlace(nn.Module):
    """Overwrites its own input, as careless networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1) if x.requires_grad else x.view(len(x), -1)
        x.sub_(0.5)
        return self.last(x.relu_())


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.last(x + self.second(torch.tanh(self.first(x))))


class Masked(nn.Module):
    """Its gradient is cut off, not only zero."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(12, 3).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last((x.detach().flatten(1) * 8).round() / 8)


def convolutional() -> nn.Module:
    """In training mode, with one part frozen: both must be so again after an attack."""
    net = nn.Sequential(
        nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(4, 3)
    )
    net.train()
    net[1].eval()
    return net


MODELS: Mapping[str, Callable[[], Callable[[Tensor], Tensor]]] = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 3)),
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3)),
    "convolutional": convolutional,
    "residual": Residual,
    "in place": InPlace,
    "masked": Masked,
    "double": lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).double(),
    "function": lambda: lambda x: torch.stack([x.flatten(1).sum(1), (x.flatten(1) ** 2).sum(1) * 1.2], 1),
    "not a number": lambda: lambda x: torch.where(x.flatten(1)[:, :3] > 0.9, torch.nan, x.flatten(1)[:, 3:6]),
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> Callable[[Tensor], Tensor]:
    """Each network in turn; inputs are (B, 3, 2, 2)."""
    return MODELS[request.param]()


@pytest.fixture
def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


@pytest.fixture
def images() -> Tensor:
    return torch.rand(24, 3, 2, 2)


@pytest.fixture
def labels(mlp: nn.Module, images: Tensor) -> Tensor:
    """What the mlp says, but for a few examples that are broken from the start."""
    labels = mlp(images).argmax(1)
    labels[::8] = (labels[::8] + 1) % 3
    return labels

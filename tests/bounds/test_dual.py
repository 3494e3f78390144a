"""Linear bounds with gradients: equal to the verifier's, right gradients, above the loss everywhere."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from surebound.bounds.linear.backward import Relaxed
from surebound.bounds.linear.crown import Crown
from surebound.bounds.training.dual import bound_margins, fused_loss, relaxed_from, values_to_keep
from surebound.bounds.training.engine import TrainingPass, training_pass
from surebound.graph import program_of
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.spec import classification


class Residual(nn.Module):
    """Two branches that meet, with a pooling layer that has no affine form."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
        self.pool, self.last = nn.MaxPool2d(2), nn.Linear(27, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        h = (h + self.second(h)).relu()
        return self.last(self.pool(h).flatten(1))


def _nets() -> dict[str, nn.Module]:
    torch.manual_seed(3)
    normed = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 6),
        nn.ReLU(),
        nn.Linear(6, 3),
    )
    norm = normed[1]
    assert isinstance(norm, nn.BatchNorm2d) and norm.running_mean is not None and norm.running_var is not None
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2.0)
    wide = nn.Sequential(
        *(nn.Conv2d(1, 2, 3, stride=2), nn.ReLU(), nn.Conv2d(2, 3, 2, padding=1), nn.ReLU()),
        *(nn.Conv2d(3, 8, 2), nn.ReLU(), nn.Conv2d(8, 2, 3, padding=1), nn.ReLU()),  # windows of 72 numbers
        *(nn.Flatten(), nn.Linear(8, 3)),
    )
    return {"norm": normed.eval(), "convolutions": wide, "residual": Residual()}


NETS = _nets()
X = torch.rand(4, 1, 6, 6, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 2, 1, 1])


def _ready(net: nn.Module, x: Tensor, eps: float = 0.05, **options: bool) -> tuple[TrainingPass, Relaxed]:
    program = program_of(net, x)
    done = training_pass(program, x, Y, eps, keep=values_to_keep(program), **options)
    box = Interval((x - eps).clamp(0, 1), (x + eps).clamp(0, 1))
    return done, relaxed_from(program, done, box)


@pytest.mark.parametrize("name", list(NETS))
def test_margins_are_those_of_the_verifier(name: str) -> None:
    net = NETS[name]
    box = Interval((X - 0.05).clamp(0, 1), (X + 0.05).clamp(0, 1))
    rows = classification(Y, 3, X.dtype).rows(4, 3)
    expected = Crown(intermediate="interval").margins(program_of(net, X), box, *rows, Soundness.NONE)
    _, relaxed = _ready(net, X)
    torch.testing.assert_close(bound_margins(relaxed, Y), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", list(NETS))
@pytest.mark.parametrize("fused", [False, True])
def test_gradients_are_those_of_differences(name: str, fused: bool) -> None:
    net = copy.deepcopy(NETS[name]).double()
    last = [layer for layer in net.modules() if isinstance(layer, nn.Linear)][-1]
    nn.init.zeros_(last.bias)  # a bias of 0 has a gradient, too
    x = X.double()

    def loss() -> Tensor:
        done, relaxed = _ready(net, x)
        assert done.margins is not None
        found = fused_loss(relaxed, done.margins, Y) if fused else bound_margins(relaxed, Y)
        return found.sum() if fused else F.cross_entropy(found, Y)

    parameters = list(net.parameters())
    found = torch.autograd.grad(loss(), parameters)
    generator = torch.Generator().manual_seed(1)
    for p, g in zip(parameters, found, strict=True):
        direction = torch.randn(p.shape, generator=generator, dtype=p.dtype)
        with torch.no_grad():
            step = 1e-6
            p.add_(direction, alpha=step)
            above = loss()
            p.add_(direction, alpha=-2 * step)
            below = loss()
            p.add_(direction, alpha=step)
        slope = ((above - below) / (2 * step)).item()
        assert (g * direction).sum().item() == pytest.approx(slope, rel=2e-4, abs=1e-7)


@pytest.mark.parametrize("name", list(NETS))
def test_the_fused_loss_is_above_every_loss_in_the_ball(name: str) -> None:
    net = NETS[name]
    done, relaxed = _ready(net, X, eps=0.03)
    assert done.margins is not None
    bound = fused_loss(relaxed, done.margins, Y)
    generator = torch.Generator().manual_seed(2)
    for _ in range(50):
        noise = (torch.rand(X.shape, generator=generator) * 2 - 1).sign() * 0.03
        point = (X + noise).clamp(0, 1)
        reached = F.cross_entropy(net(point), Y, reduction="none")
        assert bool((reached <= bound + 1e-5).all())


def test_at_radius_0_the_fused_loss_is_the_loss() -> None:
    net = NETS["convolutions"]
    done, relaxed = _ready(net, X, eps=0.0)
    assert done.margins is not None
    found = fused_loss(relaxed, done.margins, Y)
    torch.testing.assert_close(found, F.cross_entropy(net(X), Y, reduction="none"), rtol=1e-4, atol=1e-5)


def test_the_fused_loss_survives_huge_margins() -> None:
    net = copy.deepcopy(NETS["convolutions"])
    last = net[-1]  # type: ignore[index]
    with torch.no_grad():
        last.weight.mul_(1e4)
    done, relaxed = _ready(net, X)
    assert done.margins is not None
    found = fused_loss(relaxed, done.margins, Y)
    assert bool(found.isfinite().all())
    grads = torch.autograd.grad(found.sum(), list(net.parameters()))
    assert all(bool(g.isfinite().all()) for g in grads)


def test_statistics_of_the_batch_are_used() -> None:
    """As a net that has the clean batch's statistics as its running ones."""
    net = copy.deepcopy(NETS["norm"])
    _, relaxed = _ready(net, X, batch_statistics=True)
    found = bound_margins(relaxed, Y)
    frozen = copy.deepcopy(NETS["norm"])
    conv, norm = frozen[0], frozen[1]  # type: ignore[index]
    clean = conv(X)
    norm.running_mean = clean.mean((0, 2, 3)).detach()
    norm.running_var = clean.var((0, 2, 3), correction=0).detach()
    _, other = _ready(frozen, X)
    torch.testing.assert_close(found, bound_margins(other, Y), rtol=1e-4, atol=1e-5)

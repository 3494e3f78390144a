"""The first thing a newcomer runs: how much of a network's accuracy can be proved, on the embedded digits.

Nothing is trained here: both networks are solved for in closed form, in a second, and have the same weights
on every machine up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor, nn

from surebound import data as datasets
from surebound.data import Split
from surebound.numerics import exact_fraction, proved
from surebound.propagate import interval_bounds, worst_margins
from surebound.region import LinfBall

EPSILONS = tuple(exact_fraction(f"{k}/200") for k in range(17))
SHOWN = exact_fraction("2/100")  # the radius of the table and of the bars


@dataclass(frozen=True)
class Curve:
    """Fractions of the test images, by radius. The truth lies between `proved` and `attacked`."""

    name: str
    eps: tuple[Fraction, ...]
    attacked: tuple[float, ...]  # still classified correctly after a gradient step towards every other class
    proved: tuple[float, ...]  # proved robust, for every float32 execution

    def at(self, eps: Fraction) -> tuple[float, float]:
        """(attacked, proved) at one of the radii."""
        where = self.eps.index(eps)
        return self.attacked[where], self.proved[where]


@dataclass(frozen=True)
class Example:
    """One image with the range of every output over its ball."""

    image: Tensor  # (H, W)
    label: int
    eps: Fraction
    lower: Tensor  # (K,)
    value: Tensor  # (K,)
    upper: Tensor  # (K,)


@dataclass(frozen=True)
class Quickstart:
    """Everything the table and the picture show."""

    curves: tuple[Curve, ...]
    examples: tuple[Example, ...]  # one per curve


def run(epsilons: Sequence[Fraction] = EPSILONS, shown: Fraction = SHOWN) -> Quickstart:
    """Solve for the networks, bound them over the test images, attack them."""
    data = datasets.load("digits")
    networks = {
        "least squares on pixels": linear_network(data.train),
        "ReLU features, least squares on top": feature_network(data.train),
    }
    curves = tuple(curve(name, net, data.test, epsilons) for name, net in networks.items())
    examples = tuple(example(net, data.test, 0, shown) for net in networks.values())
    return Quickstart(curves, examples)


def linear_network(train: Split) -> nn.Module:
    """Flatten, then one layer: ridge regression of the one-hot labels on the pixels."""
    images, labels = train.batch(torch.arange(len(train)))
    return nn.Sequential(nn.Flatten(), solve_layer(images.flatten(1), labels)).eval()


def feature_network(train: Split, width: int = 400, seed: int = 0) -> nn.Module:
    """Flatten, `width` random ReLU features, and ridge regression of the one-hot labels on them."""
    images, labels = train.batch(torch.arange(len(train)))
    pixels = images.flatten(1)
    generator = torch.Generator().manual_seed(seed)
    hidden = nn.Linear(pixels.shape[1], width)
    with torch.no_grad():
        hidden.weight.copy_(torch.randn(hidden.weight.shape, generator=generator) / pixels.shape[1] ** 0.5)
        hidden.bias.copy_(torch.randn(hidden.bias.shape, generator=generator) * 0.1)
        features = hidden(pixels).relu()
    return nn.Sequential(nn.Flatten(), hidden, nn.ReLU(), solve_layer(features, labels)).eval()


def solve_layer(features: Tensor, labels: Tensor, ridge: float = 1.0) -> nn.Linear:
    """The linear layer with the least squared error to the one-hot labels, kept small by `ridge`."""
    x = torch.cat([features, torch.ones(len(features), 1)], dim=1).double()  # (N, F + 1)
    target = torch.eye(10, dtype=torch.float64)[labels]  # (N, K)
    penalty = ridge * torch.eye(x.shape[1], dtype=torch.float64)
    penalty[-1, -1] = 0.0  # the bias is free
    solution = torch.linalg.solve(x.T @ x + penalty, x.T @ target).float()  # (F + 1, K)
    layer = nn.Linear(features.shape[1], 10)
    with torch.no_grad():
        layer.weight.copy_(solution[:-1].T)
        layer.bias.copy_(solution[-1])
    return layer


def curve(name: str, network: nn.Module, test: Split, epsilons: Sequence[Fraction]) -> Curve:
    """Attacked and proved accuracy at every radius."""
    images, labels = test.batch(torch.arange(len(test)))
    steps = attack_steps(network, images, labels)
    attacked, robust = [], []
    with torch.no_grad():
        correct = network(images).argmax(1) == labels  # (B,)
        for eps in epsilons:
            survived = correct.clone()
            for step in steps:
                survived &= network((images + float(eps) * step).clamp(0, 1)).argmax(1) == labels
            attacked.append(survived.float().mean().item())
            margins = worst_margins(network, LinfBall(images, eps, clip=(0, 1)), labels)  # (B, K)
            robust.append((correct & proved(margins).all(1)).float().mean().item())
    return Curve(name, tuple(epsilons), tuple(attacked), tuple(robust))


def attack_steps(network: nn.Module, images: Tensor, labels: Tensor) -> list[Tensor]:
    """For every class the sign of its margin's gradient (Goodfellow et al. 2014): K tensors (B, C, H, W).

    For a network that is linear in its input, these steps make the strongest attack there is.
    """
    x = images.clone().requires_grad_()
    outputs = network(x)  # (B, K)
    margins = outputs - outputs.gather(1, labels[:, None])
    return [torch.autograd.grad(m.sum(), x, retain_graph=True)[0].sign() for m in margins.unbind(1)]


def example(network: nn.Module, test: Split, index: int, eps: Fraction) -> Example:
    """The outputs' ranges over the ball around one test image."""
    image, label = test.batch(torch.tensor([index]))
    with torch.no_grad():
        box = interval_bounds(network, LinfBall(image, eps, clip=(0, 1)))
        value = network(image)
    return Example(image[0, 0], int(label), eps, box.lower[0], value[0], box.upper[0])

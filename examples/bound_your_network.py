"""Bound a network of your own: nothing about the module is special, it may branch and reuse layers.

Run it with `python examples/bound_your_network.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import surebound as sb


class TwoPaths(nn.Module):
    """A small residual network, written the way people write them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.block = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8 * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x).relu()
        h = (h + self.block(h)).relu()  # a skip connection: h is used twice
        return self.head(h.reshape(h.shape[0], -1))  # type: ignore[no-any-return]


def main() -> Tensor:
    """Bound the outputs, then the margins, then a property that is not about labels."""
    torch.manual_seed(0)
    model = TwoPaths()
    images = torch.rand(4, 3, 4, 4)
    labels = model(images).argmax(1)
    region = sb.LinfBall(images, eps="2/255", clip=(0, 1))

    bounds = sb.interval_bounds(model, region)
    print("widest output range:", f"{(bounds.upper - bounds.lower).max().item():.4f}")

    margins = sb.worst_margins(model, region, labels)  # (B, K): upper bounds of z_k - z_true
    print("largest margin of each image:", [f"{m:.4f}" for m in margins.max(1).values.tolist()])

    # "Class 0 stays below the mean of classes 1 and 2, plus one half", as c.z + d <= 0.
    c = torch.zeros(1, 10)
    c[0, :3] = torch.tensor([1.0, -0.5, -0.5])
    own = sb.worst_margins(model, region, spec=sb.LinearSpec(c, torch.tensor([-0.5])))  # (B, 1)
    print("own property proved:", (own <= 0).squeeze(1).tolist())

    # Bounds are differentiable in the module's own parameters: this is how networks are trained with them.
    (gradient,) = torch.autograd.grad(margins.sum(), [model.stem.weight])
    print("gradient of the bounds in the first layer:", f"{gradient.norm().item():.4f}")
    return margins.detach()


if __name__ == "__main__":
    main()

"""Certify networks that are no plain chains: an LSTM that reads digits row by row, a transformer, and a small ViT.

Run it with `python examples/attention_and_recurrence.py`. All are trained on the embedded 8x8 digits, the LSTM with
interval bounds, the transformers against attacks; what linear bounds prove holds for every execution in float32.
"""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import Tensor, nn

import surebound as sb


class RowReader(nn.Module):
    """An LSTM that reads the eight rows of a digit, and a linear layer on its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 24, batch_first=True)
        self.head = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        _, (h, _) = self.lstm(x.flatten(1, 2))
        return self.head(h[-1])  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Four patches of 4x4 pixels, layers of attention with LayerNorm, and a linear layer on their mean."""

    def __init__(self, layers: int = 1) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 16, 4, stride=4)
        self.places = nn.Parameter(torch.zeros(4, 16))
        one = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(one, layers, enable_nested_tensor=False)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patches(x).flatten(2).transpose(1, 2) + self.places
        return self.head(self.encoder(h).mean(1))  # type: ignore[no-any-return]


class VisionTransformer(nn.Module):
    """A ViT: patches, a class token, learnt places; attention and GELU; a linear layer on the token."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.zeros(5, width))
        self.before, self.between, self.after = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)  # (B, 4, width)
        h = torch.cat([self.token.expand(len(x), -1, -1), patches], 1) + self.places
        y = self.before(h)
        h = h + self.attention(y, y, y, need_weights=False)[0]
        h = h + self.mlp(self.between(h))
        return self.head(self.after(h[:, 0]))  # type: ignore[no-any-return]


def main(steps: int = 400, images: int = 40) -> dict[str, tuple[float, float]]:
    """Train them; return the shares of test images that each classifies, and that are proved."""
    digits = sb.data.load("digits")
    x, labels = sb.data.to_unit(digits.test.images[torch.arange(images)]), digits.test.labels[:images]
    found = {}
    for net, method, eps_train, eps in (
        (RowReader(), sb.training.IBP(), "1/50", "1/50"),
        (Transformer(layers=2), sb.training.Adversarial(), "1/20", "1/200"),
        (VisionTransformer(), sb.training.Adversarial(), "1/20", "1/200"),
    ):
        plan = sb.Plan(
            steps=steps, eps_train=Fraction(eps_train), warmup=steps // 10, ramp=steps // 2, learning_rate=5e-3
        )
        sb.train(net, digits, method, plan)
        margins = sb.worst_margins(net, sb.LinfBall(x, eps, clip=(0, 1)), labels, method="crown")
        right = float((net.eval()(x).argmax(1) == labels).float().mean())
        proved = float((margins <= 0).all(1).float().mean())
        name = type(net).__name__
        print(f"{name}: {right:.0%} of {images} digits right, {proved:.0%} proved when every pixel may change by {eps}")
        found[name] = right, proved
    return found


if __name__ == "__main__":
    main()

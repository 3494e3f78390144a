"""Affine facts at work: of an affine network the elided margins are exact, whatever operators it is spelled with."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import surebound as sb

TAILS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "differences": lambda x, w: w[0] - (2 - x) / 4 + torch.rsub(x, w[1], alpha=3) - torch.sub(w[2], x * w[3], alpha=2),
    "chain": lambda x, w: w[0] - torch.rsub(x.mul(-2), 1.0),
    "scaled": lambda x, w: w[1] * (w[0] - x) / w[2],
    "left product": lambda x, w: (w @ x.unsqueeze(2)).squeeze(2),
    "addmm": lambda x, w: torch.addmm(w[0], x, w, beta=0.5, alpha=-2),
    "mean": lambda x, w: x.reshape(-1, 2, 2).mean(1) @ w[:2],
    "sum and cumsum": lambda x, w: torch.cumsum(x, 1) @ w,
    "pooling": lambda x, w: F.avg_pool1d(x.unsqueeze(1), 2, 1, 1).flatten(1) @ torch.cat([w, w[:1]]),
    "padding": lambda x, w: F.pad(F.pad(x.unsqueeze(1), (1, 1), mode="reflect"), (1, 0), value=0.5).flatten(1)[:, :4],
    "movement": lambda x, w: x.flip(1).roll(1, 1)[:, [3, 1, 1, 0]].unflatten(1, (2, 2)).transpose(1, 2).flatten(1),
    "repetition": lambda x, w: x.repeat(1, 2).reshape(-1, 2, 4).transpose(1, 2).sum(2),
    "convolution": lambda x, w: F.conv1d(x.unsqueeze(1), w[:, None, :3], w[0], padding=1).mean(2),
}


class _Affine(nn.Module):
    def __init__(self, tail: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.tail = tail
        self.w = nn.Parameter(torch.randn(4, 4, generator=torch.Generator().manual_seed(0)), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.tail(x, self.w)


def _exact(network: nn.Module, x: Tensor, eps: float, labels: Tensor) -> Tensor:
    """The largest margins over the box: at the corners, because the network is affine."""
    signs = torch.cartesian_prod(*[torch.tensor([-eps, eps], dtype=x.dtype)] * 4)  # (16, 4)
    best = torch.full((len(x), 4), -float("inf"), dtype=x.dtype)
    for sign in signs:
        z = network(x + sign)
        best = torch.maximum(best, z - z.gather(1, labels.unsqueeze(1)))
    return best


@pytest.mark.parametrize("name", TAILS)
def test_elided_margins_of_affine_networks_are_exact(name: str) -> None:
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([0, 2, 3])
    network = _Affine(TAILS[name])
    region = sb.LinfBall(x, eps="1/4")
    sound = sb.worst_margins(network, region, labels)
    wide = network.double()
    exact = _exact(wide, x.double(), 0.25, labels)
    assert bool((sound.double() >= exact - 1e-12).all())
    if name != "differences":  # x enters several times there, which is not one chain
        assert torch.allclose(sound.double(), exact, atol=1e-4)
        plain = sb.worst_margins(wide, sb.LinfBall(x.double(), eps="1/4"), labels, soundness="none")
        assert torch.allclose(plain, exact, atol=1e-10)

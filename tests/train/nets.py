"""Tiny networks and batches that the tests of training share."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor, nn

from surebound.graph import program_of
from surebound.train.methods.base import Batch


def tiny_net(batch_norm: bool = False) -> nn.Sequential:
    """4-6-5-3, with or without batch normalisation: one module each, traced once, as new at every call."""
    net, state = _tiny_net(batch_norm)
    net.load_state_dict(state)
    net.zero_grad(set_to_none=True)
    net.train()
    return net


@lru_cache
def _tiny_net(batch_norm: bool) -> tuple[nn.Sequential, dict[str, Tensor]]:
    torch.manual_seed(0)
    net = fresh_net(batch_norm)
    return net, {name: value.clone() for name, value in net.state_dict().items()}


def fresh_net(batch_norm: bool = False) -> nn.Sequential:
    """4-6-5-3, a new module with weights from the global generator."""
    layers: list[nn.Module] = []
    for n, m in ((4, 6), (6, 5)):
        layers += [nn.Linear(n, m), *([nn.BatchNorm1d(m)] if batch_norm else []), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(5, 3))


def tiny_data(count: int = 8, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Points (N, 4) of the unit cube with labels (N,) that can be learnt."""
    x = torch.rand(count, 4, generator=torch.Generator().manual_seed(seed))
    return x, x[:, :3].argmax(1)


def tiny_batch(net: nn.Module, *, epsilon: float = 0.05, kappa: float = 0.5, count: int = 8) -> Batch:
    """One step's batch for `net`."""
    x, y = tiny_data(count)
    return Batch(
        model=net,
        images=x,
        labels=y,
        epsilon=epsilon,
        eps_train=0.1,
        kappa=kappa,
        step=0,
        generator=torch.Generator().manual_seed(3),
        traced=program_of(net, x),
    )


def reference_margins(net: nn.Sequential, x: Tensor, y: Tensor, eps: float, elide: bool = True) -> Tensor:
    """Worst z_k - z_true (B, K) of a fully connected net, one sample at a time, straight from the paper."""
    rows = []
    for xi, yi in zip(x, y, strict=True):
        lower, upper = (xi - eps).clamp(0, 1), (xi + eps).clamp(0, 1)
        layers = list(net)
        last = layers.pop()
        assert isinstance(last, nn.Linear)
        for layer in layers:
            if isinstance(layer, nn.Linear):
                mid, rad = (lower + upper) / 2, (upper - lower) / 2
                mid, rad = layer.weight @ mid + layer.bias, layer.weight.abs() @ rad
                lower, upper = mid - rad, mid + rad
            else:
                lower, upper = layer(lower), layer(upper)
        mid, rad = (lower + upper) / 2, (upper - lower) / 2
        if elide:
            w = last.weight - last.weight[yi]  # (K, H)
            rows.append(w @ mid + w.abs() @ rad + last.bias - last.bias[yi])
        else:
            low = last.weight @ mid - last.weight.abs() @ rad + last.bias
            high = last.weight @ mid + last.weight.abs() @ rad + last.bias
            row = high - low[yi]
            rows.append(row - row * torch.nn.functional.one_hot(yi, len(row)))
    return torch.stack(rows)

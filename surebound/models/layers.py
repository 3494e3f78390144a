"""Layers that the networks of the paper need: input normalisation, TensorFlow's SAME padding, initialisation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Normalize(nn.Module):
    """(x - mean) / std per channel, as the network's first layer, so that epsilon stays in pixel space."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).reshape(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).reshape(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


class SamePad(nn.Module):
    """Zero padding so that a convolution keeps ceil(size / stride): more below and right when odd."""

    def __init__(self, kernel: int, stride: int, size: tuple[int, int]) -> None:
        super().__init__()
        self.kernel, self.stride, self.size = kernel, stride, size
        total = [max((-(-n // stride) - 1) * stride + kernel - n, 0) for n in size]
        self.pad = (total[1] // 2, total[1] - total[1] // 2, total[0] // 2, total[0] - total[0] // 2)

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x, self.pad)

    def extra_repr(self) -> str:
        return str(self.pad)


def orthogonal_(model: nn.Module, generator: torch.Generator | None = None) -> nn.Module:
    """Orthogonal weights of gain 1 and zero biases in every convolution and linear layer."""
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.orthogonal_(module.weight, generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model


def parameter_count(model: nn.Module) -> int:
    """Trainable parameters."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def hidden_count(model: nn.Module, in_shape: tuple[int, ...]) -> int:
    """Activation units: the outputs of every ReLU for one input."""
    total = 0

    def count(_module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        total += output[0].numel()

    hooks = [m.register_forward_hook(count) for m in model.modules() if isinstance(m, nn.ReLU)]
    modes = {m: m.training for m in model.modules()}
    try:
        with torch.no_grad():
            model.eval()(torch.zeros(1, *in_shape))
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in modes.items():
            module.training = mode
    return total

"""Projected Adam ascent inside a box: the inner attack of adversarial training and of periodic evaluation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from surebound.attack.input_gradient import InputGradients
from surebound.graph.fit import evaluating


def box(images: Tensor, epsilon: float, clip: tuple[float, float] | None) -> tuple[Tensor, Tensor]:
    """Return the ends (B, C, H, W) of the ball of radius `epsilon` around `images`, cut to the clip range."""
    lower, upper = images - epsilon, images + epsilon
    if clip is not None:
        lower, upper = lower.clamp_min(clip[0]), upper.clamp_max(clip[1])
    return lower, upper


def random_point(lower: Tensor, upper: Tensor, generator: torch.Generator) -> Tensor:
    """Draw a uniform point (B, C, H, W) of each box on the generator's device."""
    draw = torch.rand(lower.shape, generator=generator, device=generator.device)
    return lower + (upper - lower) * draw.to(lower.device, lower.dtype)


def ascend(
    model: nn.Module, point: Tensor, ends: tuple[Tensor, Tensor], labels: Tensor, steps: int, step_size: float
) -> Tensor:
    """Climb from `point` to points (B, C, H, W) of the boxes `ends` with a higher cross-entropy.

    Adam with its default moments; the model is in evaluation mode meanwhile, so that batch normalisation
    neither mixes the examples nor learns from attacked images.
    """
    first, second = torch.zeros_like(point), torch.zeros_like(point)
    with evaluating(model):
        for t in range(1, steps + 1):
            point = point.detach().requires_grad_()
            with torch.enable_grad():
                with InputGradients(same_bits=False):
                    logits = model(point)
                loss = F.cross_entropy(logits, labels, reduction="sum")
                (gradient,) = torch.autograd.grad(loss, point)
            first = torch.lerp(first, gradient, 0.1)
            second = torch.lerp(second, gradient.square(), 0.001)
            direction = (first / (1 - 0.9**t)) / ((second / (1 - 0.999**t)).sqrt() + 1e-8)
            point = torch.clamp(point.detach() + step_size * direction, *ends)
    return point

"""Projected ascent inside a box, by Adam or by signs: the inner attacks of training and of periodic evaluation."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from surebound.attack.input_gradient import InputGradients
from surebound.graph.fit import evaluating
from surebound.rules.layouts import channels_last


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
            gradient = loss_gradient(model, point, labels)
            first = torch.lerp(first, gradient, 0.1)
            second = torch.lerp(second, gradient.square(), 0.001)
            direction = (first / (1 - 0.9**t)) / ((second / (1 - 0.999**t)).sqrt() + 1e-8)
            point = torch.clamp(point + step_size * direction, *ends)
    return point


def ascend_by_signs(
    gradient: Callable[[Tensor], Tensor],
    point: Tensor,
    ends: tuple[Tensor, Tensor],
    steps: int,
    step_size: float | None = None,
) -> Tensor:
    """Climb from `point` (B, ...) by steps of one length along the signs of `gradient`, inside the boxes `ends`.

    step_size: in half-widths of the boxes; None: 2.5 / steps. One of 2 or more goes to the corner that the gradient
    points to.
    """
    lower, upper = ends
    reach = (upper - lower) * ((2.5 / steps if step_size is None else step_size) / 2.0)
    for _ in range(steps):
        point = torch.clamp(torch.addcmul(point, gradient(point).sign(), reach), lower, upper)
    return point


def loss_gradient(model: nn.Module, point: Tensor, labels: Tensor) -> Tensor:
    """Differentiate each example's cross-entropy with respect to its input (B, C, H, W)."""
    point = channels_last(point.detach()).requires_grad_()  # the faster layout of convolutions
    with torch.enable_grad():
        with InputGradients(same_bits=False):
            logits = model(point)
        loss = F.cross_entropy(logits, labels, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, point)
    return gradient

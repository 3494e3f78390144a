"""Networks: the paper's, and those that today's literature uses."""

from __future__ import annotations

from surebound.models.layers import Normalize, SamePad, hidden_count, orthogonal_, parameter_count
from surebound.models.modern import WideResNet, cnn5, cnn7, wide_resnet_10_10
from surebound.models.paper import large, medium, small, toy

__all__ = [
    "Normalize",
    "SamePad",
    "WideResNet",
    "cnn5",
    "cnn7",
    "hidden_count",
    "large",
    "medium",
    "orthogonal_",
    "parameter_count",
    "small",
    "toy",
    "wide_resnet_10_10",
]

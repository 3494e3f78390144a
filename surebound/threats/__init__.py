"""What an attacker may do to an image, beyond a ball: changes by one or two parameters, and threats by name."""

from __future__ import annotations

from surebound.threats.threat import Changed, Threat, threat
from surebound.threats.transforms import Blur, Brightness, Contrast, Rotation, Transform, Translation, Zoom

__all__ = [
    "Blur",
    "Brightness",
    "Changed",
    "Contrast",
    "Rotation",
    "Threat",
    "Transform",
    "Translation",
    "Zoom",
    "threat",
]  # fmt: skip

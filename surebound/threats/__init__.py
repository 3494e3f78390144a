"""What an attacker may do beyond a ball: changes of images by a few parameters, patches, other words; by name."""

from __future__ import annotations

from surebound.threats.patches import Patched
from surebound.threats.threat import Changed, Combination, Threat, threat
from surebound.threats.transforms import (
    Blur,
    Brightness,
    Contrast,
    Gamma,
    Hue,
    Rotation,
    Successive,
    Transform,
    Translation,
    Zoom,
)
from surebound.threats.words import substitutions

__all__ = [
    "Blur",
    "Brightness",
    "Changed",
    "Combination",
    "Contrast",
    "Gamma",
    "Hue",
    "Patched",
    "Rotation",
    "Successive",
    "Threat",
    "Transform",
    "Translation",
    "Zoom",
    "substitutions",
    "threat",
]  # fmt: skip

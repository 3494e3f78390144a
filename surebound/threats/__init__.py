"""What an attacker may do beyond a ball: changes of images by a few parameters, patches, other words; by name."""

from __future__ import annotations

from surebound.threats.patches import Patched
from surebound.threats.threat import Changed, Combination, Threat, threat
from surebound.threats.transforms import (
    Blur,
    Brightness,
    Chain,
    Contrast,
    Gamma,
    Hue,
    Rotation,
    Transform,
    Translation,
    Zoom,
)
from surebound.threats.words import substitutions

__all__ = [
    "Blur",
    "Brightness",
    "Chain",
    "Changed",
    "Combination",
    "Contrast",
    "Gamma",
    "Hue",
    "Patched",
    "Rotation",
    "Threat",
    "Transform",
    "Translation",
    "Zoom",
    "substitutions",
    "threat",
]  # fmt: skip

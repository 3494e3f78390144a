"""The question whether a label stays the largest output in a ball, as certificates have it."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from surebound.numerics import exact_fraction
from surebound.region import LinfBall


@dataclass(frozen=True, eq=False)
class AskedLabel:
    """A label, and the ball around one image in which it shall stay the largest output."""

    image: NDArray[np.float32]  # (C, H, W)
    label: int
    eps: Fraction
    clip: tuple[float, float] | None

    def question(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the fields of a certificate's header, and its arrays."""
        ends = None if self.clip is None else [str(end) for end in _clip_around(self.image, self.clip)]
        region = {"kind": "ball", "eps": str(self.eps), "clip": ends}
        return {"label": self.label, "region": region}, {"center": self.image}

    def ends(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the ends (inputs,) of the box that searches begin with."""
        box = LinfBall(torch.from_numpy(self.image)[None], self.eps, self.clip).interval()
        return box.lower.flatten().double().numpy(), box.upper.flatten().double().numpy()


def _clip_around(image: NDArray[np.float32], clip: tuple[float, float]) -> tuple[Fraction, Fraction]:
    """Return the ends of valid inputs, further out where the image lies beyond them: 0.1 is no float32, and its pixels
    of 0.1 are above it. The region that was bounded holds them (``LinfBall``)."""
    low, high = _ends(clip)
    if not image.size:
        return low, high
    least, largest = float(image.min()), float(image.max())
    # a float is compared with a fraction exactly, and is a fraction of its own only where it is needed
    return Fraction(least) if least < low else low, Fraction(largest) if largest > high else high


@functools.lru_cache(16)
def _ends(clip: tuple[float, float]) -> tuple[Fraction, Fraction]:
    low, high = clip
    return exact_fraction(low, "clip"), exact_fraction(high, "clip")

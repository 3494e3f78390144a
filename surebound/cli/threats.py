"""--eps and --threat: what is asked of the images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from surebound.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from surebound.threats import Threat


def asked_threat(eps: str | None, threat: str | None) -> Threat:
    """Return the one threat of a command: --eps is short for l-infinity balls."""
    from surebound.numerics import exact_fraction
    from surebound.threats import Threat
    from surebound.threats import threat as read

    if (eps is None) == (threat is None):
        raise InputError("give --eps 8/255 for l-infinity balls, or --threat rotation:5deg: one of the two")
    if threat is not None:
        return read(threat)
    radius = exact_fraction(eps or "", "--eps")
    if radius < 0:
        raise InputError(f"--eps={eps!r} is negative; a radius is 0 or more")
    return Threat("linf", radius)


def asked_threats(eps: str | None, threat: str | None, certificates: Path | None, explain: bool) -> list[Threat]:
    """Return the threats of `surebound verify`: one, or l-infinity balls of several radii."""
    from surebound.threats import Threat
    from surebound.verify.radii import parse_radii

    if eps is not None and threat is None:
        return [Threat("linf", radius) for radius in parse_radii(eps)]
    if certificates is not None:
        raise InputError("--certificates speak of l-infinity balls; leave them out with --threat, or give --eps")
    if explain:
        raise InputError("--explain reads back l-infinity balls; leave it out with --threat, or give --eps")
    return [asked_threat(eps, threat)]


def pictures(network: nn.Module, points: Tensor) -> Tensor:
    """Return images (B, C, H, W) that points stand for: themselves, or what a change makes of them."""
    import torch

    from surebound.threats import Changed, Patched

    if not isinstance(network, (Changed, Patched)):
        return points
    with torch.no_grad():
        return network.image(points)

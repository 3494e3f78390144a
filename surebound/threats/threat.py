"""Threats by name: what an attacker may do to an image, as a network and a region of its inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import torch
from torch import Tensor, nn

from surebound.errors import InputError, nearest
from surebound.norm_ball import NormBall
from surebound.numerics import exact_fraction
from surebound.pixel_ball import L0Ball
from surebound.region import BALLS, LinfBall
from surebound.threats.patches import Patched, patch_points
from surebound.threats.transforms import (
    Blur,
    Brightness,
    Clipping,
    Contrast,
    Gamma,
    Hue,
    Rotation,
    Successive,
    Transform,
    Translation,
    Zoom,
)

#: Changes by one or two parameters.
TRANSFORMS: dict[str, type[Transform]] = {
    "brightness": Brightness,
    "contrast": Contrast,
    "gamma": Gamma,
    "hue": Hue,
    "blur": Blur,
    "rotation": Rotation,
    "translation": Translation,
    "scaling": Zoom,
}

#: Sizes from which on a change leaves nothing of an image, or costs more shifts than bounds are worth.
_MOST = {
    "rotation": Fraction(45),
    "blur": Fraction(1),
    "scaling": Fraction(1, 2),
    "contrast": Fraction(1),
    "gamma": Fraction(3, 4),
    "hue": Fraction(180),
    "translation": Fraction(8),
}

_DEGREES = ("degrees", "deg")
_UNITS = {"rotation": _DEGREES, "hue": _DEGREES, "translation": ("pixels", "px"), "patch": ("pixels", "px")}

#: Anything in a square of so many pixels, wherever it is; of one pixel.
PATCHES = ("patch", "l0")


class Changed(nn.Module):
    """A network behind a change of its image: the input is (theta, image), flattened and joined."""

    def __init__(self, transform: Transform, network: nn.Module, shape: torch.Size) -> None:
        super().__init__()
        self.transform, self.network = transform, network
        self.shape = tuple(shape)

    def image(self, point: Tensor) -> Tensor:
        """Return the changed images (B, C, H, W) that points (B, p + C H W) stand for."""
        count = self.transform.parameters_count
        changed: Tensor = self.transform(point[:, :count], point[:, count:].reshape(-1, *self.shape))
        return changed

    def forward(self, point: Tensor) -> Tensor:
        answer: Tensor = self.network(self.image(point))
        return answer


@dataclass(frozen=True)
class Threat:
    """What an attacker may do, and how much of it; ``sb.threat`` reads one from its name.

    ``against(net, images)`` returns the network and the region to ask about. For balls that is the network itself; for
    the others the change stands in front of the network, and the region is theta in [-size, size] and the image as it
    is: few inputs vary, so that branch and bound splits them and decides.
    """

    name: str
    size: Fraction

    def __str__(self) -> str:
        return f"{self.name}:{self.size}"

    @property
    def rounded(self) -> str:
        """Return its name for people: the size in decimals, to six digits, and its unit."""
        return f"{self.name}:{float(self.size):.6g}{_UNITS.get(self.name, ('',))[-1]}"

    def at(self, size: Fraction) -> Threat:
        """Return the same threat at another size."""
        return replace(self, size=size)

    @property
    def in_pixels(self) -> bool:
        """Is it a ball around the image itself?"""
        return self.name in BALLS or self._anywhere

    @property
    def _anywhere(self) -> bool:
        """Is it of several pixels at once, whose places are too many to be asked one by one?"""
        return self.name == "l0" and self.size > 1

    def each(self, images: Tensor) -> int:
        """Return how many examples stand for one of the images (B, C, H, W): as many as a patch has places, else 1."""
        if self.name not in PATCHES or self._anywhere:
            return 1
        return math.prod(int(n) - int(self.size) + 1 for n in images.shape[-2:])

    def against(
        self, model: nn.Module, images: Tensor, clip: tuple[float, float] | None = None
    ) -> tuple[nn.Module, LinfBall | NormBall]:
        """Return the network and the region that stand for the threat to images (B, C, H, W).

        Of a patch the region has an example for each of its places, ``each(images)`` in a row for every image: an image
        is robust if all of them are.
        """
        if self._anywhere:
            return model, L0Ball(images, self.size, clip or (0.0, 1.0))
        if self.name in BALLS:
            return model, BALLS[self.name](images, self.size, clip)
        LinfBall(images, 0, clip)  # refuses what are no images of that range
        if images.dim() != 4:
            raise InputError(f"{self} changes images (B, C, H, W); the inputs have shape {tuple(images.shape)}")
        if self.name in PATCHES:
            points, radius, scale = patch_points(images, int(self.size), clip)
            patched = Patched(model, images.shape[1:], int(self.size), clip or (0.0, 1.0))
            patched.training = model.training  # not ``train``, as in _in_front
            return patched, LinfBall(points, radius, None, scale)
        transform = TRANSFORMS[self.name](images.shape[1:], float(self.size), clip).to(images)
        scale = torch.zeros(1, transform.parameters_count + images[0].numel(), dtype=torch.float64)
        scale[:, : transform.parameters_count] = 1
        return _in_front(transform, model, images, self.size, scale)


@dataclass(frozen=True)
class Combination(Threat):
    """Several threats one after the other; ``size`` is their common unit, of which each takes whole multiples."""

    parts: tuple[Threat, ...] = ()

    def __str__(self) -> str:
        return "+".join(str(part) for part in self.parts)

    @property
    def rounded(self) -> str:
        return "+".join(part.rounded for part in self.parts)

    def at(self, size: Fraction) -> Combination:
        """Return the same changes at another size of their unit: all of them shrink or grow together."""
        return replace(self, size=size, parts=tuple(part.at(size * self._multiple(part)) for part in self.parts))

    @property
    def in_pixels(self) -> bool:
        """It is no ball, even if one is part of it."""
        return False

    @classmethod
    def of(cls, parts: Sequence[Threat]) -> Combination:
        """Combine changes of images, and a ball that comes first."""
        for place, part in enumerate(parts):
            if part.name not in TRANSFORMS and not (part.name == "linf" and place == 0):
                raise InputError(
                    f"{part} cannot be combined there: changes of images can ({', '.join(TRANSFORMS)}), and linf as "
                    "the first of them"
                )
        common = math.lcm(*(part.size.denominator for part in parts))
        sizes = [int(part.size * common) for part in parts]
        unit = math.gcd(*sizes)
        if any(int(float(size // (unit or 1))) != size // (unit or 1) for size in sizes):
            raise InputError("the sizes have no common unit that is exact; give them fewer digits")
        return cls("combination", Fraction(unit, common), tuple(parts))

    def against(
        self, model: nn.Module, images: Tensor, clip: tuple[float, float] | None = None
    ) -> tuple[nn.Module, LinfBall]:
        """Return the network behind all changes, and the region of all their parameters."""
        LinfBall(images, 0, clip)  # refuses what are no images of that range
        if images.dim() != 4:
            raise InputError(f"{self} changes images (B, C, H, W); the inputs have shape {tuple(images.shape)}")
        changes: list[Transform] = []
        numbers: list[int] = []
        for part in self.parts:
            kind = TRANSFORMS.get(part.name, Clipping)
            changes.append(kind(images.shape[1:], float(part.size), clip))
            numbers += [self._multiple(part)] * changes[-1].parameters_count
        pixels = [self._multiple(part) for part in self.parts if part.name == "linf"]
        scale = torch.full((1, len(numbers) + images[0].numel()), float(sum(pixels)), dtype=torch.float64)
        scale[0, : len(numbers)] = torch.tensor(numbers, dtype=torch.float64)
        return _in_front(Successive(changes).to(images), model, images, self.size, scale)

    def _multiple(self, part: Threat) -> int:
        return int(part.size / self.size) if self.size else 1


def _in_front(
    transform: Transform, model: nn.Module, images: Tensor, size: Fraction, scale: Tensor
) -> tuple[Changed, LinfBall]:
    """Return a network behind a change, and the ball of parameters and images with these radii per coordinate."""
    points = torch.cat([images.new_zeros(len(images), transform.parameters_count), images.flatten(1)], 1)
    network = Changed(transform.train(model.training), model, images.shape[1:])
    network.training = model.training  # not ``train``, which would switch parts of the model that are set apart
    return network, LinfBall(points, size, None, scale.to(images.device))


def threat(given: str) -> Threat:
    """Read a threat: NAME:SIZE, for example "brightness:0.1", "rotation:5deg", "patch:3", "l2:1/2"; A+B for both.

    >>> threat("rotation:5deg")
    Threat(name='rotation', size=Fraction(5, 1))
    >>> network, region = threat("brightness:1/10").against(nn.Flatten(), torch.rand(2, 1, 4, 4), clip=(0, 1))
    >>> region
    LinfBall((2, 17) torch.float32, eps=1/10, clip=None, scale of (1, 17))
    """
    if "+" in given:
        return Combination.of([threat(part.strip()) for part in given.split("+")])
    name, _, size = given.partition(":")
    known = (*BALLS, *TRANSFORMS, *PATCHES)
    if name not in known:
        raise InputError(f"the threat {given!r} is not known{nearest(name, known)} Give NAME:SIZE, one of {_names()}")
    for unit in _UNITS.get(name, ()):
        size = size.removesuffix(unit)
    if not size:
        raise InputError(f"the threat {given!r} has no size; give NAME:SIZE, one of {_names()}")
    found = exact_fraction(size, f"the size of {name}")
    if found < 0:
        raise InputError(f"the threat {given!r} has a negative size; give 0 or more")
    if name in PATCHES and (found < 1 or found.denominator != 1):
        raise InputError(f"the threat {given!r} is of whole pixels; give {name}:1 or more")
    most = _MOST.get(name)
    if most is not None and found > most:
        raise InputError(f"the threat {given!r} is larger than {name}:{most}, the most that is bounded usefully")
    return Threat(name, found)


def _names() -> str:
    return (
        "linf:8/255, l2:0.5, l1:1, l0:1, patch:3 (pixels), brightness:0.1, contrast:0.2, gamma:0.2, hue:20deg, "
        "blur:0.5, rotation:5deg, translation:2 (pixels), scaling:0.1, or several changes: rotation:5deg+brightness:0.1"
    )

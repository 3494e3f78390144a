"""Threats by name: what an attacker may do to an image, as a network and a region of its inputs."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor, nn

from surebound.errors import InputError, nearest
from surebound.norm_ball import L1Ball, L2Ball
from surebound.numerics import exact_fraction
from surebound.region import LinfBall
from surebound.threats.transforms import Blur, Brightness, Contrast, Rotation, Transform, Translation, Zoom

#: Balls in pixel space.
BALLS: dict[str, type[LinfBall] | type[L2Ball] | type[L1Ball]] = {"linf": LinfBall, "l2": L2Ball, "l1": L1Ball}

#: Changes by one or two parameters.
TRANSFORMS: dict[str, type[Transform]] = {
    "brightness": Brightness,
    "contrast": Contrast,
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
    "translation": Fraction(8),
}

_UNITS = {"rotation": ("degrees", "deg"), "translation": ("pixels", "px")}


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
    def in_pixels(self) -> bool:
        """Is it a ball around the image itself?"""
        return self.name in BALLS

    def against(
        self, model: nn.Module, images: Tensor, clip: tuple[float, float] | None = None
    ) -> tuple[nn.Module, LinfBall | L2Ball | L1Ball]:
        """Return the network and the region that stand for the threat to images (B, C, H, W)."""
        if self.name in BALLS:
            return model, BALLS[self.name](images, self.size, clip)
        LinfBall(images, 0, clip)  # refuses what are no images of that range
        if images.dim() != 4:
            raise InputError(f"{self} changes images (B, C, H, W); the inputs have shape {tuple(images.shape)}")
        transform = TRANSFORMS[self.name](images.shape[1:], float(self.size), clip).to(images)
        count = transform.parameters_count
        points = torch.cat([images.new_zeros(len(images), count), images.flatten(1)], 1)
        scale = torch.zeros(1, points.shape[1], dtype=torch.float64, device=images.device)
        scale[:, :count] = 1
        network = Changed(transform.train(model.training), model, images.shape[1:])
        network.training = model.training  # not ``train``, which would switch parts of the model that are set apart
        return network, LinfBall(points, self.size, None, scale)


def threat(given: str) -> Threat:
    """Read a threat: NAME:SIZE, for example "brightness:0.1", "rotation:5deg", "translation:2", "l2:1/2".

    >>> threat("rotation:5deg")
    Threat(name='rotation', size=Fraction(5, 1))
    >>> network, region = threat("brightness:1/10").against(nn.Flatten(), torch.rand(2, 1, 4, 4), clip=(0, 1))
    >>> region
    LinfBall((2, 17) torch.float32, eps=1/10, clip=None, scale of (1, 17))
    """
    name, _, size = given.partition(":")
    known = (*BALLS, *TRANSFORMS)
    if name not in known:
        raise InputError(f"the threat {given!r} is not known{nearest(name, known)} Give NAME:SIZE, one of {_names()}")
    for unit in _UNITS.get(name, ()):
        size = size.removesuffix(unit)
    if not size:
        raise InputError(f"the threat {given!r} has no size; give NAME:SIZE, one of {_names()}")
    found = exact_fraction(size, f"the size of {name}")
    if found < 0:
        raise InputError(f"the threat {given!r} has a negative size; give 0 or more")
    most = _MOST.get(name)
    if most is not None and found > most:
        raise InputError(f"the threat {given!r} is larger than {name}:{most}, the most that is bounded usefully")
    return Threat(name, found)


def _names() -> str:
    return (
        "linf:8/255, l2:0.5, l1:1, brightness:0.1, contrast:0.2, blur:0.5, rotation:5deg, translation:2 (pixels), "
        "scaling:0.1"
    )

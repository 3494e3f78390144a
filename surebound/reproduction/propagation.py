"""The numbers of the diagram of interval bound propagation: samples and boxes, layer by layer, of a real network."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

from surebound.bounds import interval_bounds, worst_margins
from surebound.errors import InputError
from surebound.experiment.target import Target
from surebound.region import LinfBall


def layers(target: Target, eps: Fraction, *, label: int = 9, samples: int = 4000, seed: int = 0) -> dict[str, Any]:
    """One test image of class `label`: at every layer, two units, the image of random points, and their box."""
    model = target.model
    if not isinstance(model, nn.Sequential):
        raise InputError(f"the diagram cuts a network between its layers; {target.name} is no nn.Sequential")
    image, labels, index = _image(target, label)
    label = int(labels)
    points = _ball(image, float(eps), samples, seed)
    frames = []
    for depth, name in _depths(model):
        part = nn.Sequential(*list(model)[:depth]).eval()
        frames.append({"name": name, **_frame(part, image, points, eps)})
    with torch.no_grad():
        margins = worst_margins(model, LinfBall(image, eps, (0, 1)), labels)[0]
        logits, reached = model(image)[0], model(points)
        rivals = margins.clone()
        rivals[label] = -float("inf")
        rival = int(rivals.argmax())
        box = interval_bounds(model, LinfBall(image, eps, (0, 1)))
    return {
        "network": target.name,
        "eps": str(eps),
        "index": index,
        "label": label,
        "rival": rival,
        "image": image[0].tolist(),
        "layers": frames,
        "outputs": reached[:, [label, rival]].tolist(),
        "nominal": logits[[label, rival]].tolist(),
        "lower": box.lower[0, [label, rival]].tolist(),
        "upper": box.upper[0, [label, rival]].tolist(),
        "bound": float(margins[rival]),  # with elision
        "bound_without_elision": float(box.upper[0, rival] - box.lower[0, label]),
        "sampled": float((reached[:, rival] - reached[:, label]).max()),
    }


def _image(target: Target, label: int) -> tuple[Tensor, Tensor, int]:
    """The first test image of a class (else of any) that is right: (1, C, H, W), its label (1,) and its index."""
    test = target.test()
    wanted = (test.labels == label).nonzero().squeeze(1).tolist()
    for index in [*wanted, *range(min(len(test), 200))]:
        image, labels = test.batch(torch.tensor([index]))
        with torch.no_grad():
            if bool(target.model(image).argmax(1) == labels):
                return image, labels, index
    raise InputError(f"{target.name} classifies none of the first test images correctly; train it for longer")


def _ball(image: Tensor, eps: float, samples: int, seed: int) -> Tensor:
    """Points of the ball (N, C, H, W): uniform ones, corners, and mixtures of two directions, which reach further."""
    generator = torch.Generator().manual_seed(seed)
    shape = (samples // 2, *image.shape[1:])
    uniform = 2 * torch.rand(shape, generator=generator) - 1
    corners = torch.randint(2, shape, generator=generator).float() * 2 - 1
    return (image + eps * torch.cat([uniform, corners])).clamp(0, 1)


def _depths(model: nn.Sequential) -> list[tuple[int, str]]:
    """After every activation: how many layers that is, and a name."""
    activations = [i for i, layer in enumerate(model) if isinstance(layer, nn.ReLU)]
    return [(0, "input"), *((i + 1, f"layer {n}") for n, i in enumerate(activations, 1))]


def _frame(part: nn.Module, image: Tensor, points: Tensor, eps: Fraction) -> dict[str, Any]:
    """Two units of a layer whose sampled values vary most."""
    with torch.no_grad():
        values = part(points).flatten(1)  # (N, U)
        box = interval_bounds(part, LinfBall(image, eps, (0, 1)))
        centre = part(image).flatten(1)[0]
    units = values.std(0).topk(min(2, values.shape[1])).indices
    if len(units) < 2:
        units = units.repeat(2)
    lower, upper = box.lower.flatten(1)[0], box.upper.flatten(1)[0]
    return {
        "units": units.tolist(),
        "values": [[round(v, 5) for v in row] for row in values[:, units].tolist()],
        "nominal": centre[units].tolist(),
        "lower": lower[units].tolist(),
        "upper": upper[units].tolist(),
        "width": float((upper - lower).mean()),
        "sampled_width": float((values.amax(0) - values.amin(0)).mean()),
        "count": int(values.shape[1]),
    }

"""Is the program that was bounded the network that runs? Compared on the very region, before a verdict leaves."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from surebound.attack.box import InnerBox
from surebound.attack.derivative import derivative
from surebound.bounds.agreement import difference
from surebound.errors import TraceMismatchError
from surebound.flags import exact_kernels
from surebound.graph import Program, forward
from surebound.graph.fit import evaluating, in_batches
from surebound.region import Region, project

#: Examples of a batch that are tried at most; each at one point, or at every kind of point if they are few.
TRIED = 48


def check_agreement(program: Program, model: nn.Module, region: Region, seed: int = 0) -> None:
    """Raise TraceMismatchError unless the module's outputs lie within the program's bounds at points of the region.

    The points: the centre, a random point, and the corner where, to first order, the largest output loses most.
    """
    with evaluating(model), exact_kernels():
        x = _points(program, InnerBox.of(region[:TRIED]), seed)
        size = program.graph.input_shape[0] or len(region)
        with torch.no_grad():
            expected = in_batches(lambda part: forward(model, part.clone()), x, size)
        apart = difference(program, x, expected)
    if apart is not None:
        raise TraceMismatchError(
            f"the network differs by {apart:.3g} from the program that was bounded, at a point of the region, which is "
            "more than rounding explains: nothing is proved. Does forward() read something that changes? "
            "Call surebound.forget(model) after such a change."
        )


def _points(program: Program, box: InnerBox, seed: int) -> Tensor:
    """Choose points (N, ...) of a box (B, ...): one for each example, or all three kinds for each of a few."""
    draw = torch.Generator().manual_seed(seed)
    share = torch.rand(box.lower.shape, generator=draw).to(box.lower)
    anywhere = project(box.lower + share * (box.upper - box.lower), box.lower, box.upper)
    kinds = torch.stack([box.reference, anywhere, _corners(program, box)])  # (3, B, ...)
    if len(box) < len(kinds):
        return kinds.flatten(0, 1)
    return kinds[torch.arange(len(box)) % len(kinds), torch.arange(len(box))]


def _corners(program: Program, box: InnerBox) -> Tensor:
    """Return the corners (B, ...) where, to first order, the largest output loses most to the smallest."""
    size = program.graph.input_shape[0] or len(box)
    with torch.enable_grad():
        x = box.reference.detach().requires_grad_(True)
        outputs = in_batches(program, x, size)
        total = outputs.amax(1).sum() - outputs.amin(1).sum()
        gradient = derivative(total, x)
    return torch.where(gradient > 0, box.lower, box.upper)

"""Is an imported network the file's network? Its bounds at single points must contain what onnxruntime computes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from surebound.bounds.interval import propagate
from surebound.errors import TraceMismatchError
from surebound.graph import ImportedNetwork
from surebound.graph.onnx.file import Model
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.vnnlib.runtime import Session

#: Random inputs that every import is tried on.
TRIALS = 4


def check_import(network: ImportedNetwork, model: Model, box: Interval | None = None) -> None:
    """Refuse a network of one input and output unless onnxruntime agrees with it on random inputs.

    The measure is ours for rounding: over one point, bounds that are sound for every float32 execution leave room for
    any order of summation and for nothing else. ``box`` (1, *input): where inputs are drawn from; [0, 1] if not given.
    """
    session, declared = Session(model), model.inputs[0]
    for x in samples(network.graph.input_shape[1:], box):
        fed = {declared.name: x.numpy().reshape(declared.shape)}
        expected = torch.from_numpy(session.run(fed)[model.outputs[0][0]].reshape(1, -1).copy())
        compare(network, x, expected, model.source)


def samples(shape: tuple[int | None, ...], box: Interval | None) -> list[Tensor]:
    """Inputs (1, *shape) to try: random ones, the same every time."""
    generator = torch.Generator().manual_seed(0)
    sizes = [int(n or 1) for n in shape]
    made = []
    for _ in range(TRIALS):
        share = torch.rand((1, *sizes), generator=generator)
        if box is not None:
            share = torch.minimum(
                torch.maximum(box.lower + share * (box.upper - box.lower), box.lower), box.upper
            )
        made.append(share)
    return made


def compare(network: ImportedNetwork, x: Tensor, expected: Tensor, source: str) -> None:
    """Raise unless the bounds of the network at x (1, *input) contain ``expected`` (1, K)."""
    with torch.no_grad():
        bounds = propagate(network.program, Interval.point(x), Soundness.DEPLOYED)
        ours = network(x)
    if expected.shape != bounds.shape:
        raise TraceMismatchError(
            f"{source}: the imported network returns {bounds.shape[1]} numbers, onnxruntime {expected.shape[1]}"
        )
    inside = bounds.contains(expected) & bounds.contains(ours) & expected.isfinite()
    if not bool(inside.all()):
        worst = float((expected - ours).abs().nan_to_num(np.inf).max())
        raise TraceMismatchError(
            f"{source}: the imported network differs from onnxruntime by {worst:.3g} on a random input, which is "
            "more than rounding explains; it is refused"
        )

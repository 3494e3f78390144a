"""Is an imported network the file's network? Its bounds at single points must contain what onnxruntime computes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from surebound.bounds.agreement import difference
from surebound.errors import BoundError, TraceMismatchError
from surebound.graph import ImportedNetwork
from surebound.graph.onnx.file import Model
from surebound.graph.onnx.importer import imported
from surebound.interval import Interval
from surebound.region import project
from surebound.vnnlib.effort import heavy_network
from surebound.vnnlib.operators import check_operators
from surebound.vnnlib.runtime import Array, Session

#: Random inputs that every import is tried on.
TRIALS = 4

#: What outputs may differ by, relatively, where no bounds exist at all.
COARSE = 0.01  # heuristic: no proof rests on it, and witnesses are judged by both evaluations


def checked_network(model: Model) -> ImportedNetwork:
    """Import a file's network with one input and output; it and each operator are as onnxruntime has them."""
    env, network = imported(model)
    check_operators(env)
    check_import(network, model)
    return network.eval()


def check_import(network: ImportedNetwork, model: Model, box: Interval | None = None) -> None:
    """Refuse a network of one input and output unless onnxruntime agrees with it on random inputs and corners.

    The measure is that of ``bounds.agreement``. ``box`` (1, *input): where inputs are drawn from; [0, 1] if not given.
    """
    session, declared = Session(model), model.inputs[0]
    x = samples(network.graph.input_shape[1:], box, heavy_network(network.program))
    runs = [session.run({declared.name: each.numpy().reshape(declared.shape)}) for each in x]
    compare(network, torch.cat(x), [run[model.outputs[0][0]] for run in runs], model.source)


def samples(shape: tuple[int | None, ...], box: Interval | None, heavy: bool = False) -> list[Tensor]:
    """Inputs (1, *shape) to try: random ones of the box, its centre and some of its corners; the same every time.

    heavy: fewer, for a network that takes long; each of its operators has been tried by itself.
    """
    draw = torch.Generator().manual_seed(0)
    sizes = [int(n or 1) for n in shape]
    corner = torch.rand(1, *sizes, generator=draw).round()
    ends = torch.stack([torch.full(sizes, share) for share in (0.0, 0.5, 1.0)])
    shares = torch.cat([torch.rand(TRIALS, *sizes, generator=draw), corner, ends])
    if heavy:
        shares = shares[[TRIALS - 1, TRIALS, TRIALS + 2]]
    if box is not None:
        shares = project(box.lower + shares * (box.upper - box.lower), box.lower, box.upper)
    return list(torch.split(shares, 1))


def compare(network: ImportedNetwork, x: Tensor, expected: Sequence[Array], source: str) -> None:
    """Raise unless the bounds of the network at x (N, *input) contain what onnxruntime computed: N arrays (K,)."""
    theirs = torch.from_numpy(np.stack([each.reshape(-1) for each in expected]).astype(np.float32))
    try:
        worst = difference(network.program, x, theirs)
    except BoundError:  # no bounds even of single points, so nothing will be proved: only points are to be judged
        with torch.no_grad():
            apart = float((network(x) - theirs).abs().max())
        worst = None if apart <= COARSE * (1 + float(theirs.abs().max())) else apart
    if worst is not None:
        raise TraceMismatchError(
            f"{source}: the imported network differs from onnxruntime by {worst:.3g} on some input, which is "
            "more than rounding explains; it is refused"
        )


def points_around(example: Tensor) -> list[Tensor]:
    """Inputs to try an exported network on: an example (1, ...), random ones of both signs, and larger ones."""
    draw = torch.Generator().manual_seed(0)
    noise = [torch.randn(example.shape, generator=draw) for _ in range(3)]
    return [example, torch.rand(example.shape, generator=draw), noise[0], 4 * noise[1], example + noise[2]]

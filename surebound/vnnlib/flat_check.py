"""The network file of certificates against an ONNX file: onnxruntime's outputs must lie in the checker's bounds."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from surebound.certificates.points import point_bounds
from surebound.errors import GraphError
from surebound.graph.onnx.file import Model
from surebound.vnnlib.runtime import Session

#: Random points beside those that are given.
POINTS = 8


def compare_network(network: bytes, model: Model, points: Iterable[NDArray[np.float32]] = ()) -> int:
    """Compare the network of certificates with an ONNX file at points and at random; GraphError if they differ.

    Of every output, what onnxruntime computes must lie within the checker's bounds of any float32 execution there.
    Returns how many points were compared.
    """
    if len(model.inputs) != 1 or len(model.outputs) != 1:
        raise GraphError(f"{model.source} has {len(model.inputs)} inputs; networks of certificates have one")
    session, (given,) = Session(model), model.inputs
    shape = [int(n) if isinstance(n, int) and n > 0 else 1 for n in given.shape]
    rng, chosen = np.random.default_rng(0), [np.asarray(x, np.float32).reshape(-1) for x in points]
    size = math.prod(shape)
    chosen += [rng.random(size, dtype=np.float32) for _ in range(POINTS)]
    for x in chosen:
        if x.size != size:
            raise GraphError(f"{model.source} takes {size} numbers, the network of the certificates {x.size}")
        low, high = (ends[0] for ends in point_bounds(network, x[None]))
        (z,) = session.run({given.name: x.reshape(shape)}).values()
        z = z.reshape(-1).astype(np.float64)
        if z.shape != low.shape or not bool(((low <= z) & (z <= high)).all()):
            raise GraphError(f"{model.source} is not the network of the certificates: at one point they differ")
    return len(chosen)

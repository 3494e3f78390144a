"""onnxruntime as the second opinion: imports are checked against it, witnesses are re-run in it.

All of its rewritings of the network are switched off: what runs is the file's own calls, in float32.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surebound.errors import GraphError, MissingExtraError, first_line
from surebound.graph.onnx.file import Model

Array = NDArray[np.float32]


class Session:
    """A model in onnxruntime; ``also`` names inner tensors that shall be returned beside the outputs."""

    def __init__(self, model: Model, also: Sequence[str] = ()) -> None:
        try:
            ort = importlib.import_module("onnxruntime")
        except ImportError:
            raise MissingExtraError("onnxruntime", "onnx", "checking an imported network") from None
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        self.names = [*(name for name, _ in model.outputs), *also]
        try:
            self._session = ort.InferenceSession(
                _with_outputs(model, also), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime raises a dozen classes of its own
            raise GraphError(f"{model.source}: onnxruntime refuses it: {first_line(error)}") from error
        self._model = model

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs and the inner tensors, by name, for inputs in the shapes that the file declares."""
        try:
            found = self._session.run(self.names, dict(inputs))
        except Exception as error:
            raise GraphError(f"{self._model.source}: onnxruntime fails on it: {first_line(error)}") from error
        return {name: np.asarray(value) for name, value in zip(self.names, found, strict=True)}


def _with_outputs(model: Model, also: Sequence[str]) -> bytes:
    if not also:
        return model.content
    helper: Any = importlib.import_module("onnx.helper")
    proto = type(model.proto)()
    proto.CopyFrom(model.proto)
    declared = {each.name for each in proto.graph.output}
    for name in also:
        if name not in declared:
            proto.graph.output.append(helper.make_empty_tensor_value_info(name))
    content: bytes = proto.SerializeToString()
    return content

"""Hand-made models, one or more per operator: what is imported must be what onnxruntime computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

rng = np.random.default_rng(0)


def weight(*shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def positive(*shape: int) -> np.ndarray:
    return rng.uniform(0.5, 2, size=shape).astype(np.float32)


def whole(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@dataclass(frozen=True)
class Case:
    """A model of one input ``x``: calls as (operator, inputs, outputs, attributes), constants by name."""

    name: str
    shape: tuple[int | str, ...]
    calls: tuple[tuple[str, Sequence[str], Sequence[str], dict[str, Any]], ...]
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    opset: int = 13

    def model(self) -> bytes:
        return make_model(self.calls, self.constants, {"x": self.shape}, [self.calls[-1][2][0]], self.opset)


def make_model(
    calls: Sequence[tuple[str, Sequence[str], Sequence[str], dict[str, Any]]],
    constants: dict[str, np.ndarray],
    inputs: dict[str, Sequence[int | str]],
    outputs: Sequence[str],
    opset: int = 13,
    kind: int = TensorProto.FLOAT,
) -> bytes:
    graph = helper.make_graph(
        [helper.make_node(op, list(i), list(o), **a) for op, i, o, a in calls],
        "g",
        [helper.make_tensor_value_info(name, kind, list(shape)) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, kind, None) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    made = onnx.shape_inference.infer_shapes(made, data_prop=True)
    for each in made.graph.output:
        if not each.type.tensor_type.HasField("shape"):  # computed by the model itself: two axes of any size
            each.CopyFrom(helper.make_tensor_value_info(each.name, kind, [None, None]))
    content: bytes = made.SerializeToString()
    return content


def one(
    op: str, shape: Sequence[int], *constants: np.ndarray | None, name: str = "", opset: int = 13, **kw: Any
) -> Case:
    """One call on x and constants."""
    named = {f"c{i}": c for i, c in enumerate(constants) if c is not None}
    inputs = ["x", *(f"c{i}" if c is not None else "" for i, c in enumerate(constants))]
    return Case(name or op, tuple(shape), ((op, inputs, ["y"], kw),), named, opset)


CASES = [
    *[
        one(op, (1, 6))
        for op in (
            "Relu",
            "Sigmoid",
            "Tanh",
            "Exp",
            "Abs",
            "Neg",
            "Erf",
            "Sin",
            "Cos",
            "Atan",
            "Softplus",
            "Identity",
            "Softsign",
            "Sinh",
            "Cosh",
            "Asinh",
            "Sign",
        )
    ],
    *[one(op, (2, 3)) for op in ("Relu", "Sqrt")],
    Case("Log", (1, 4), (("Add", ["x", "one"], ["h"], {}), ("Log", ["h"], ["y"], {})), {"one": positive(1)}),
    Case(
        "Reciprocal",
        (1, 4),
        (("Add", ["x", "one"], ["h"], {}), ("Reciprocal", ["h"], ["y"], {})),
        {"one": positive(4)},
    ),
    one("HardSwish", (1, 6), opset=14),
    one("Mish", (1, 6), opset=18),
    one("Gelu", (1, 6), opset=20),
    one("Swish", (1, 6), opset=24),
    one("LeakyRelu", (1, 6), alpha=0.2),
    one("PRelu", (1, 3, 4, 4), positive(3, 1, 1)),
    one("PRelu", (1, 6), positive(1), name="PRelu scalar"),
    one("Elu", (1, 6), alpha=0.7),
    one("Celu", (1, 6), alpha=0.7),
    one("Selu", (1, 6)),
    one("HardSigmoid", (1, 6)),
    one("ThresholdedRelu", (1, 6), alpha=0.5, opset=10),
    one("Softmax", (1, 2, 3), axis=1),
    one("Softmax", (1, 2, 3), axis=1, opset=11, name="Softmax flattening"),
    one("LogSoftmax", (1, 5)),
    one("Add", (1, 3, 4, 4), weight(1, 3, 1, 1)),
    one("Add", (5,), weight(5), name="Add without batch axis"),
    one("Add", (1, 5), weight(3, 5), name="Add growing"),
    one("Sub", (1, 5), weight(5)),
    one("Mul", (1, 5), weight(1)),
    one("Div", (1, 5), weight(5)),
    *[
        Case(f"{op} from a constant", (1, 5), ((op, ["c", "x"], ["y"], {}),), {"c": positive(5)})
        for op in ("Add", "Sub", "Mul")
    ],
    Case(
        "Div of a constant",
        (1, 4),
        (("Add", ["x", "one"], ["h"], {}), ("Div", ["c", "h"], ["y"], {})),
        {"one": positive(1), "c": weight(4)},
    ),
    *[
        Case(
            f"{op} of branches",
            (1, 4),
            (("Relu", ["x"], ["h"], {}), ("Sigmoid", ["x"], ["g"], {}), (op, ["h", "g"], ["y"], {})),
        )
        for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean")
    ],
    one("Max", (1, 4), weight(1)),
    one("Max", (1, 4), weight(4), name="Max of vectors"),
    one("Min", (1, 4), weight(1, 4), name="Min of vectors"),
    one("Sum", (1, 4), weight(4)),
    one("Pow", (1, 4), np.array(2.0, np.float32)),
    one("Clip", (1, 4), np.array(0.2, np.float32), np.array(0.8, np.float32)),
    one("Clip", (1, 4), np.array(0.0, np.float32), name="Clip below"),
    one("Clip", (1, 4), None, np.array(0.4, np.float32), name="Clip above"),
    one("Clip", (1, 4), opset=8, min=0.3, max=0.6, name="Clip by attributes"),
    one("Gemm", (1, 6), weight(6, 4), weight(4)),
    one("Gemm", (1, 6), weight(4, 6), weight(1, 4), transB=1, alpha=0.5, beta=2.0, name="Gemm scaled"),
    one("Gemm", (3, 6), weight(6, 4), weight(4), name="Gemm of a matrix"),
    one("Gemm", (6, 1), weight(6, 4), transA=1, name="Gemm transposed"),
    Case(
        "Gemm from the left",
        (3, 2),
        (("Gemm", ["w", "x", "b"], ["y"], {}),),
        {"w": weight(4, 3), "b": weight(1)},
    ),
    one("MatMul", (1, 6), weight(6, 4)),
    one("MatMul", (6,), weight(6, 4), name="MatMul of a vector"),
    one("MatMul", (1, 3, 6), weight(6, 4), name="MatMul deep"),
    Case("MatMul from the left", (6, 3), (("MatMul", ["w", "x"], ["y"], {}),), {"w": weight(4, 6)}),
    Case("MatMul of a vector from the left", (6,), (("MatMul", ["w", "x"], ["y"], {}),), {"w": weight(4, 6)}),
    Case(
        "MatMul of branches",
        (1, 2, 3),
        (
            ("Relu", ["x"], ["h"], {}),
            ("Transpose", ["x"], ["t"], {"perm": [0, 2, 1]}),
            ("MatMul", ["h", "t"], ["y"], {}),
        ),
    ),
    one("Conv", (1, 3, 8, 8), weight(4, 3, 3, 3), weight(4), pads=[1, 1, 1, 1], strides=[2, 2]),
    one(
        "Conv",
        (1, 3, 8, 8),
        weight(4, 3, 3, 3),
        pads=[0, 0, 1, 1],
        strides=[2, 2],
        name="Conv padded unevenly",
    ),
    one(
        "Conv",
        (1, 3, 7, 7),
        weight(4, 3, 3, 3),
        auto_pad="SAME_UPPER",
        strides=[2, 2],
        name="Conv same upper",
    ),
    one("Conv", (1, 3, 8, 8), weight(4, 3, 4, 4), auto_pad="SAME_LOWER", name="Conv same lower"),
    one(
        "Conv",
        (1, 4, 8, 8),
        weight(4, 2, 3, 3),
        weight(4),
        group=2,
        dilations=[2, 2],
        name="Conv grouped, dilated",
    ),
    one("Conv", (1, 3, 8), weight(4, 3, 3), weight(4), name="Conv 1d"),
    one("Conv", (1, 2, 4, 4, 4), weight(3, 2, 2, 2, 2), weight(3), name="Conv 3d"),
    one(
        "ConvTranspose",
        (1, 3, 4, 4),
        weight(3, 2, 3, 3),
        weight(2),
        strides=[2, 2],
        pads=[1, 1, 1, 1],
        output_padding=[1, 1],
    ),
    one(
        "ConvTranspose",
        (1, 3, 4, 4),
        weight(3, 2, 3, 3),
        pads=[0, 0, 1, 1],
        name="ConvTranspose padded unevenly",
    ),
    one("BatchNormalization", (1, 3, 4, 4), weight(3), weight(3), weight(3), positive(3)),
    one(
        "BatchNormalization",
        (1, 5),
        weight(5),
        weight(5),
        weight(5),
        positive(5),
        opset=9,
        name="BatchNormalization flat",
    ),
    one("MaxPool", (1, 2, 6, 6), kernel_shape=[2, 2], strides=[2, 2]),
    one("MaxPool", (1, 2, 6, 6), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], name="MaxPool padded"),
    one(
        "MaxPool",
        (1, 2, 6, 6),
        kernel_shape=[3, 3],
        strides=[2, 2],
        pads=[0, 0, 1, 1],
        name="MaxPool padded unevenly",
    ),
    one("MaxPool", (1, 2, 7, 7), kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1, name="MaxPool ceil"),
    one("AveragePool", (1, 2, 6, 6), kernel_shape=[2, 2], strides=[2, 2]),
    one("AveragePool", (1, 2, 6, 6), kernel_shape=[3, 3], pads=[1, 1, 1, 1], name="AveragePool padded"),
    one(
        "AveragePool",
        (1, 2, 6, 6),
        kernel_shape=[3, 3],
        pads=[1, 0, 1, 1],
        count_include_pad=1,
        name="AveragePool counted",
    ),
    one("GlobalAveragePool", (1, 3, 4, 4)),
    one("GlobalMaxPool", (1, 3, 4, 4)),
    one(
        "Resize",
        (1, 2, 3, 3),
        None,
        np.array([1, 1, 2, 3], np.float32),
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    ),
    one("Upsample", (1, 2, 3, 3), np.array([1, 1, 2, 2], np.float32), opset=9),
    Case(
        "Concat",
        (1, 4),
        (("Relu", ["x"], ["h"], {}), ("Concat", ["h", "c", "x"], ["y"], {"axis": 1})),
        {"c": weight(1, 3)},
    ),
    Case("Concat first axis", (2, 4), (("Relu", ["x"], ["h"], {}), ("Concat", ["h", "x"], ["y"], {"axis": 0}))),
    Case(
        "Split",
        (1, 6),
        (
            ("Split", ["x", "s"], ["a", "b"], {"axis": 1}),
            ("Relu", ["b"], ["c"], {}),
            ("Concat", ["c", "a"], ["y"], {"axis": 1}),
        ),
        {"s": whole(2, 4)},
    ),
    Case(
        "Split by attribute",
        (1, 6),
        (("Split", ["x"], ["a", "b"], {"axis": 1, "split": [2, 4]}), ("Relu", ["b"], ["y"], {})),
        opset=11,
    ),
    Case(
        "Split evenly",
        (1, 5),
        (("Split", ["x"], ["a", "b"], {"axis": 1, "num_outputs": 2}), ("Relu", ["b"], ["y"], {})),
        opset=18,
    ),
    one("Slice", (1, 4, 6), whole(1, 0), whole(4, 6), whole(1, 2), whole(1, 2)),
    one("Slice", (1, 6), whole(5), whole(-100), whole(1), whole(-2), name="Slice backwards"),
    one("Slice", (1, 6), opset=8, starts=[2], ends=[1000], axes=[1], name="Slice by attributes"),
    one("Pad", (1, 2, 3, 3), whole(0, 0, 1, 2, 0, 0, 0, 1), np.array(0.5, np.float32)),
    one("Pad", (1, 2, 3, 3), opset=8, pads=[0, 0, 1, 1, 0, 0, 1, 1], value=0.25, name="Pad by attributes"),
    one("Pad", (1, 2, 4, 4), whole(0, 0, 1, 2, 0, 0, 2, 1), mode="reflect", name="Pad reflecting"),
    one("Pad", (1, 2, 4, 4), whole(0, 0, 1, 2, 0, 0, 2, 1), mode="edge", name="Pad repeating"),
    one("Gather", (1, 5), whole(3, 0, 0), axis=1),
    one("Gather", (1, 5, 2), np.array(-1, np.int64), axis=1, name="Gather one"),
    one("Gather", (5,), np.array([[1, 2], [0, 4]], np.int64), name="Gather without batch axis"),
    one("Reshape", (1, 2, 6), whole(0, -1)),
    one("Reshape", (1, 6), whole(6), name="Reshape away the batch axis"),
    one("Flatten", (1, 2, 3, 4)),
    one("Flatten", (1, 2, 3), axis=0, name="Flatten all"),
    one("Squeeze", (1, 1, 4), whole(1)),
    one("Squeeze", (1, 1, 4), opset=11, axes=[0], name="Squeeze by attribute"),
    one("Unsqueeze", (1, 4), whole(1, -1)),
    one("Transpose", (1, 2, 3, 4), perm=[0, 2, 3, 1]),
    one("Transpose", (1, 4, 3), perm=[2, 0, 1], name="Transpose moving the batch axis"),
    one("Expand", (1, 1, 4), whole(3, 4)),
    one("Tile", (1, 4), whole(2, 2)),
    *[
        one(op, (1, 3, 4), axes=[1], keepdims=0, opset=11)
        for op in ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin")
    ],
    one("ReduceMean", (1, 3, 4, 4), axes=[-2, -1], opset=13, name="ReduceMean space"),
    one("ReduceSum", (1, 3, 4), whole(1, 2), opset=13, name="ReduceSum by operand"),
    one("ReduceMean", (1, 3, 4), whole(2), opset=18, name="ReduceMean by operand"),
    Case(
        "Where",
        (1, 4),
        (("Relu", ["x"], ["h"], {}), ("Where", ["m", "h", "c"], ["y"], {})),
        {"m": np.array([True, False, True, True]), "c": weight(4)},
    ),
    one("DepthToSpace", (1, 8, 2, 3), blocksize=2),
    one("DepthToSpace", (1, 8, 2, 3), blocksize=2, mode="CRD", name="DepthToSpace CRD"),
    one("SpaceToDepth", (1, 2, 4, 6), blocksize=2),
    one("Dropout", (1, 4), opset=8, name="Dropout"),
    one("Cast", (1, 4), to=1),
    Case(
        "shape arithmetic",
        (1, 2, 6),
        (
            ("Shape", ["x"], ["s"], {}),
            ("Gather", ["s", "zero"], ["b"], {"axis": 0}),
            ("Unsqueeze", ["b", "axes"], ["bb"], {}),
            ("Concat", ["bb", "rest"], ["new"], {"axis": 0}),
            ("Reshape", ["x", "new"], ["y"], {}),
        ),
        {"zero": np.array(0, np.int64), "axes": whole(0), "rest": whole(-1)},
    ),
    Case(
        "folded constants",
        (1, 4),
        (
            ("Constant", [], ["c"], {"value": numpy_helper.from_array(weight(4, 2))}),
            ("Transpose", ["w"], ["t"], {"perm": [1, 0]}),
            ("Mul", ["t", "half"], ["u"], {}),
            ("MatMul", ["x", "c"], ["h"], {}),
            ("MatMul", ["h", "u"], ["y"], {}),
        ),
        {"w": weight(3, 2), "half": np.array(0.5, np.float32)},
    ),
    Case(
        "a free batch size",
        ("N", 4),
        (("Gemm", ["x", "w"], ["h"], {}), ("Relu", ["h"], ["y"], {})),
        {"w": weight(4, 3)},
    ),
    Case(
        "Size",
        (1, 4),
        (("Size", ["x"], ["s"], {}), ("Cast", ["s"], ["f"], {"to": 1}), ("Div", ["x", "f"], ["y"], {})),
    ),
    Case(
        "ConstantOfShape",
        (1, 3),
        (
            (
                "ConstantOfShape",
                ["n"],
                ["c"],
                {"value": numpy_helper.from_array(np.array([2.0], np.float32))},
            ),
            ("Mul", ["x", "c"], ["y"], {}),
        ),
        {"n": whole(3)},
    ),
    one("Upsample", (1, 2, 3, 3), opset=7, scales=[1.0, 1.0, 2.0, 3.0], name="Upsample by attribute"),
    Case(  # as the oldest files have it
        "VGG",
        (1, 2, 6, 6),
        (
            ("Conv", ["x", "k", "b"], ["c"], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [1, 1]}),
            ("BatchNormalization", ["c", "b", "b", "b", "v"], ["n"], {"epsilon": 1e-5, "momentum": 0.9}),
            ("Relu", ["n"], ["r"], {}),
            ("MaxPool", ["r"], ["m"], {"kernel_shape": [2, 2], "pads": [0, 0, 0, 0], "strides": [2, 2]}),
            ("AveragePool", ["m"], ["a"], {"kernel_shape": [2, 2], "pads": [1, 1, 0, 0], "count_include_pad": 1}),
            ("Add", ["a", "s"], ["p"], {}),
            ("Reshape", ["p", "to"], ["f"], {}),
            ("Dropout", ["f"], ["d"], {"ratio": 0.5}),
            ("Gemm", ["d", "w", "h"], ["y"], {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 1}),
        ),
        {
            "k": weight(3, 2, 3, 3),
            "b": weight(3),
            "v": positive(3),
            "s": weight(3, 1, 1),
            "to": whole(1, 27),
            "w": weight(2, 27),
            "h": weight(2),
        },
        opset=7,
    ),
]

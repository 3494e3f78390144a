"""Hand-made models of operators that compare, count, convert, and read or write at positions."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.vnnlib.onnx_cases import Case, one, positive, weight, whole

FLOAT, INT8, INT32, INT64, BOOL, UINT8 = 1, 3, 6, 7, 9, 2


def cast(name: str, to: int, result: str) -> tuple[str, list[str], list[str], dict[str, Any]]:
    return "Cast", [name], [result], {"to": to}


def compared(op: str, *constants: np.ndarray, shape: tuple[int, ...] = (1, 6), **kw: Any) -> Case:
    """One call on x and a constant whose result is a truth value, as numbers."""
    named = {f"c{i}": each for i, each in enumerate(constants)}
    calls = ((op, ["x", *named], ["h"], kw), cast("h", FLOAT, "y"))
    return Case(f"{op} {shape}", shape, calls, named)


def both(op: str, name: str) -> Case:
    """Truth values of two comparisons of x, joined."""
    calls = (
        ("Greater", ["x", "c"], ["a"], {}), ("Less", ["x", "d"], ["b"], {}), (op, ["a", "b"], ["h"], {}),
        cast("h", FLOAT, "y"),
    )  # fmt: skip
    return Case(name, (1, 6), calls, {"c": weight(6), "d": weight(6)})


def whole8(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(-128, 128, size=shape, dtype=np.int8)


def floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def arg(op: str, shape: tuple[int, ...], axis: int, **kw: Any) -> Case:
    calls = ((op, ["x"], ["h"], {"axis": axis, **kw}), cast("h", FLOAT, "y"))
    return Case(f"{op} {axis} of {shape} {kw}", shape, calls)


_SCALED = (("Mul", ["x", "ten"], ["t"], {}), cast("t", INT64, "n"))  # whole numbers from -9 to 9
_TEN = {"ten": floats(10)}

STEPS = [
    *[one(op, (1, 6)) for op in ("Floor", "Ceil", "Round")],
    *[
        compared(op, weight(6)) for op in ("Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Equal")
    ],
    compared("Greater", floats(0)),
    both("And", "And"), both("Or", "Or"), both("Xor", "Xor"),
    Case("Not", (1, 6), (("Greater", ["x", "c"], ["a"], {}), ("Not", ["a"], ["h"], {}), cast("h", FLOAT, "y")),
         {"c": weight(6)}),
    Case("Where by x", (1, 6), (("Greater", ["x", "c"], ["a"], {}), ("Where", ["a", "x", "d"], ["y"], {})),
         {"c": weight(6), "d": weight(6)}),
    Case("Where of whole numbers", (1, 6),
         (("Greater", ["x", "c"], ["a"], {}), ("Where", ["a", "p", "q"], ["h"], {}), cast("h", FLOAT, "y")),
         {"c": weight(6), "p": whole(1, 2, 3, 4, 5, 6), "q": whole(-3)}),
    *[Case(f"Cast to {to}", (1, 6), (("Mul", ["x", "ten"], ["t"], {}), cast("t", to, "n"), cast("n", FLOAT, "y")), _TEN)
      for to in (INT64, INT32, INT8, BOOL)],
    Case("Cast to uint8", (1, 6), (("Abs", ["x"], ["a"], {}), ("Mul", ["a", "ten"], ["t"], {}), cast("t", UINT8, "n"),
                                   cast("n", FLOAT, "y")), _TEN),
    Case("Cast of whole numbers", (1, 6), (*_SCALED, cast("n", INT32, "i"), cast("i", BOOL, "b"), cast("b", INT64, "j"),
                                           cast("j", FLOAT, "y")), _TEN),
    *[Case(f"{op} of whole numbers", (1, 6), (*_SCALED, (op, ["n", "k"], ["m"], {}), cast("m", FLOAT, "y")),
           {**_TEN, "k": whole(2, 3, -2, 5, 1, 7)}) for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Mod")],
    *[Case(f"{op} of whole numbers compared", (1, 6), (*_SCALED, (op, ["n", "k"], ["b"], {}), cast("b", FLOAT, "y")),
           {**_TEN, "k": whole(2, 3, -2, 5, 1, 0)}) for op in ("Equal", "Greater", "Less")],
    *[Case(f"{op} of a whole number", (1, 6), (*_SCALED, (op, ["n"], ["m"], {}), cast("m", FLOAT, "y")), _TEN)
      for op in ("Abs", "Neg", "Sign")],
    Case("moves of whole numbers", (1, 6),
         (*_SCALED, ("Reshape", ["n", "two"], ["r"], {}), ("Transpose", ["r"], ["t2"], {}),
          ("Concat", ["t2", "k"], ["c"], {"axis": 0}), ("Gather", ["c", "at"], ["g"], {"axis": 0}),
          cast("g", FLOAT, "y")),
         {**_TEN, "two": whole(2, 3), "k": whole(5, 6).reshape(1, 2), "at": whole(3, 0)}),
    Case("ReduceSum of whole numbers", (2, 6),
         (*_SCALED, ("ReduceSum", ["n", "axis"], ["s"], {"keepdims": 0}), cast("s", FLOAT, "y")),
         {**_TEN, "axis": whole(1)}),
    arg("ArgMax", (1, 2), 1), arg("ArgMax", (1, 5), 1, keepdims=0), arg("ArgMax", (1, 3, 2, 4), 1),
    arg("ArgMax", (2, 3, 4), 0), arg("ArgMax", (2, 3, 4), 2, select_last_index=1), arg("ArgMin", (1, 4, 3), 1),
    arg("ArgMin", (1, 2, 3), 1, select_last_index=1), arg("ArgMax", (1, 1, 3), 1),
    Case("OneHot", (1, 4, 3), (("ArgMax", ["x"], ["h"], {"axis": 1}), ("OneHot", ["h", "d", "v"], ["y"], {"axis": -1})),
         {"d": whole(5), "v": floats(-0.5, 2)}),
    Case("OneHot of any number", (1, 6),
         (*_SCALED, ("OneHot", ["n", "d", "v"], ["h"], {"axis": 1}), cast("h", FLOAT, "y")),
         {**_TEN, "d": whole(4), "v": whole(0, 1)}),
    Case("Gather by x", (1, 4), (("ArgMax", ["x"], ["h"], {"axis": 1}), ("Gather", ["w", "h"], ["y"], {})),
         {"w": weight(4, 3)}),
    one("GatherND", (2, 3, 4), np.array([[0, 1], [1, -1]], np.int64)),
    one("GatherElements", (2, 3), np.array([[0, 1], [2, -1]], np.int64), axis=1),
    one("ScatterND", (2, 3), np.array([[0, 1], [1, 0]], np.int64), weight(2)),
    one("ScatterND", (2, 3), np.array([[1]], np.int64), weight(1, 3), name="ScatterND of rows"),
    one("ScatterElements", (2, 3), np.array([[0, 2]], np.int64), weight(1, 2), axis=1),
    one("Scatter", (2, 3), np.array([[0, 2]], np.int64), weight(1, 2), axis=1, opset=10),
    one("Compress", (2, 3), np.array([True, False, True]), axis=1),
    one("Compress", (2, 3), np.array([True, False, True, True]), name="Compress all"),
    one("Trilu", (3, 4), opset=14), one("Trilu", (3, 4), np.array(1, np.int64), upper=0, opset=14, name="Trilu lower"),
    *[one(op, (2, 3, 4), axes=[1])
      for op in ("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp")],
    one("ReduceL1", (2, 3, 4), keepdims=0, name="ReduceL1 of all"),
    one("LpNormalization", (2, 4), axis=1, p=2),
    one("LayerNormalization", (1, 3, 6), positive(6), weight(6), opset=17),
    one("RMSNormalization", (1, 3, 6), positive(6), opset=23),
    one("InstanceNormalization", (1, 3, 6), positive(3), weight(3)),
    one("GroupNormalization", (1, 6, 2, 3), positive(6), weight(6), num_groups=3, opset=21),
    one("GlobalLpPool", (1, 3, 2, 4)),
    one("GlobalLpPool", (1, 3, 5), p=1, name="GlobalLpPool 1"),
    one("LRN", (1, 6, 2, 3), size=3, alpha=0.5, beta=0.5, bias=2.0),
    one("LRN", (1, 5, 2, 2), size=5, alpha=0.9, name="LRN of more neighbours"),
    one("Einsum", (2, 3, 4), weight(4, 5), equation="bij,jk->bik"),
    one("Einsum", (3, 4), weight(4, 3), equation="ij, ji", name="Einsum without an arrow"),
    Case("Einsum of x with itself", (2, 3), (("Einsum", ["x", "x"], ["y"], {"equation": "ij,kj->ik"}),)),
    one("CastLike", (1, 6), weight(1), opset=15),
    one("LSTM", (3, 1, 2), weight(1, 12, 2), weight(1, 12, 3), weight(1, 24), hidden_size=3),
    one("LSTM", (3, 2, 2), weight(2, 12, 2), weight(2, 12, 3), hidden_size=3, direction="bidirectional",
        name="LSTM both ways"),
    Case("LSTM's last state", (3, 1, 2), (("LSTM", ["x", "w", "r"], ["a", "h", "c"], {"hidden_size": 3}),
         ("Add", ["h", "c"], ["y"], {})), {"w": weight(1, 12, 2), "r": weight(1, 12, 3)}),
    one("GRU", (3, 1, 2), weight(1, 9, 2), weight(1, 9, 3), weight(1, 18), hidden_size=3),
    one("GRU", (3, 1, 2), weight(1, 9, 2), weight(1, 9, 3), weight(1, 18), hidden_size=3, linear_before_reset=1,
        name="GRU, linear before reset"),
    one("RNN", (3, 1, 2), weight(1, 3, 2), weight(1, 3, 3), weight(1, 6), hidden_size=3, direction="reverse"),
    one("CumSum", (2, 5), np.array(1, np.int64)),
    one("Mod", (1, 6), positive(6), fmod=1),
    one("Shrink", (1, 6), lambd=0.3, bias=0.1), one("Shrink", (1, 6), lambd=0.3, bias=0.3, name="Shrink softly"),
    Case("QuantizeLinear", (1, 6),
         (("QuantizeLinear", ["x", "s", "z"], ["q"], {}), ("DequantizeLinear", ["q", "s", "z"], ["y"], {})),
         {"s": np.array(0.01, np.float32), "z": np.array(128, np.uint8)}),
    Case("QuantizeLinear along an axis", (1, 3, 2),
         (("QuantizeLinear", ["x", "s", "z"], ["q"], {"axis": 1}),
          ("DequantizeLinear", ["q", "s", "z"], ["y"], {"axis": 1})),
         {"s": floats(0.01, 0.02, 0.005), "z": np.array([0, 3, -5], np.int8)}),
    Case("DequantizeLinear of weights, before the reference has it", (1, 3),
         (("DequantizeLinear", ["q", "s", "z"], ["w"], {"axis": 0}), ("DequantizeLinear", ["b", "t"], ["c"], {}),
          ("Gemm", ["x", "w", "c"], ["y"], {"transB": 1})),
         {"q": whole8(4, 3), "s": floats(0.01, 0.02, 0.005, 0.03), "z": np.array([0, 3, -5, 1], np.int8),
          "b": np.array([700, -5, 0, 90], np.int32), "t": np.array(0.001, np.float32)}, opset=13),
    Case("QLinearConv", (1, 2, 4, 4),
         (("QuantizeLinear", ["x", "s", "z"], ["q"], {}),
          ("QLinearConv", ["q", "s", "z", "w", "v", "o", "t", "z", "b"], ["h"],
           {"pads": [1, 0, 1, 1], "strides": [2, 1]}),
          ("DequantizeLinear", ["h", "t", "z"], ["y"], {})),
         {"s": np.array(0.008, np.float32), "z": np.array(120, np.uint8), "w": whole8(3, 2, 3, 2),
          "v": floats(0.01, 0.02, 0.03), "o": np.array([0, 0, 0], np.int8), "t": np.array(0.07, np.float32),
          "b": np.array([40, -300, 0], np.int32)}),
    Case("QLinearMatMul", (2, 5),
         (("QuantizeLinear", ["x", "s", "z"], ["q"], {}),
          ("QLinearMatMul", ["q", "s", "z", "w", "v", "o", "t", "z"], ["h"], {}),
          ("DequantizeLinear", ["h", "t", "z"], ["y"], {})),
         {"s": np.array(0.008, np.float32), "z": np.array(-7, np.int8), "w": whole8(5, 3),
          "v": np.array(0.02, np.float32), "o": np.array(4, np.int8), "t": np.array(0.04, np.float32)}),
    Case("QLinearMatMul by columns", (3, 5),
         (("QuantizeLinear", ["x", "s", "z"], ["q"], {}),
          ("QLinearMatMul", ["q", "s", "z", "w", "v", "o", "t", "z"], ["h"], {}),
          ("DequantizeLinear", ["h", "t", "z"], ["y"], {})),
         {"s": np.array(0.008, np.float32), "z": np.array(-7, np.int8), "w": whole8(5, 3),
          "v": floats(0.02, 0.005, 0.03), "o": np.array([4, 0, -9], np.int8), "t": np.array(0.04, np.float32)}),
    Case("QLinearMatMul by columns of each matrix", (2, 1, 5),
         (("QuantizeLinear", ["x", "s", "z"], ["q"], {}),
          ("QLinearMatMul", ["q", "s", "z", "w", "v", "o", "t", "z"], ["h"], {}),
          ("DequantizeLinear", ["h", "t", "z"], ["y"], {})),
         {"s": np.array(0.008, np.float32), "z": np.array(-7, np.int8), "w": whole8(2, 5, 3),
          "v": floats(0.02, 0.005, 0.03, 0.01, 0.015, 0.025).reshape(2, 1, 3),
          "o": np.array([4, 0, -9, 3, 2, 1], np.int8).reshape(2, 1, 3), "t": np.array(0.04, np.float32)}),
    Case("MatMulInteger", (1, 5),
         (("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], {}), ("MatMulInteger", ["q", "w", "z", "o"], ["h"], {}),
          ("Cast", ["h"], ["f"], {"to": 1}), ("Mul", ["f", "s"], ["y"], {})),
         {"w": whole8(5, 3), "o": np.array([0, 4, -9], np.int8)}),
    Case("ConvInteger", (1, 1, 4, 4),
         (("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], {}),
          ("ConvInteger", ["q", "w", "z"], ["h"], {"pads": [1, 1, 1, 1]}),
          ("Cast", ["h"], ["f"], {"to": 1}), ("Mul", ["f", "s"], ["y"], {})),
         {"w": whole8(2, 1, 3, 3)}),
]  # fmt: skip

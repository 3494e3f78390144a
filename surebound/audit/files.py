"""Trials of ONNX files: drawn ones that are imported, drawn networks that are exported, and lists of instances."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from surebound.audit.draw import Draw
from surebound.audit.networks import network
from surebound.audit.oracle import first
from surebound.audit.pieces import activation, drawn
from surebound.audit.text import loaded
from surebound.audit.trials import Fault, Trial, crash
from surebound.bounds import interval_bounds, worst_margins
from surebound.bounds.margins import METHODS
from surebound.errors import SureboundError
from surebound.graph.onnx.file import Model, parse_model
from surebound.region import Box
from surebound.verdict import Status
from surebound.vnnlib.check import checked_network
from surebound.vnnlib.files import write_network
from surebound.vnnlib.instances import read_instances, run_instances
from surebound.vnnlib.runtime import Session

Call = tuple[str, list[str], list[str], dict[str, Any]]


@dataclasses.dataclass
class FileText:
    """An ONNX file in the making: its calls and constants, which print as a script."""

    draw: Draw
    shape: tuple[int, ...]
    calls: list[Call] = dataclasses.field(default_factory=list)
    constants: dict[str, NDArray[Any]] = dataclasses.field(default_factory=dict)
    opset: int = 13

    def constant(self, *values: float | int, kind: str = "int64", shape: tuple[int, ...] | None = None) -> str:
        """Add a constant; return its name."""
        name = f"c{len(self.constants)}"
        array = np.array(values, dtype=kind)
        self.constants[name] = array if shape is None else array.reshape(shape)
        return name

    def weight(self, *shape: int) -> str:
        """Add a constant of drawn numbers; return its name."""
        values = [round(self.draw.uniform(-1, 1), 3) for _ in range(int(np.prod(shape)))]
        return self.constant(*values, kind="float32", shape=shape)

    def call(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Add a call; return the name of its result."""
        name = f"v{len(self.calls)}"
        self.calls.append((op, list(inputs), [name], {k: v for k, v in attributes.items() if v is not None}))
        return name

    def __str__(self) -> str:
        lines = ["import numpy as np", "import onnx", "from onnx import helper, numpy_helper", "", "nodes = ["]
        for op, inputs, outputs, attributes in self.calls:
            more = "".join(f", {key}={value!r}" for key, value in attributes.items())
            lines.append(f"    helper.make_node({op!r}, {inputs!r}, {outputs!r}{more}),")
        lines += ["]", "constants = ["]
        for name, value in self.constants.items():
            lines.append(
                f"    numpy_helper.from_array(np.array({value.tolist()}, dtype={str(value.dtype)!r}), {name!r}),"
            )
        output = self.calls[-1][2][0]
        lines += [
            "]",
            f'x = helper.make_tensor_value_info("x", 1, {list(self.shape)})',
            f'y = helper.make_tensor_value_info("{output}", 1, None)',
            'graph = helper.make_graph(nodes, "g", [x], [y], constants)',
            f'made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", {self.opset})], ir_version=8)',
            "made = onnx.shape_inference.infer_shapes(made)",
            "content = made.SerializeToString()",
        ]
        return "\n".join(lines) + "\n"


def _pads(draw: Draw, count: int) -> list[int] | None:
    return draw.pick(None, draw.several((0, 1), 2 * count))


def _convolve(text: FileText, x: str) -> str:
    draw, c = text.draw, text.shape[1]
    group = draw.choice([g for g in (1, 2) if c % g == 0])
    out = 2 * group
    kernel = draw.several((1, 2, 3), 2)
    auto = draw.pick(None, None, "SAME_UPPER", "SAME_LOWER", "VALID")
    options: dict[str, Any] = {
        "strides": draw.pick(None, draw.several((1, 2), 2)),
        "dilations": draw.pick(None, None, draw.several((1, 2), 2)) if auto is None else None,
        "pads": _pads(draw, 2) if auto is None else None,
        "auto_pad": auto,
        "group": group,
    }
    if draw.chance(0.3):
        return text.call("ConvTranspose", x, text.weight(c, out // group, *kernel), **options)
    return text.call("Conv", x, text.weight(out, c // group, *kernel), *draw.pick([], [text.weight(out)]), **options)


def _pool(text: FileText, x: str) -> str:
    draw = text.draw
    kind = draw.pick("MaxPool", "AveragePool")
    options: dict[str, Any] = {
        "kernel_shape": draw.several((1, 2, 3), 2),
        "strides": draw.pick(None, draw.several((1, 2), 2)),
        "pads": draw.pick(None, draw.several((0, 1), 4)),
        "ceil_mode": draw.pick(None, 0, 1),
    }
    if kind == "AveragePool":
        options["count_include_pad"] = draw.pick(None, 0, 1)
    elif draw.chance(0.3):
        options["dilations"] = draw.several((1, 2), 2)
    return text.call(kind, x, **options)


def _resize(text: FileText, x: str) -> str:
    draw = text.draw
    if draw.chance(0.2):
        text.opset = 9
        return text.call("Upsample", x, text.constant(1, 1, *draw.several((1, 2, 2.1, 1.5, 3), 2), kind="float32"))
    scales = [1, 1, *draw.several((1, 2, 2, 3, 2.1, 1.5, 2.9, 0.5), 2)]
    options: dict[str, Any] = {
        "mode": draw.pick(None, "nearest", "nearest", "linear"),
        "coordinate_transformation_mode": draw.pick(
            "asymmetric", "asymmetric", None, "align_corners", "pytorch_half_pixel"
        ),
        "nearest_mode": draw.pick("floor", "floor", None, "ceil", "round_prefer_ceil"),
    }
    if draw.chance(0.3):
        text.opset = 18
        options["axes"] = draw.pick([2, 3], [3, 2])
        scales = scales[2:]
        if draw.chance(0.5):
            options["keep_aspect_ratio_policy"] = draw.pick("stretch", "not_larger", "not_smaller")
    return text.call("Resize", x, "", text.constant(*scales, kind="float32"), **options)


def _elementwise(text: FileText, x: str) -> str:
    draw = text.draw
    name = draw.pick(
        "Relu", "Sigmoid", "Tanh", "Exp", "Abs", "Neg", "Erf", "Sin", "Cos", "Atan", "Softplus", "Softsign", "Sinh",
        "Asinh", "Sign", "LeakyRelu", "Elu", "Selu", "Celu", "HardSigmoid", "ThresholdedRelu", "Softmax", "LogSoftmax",
    )  # fmt: skip
    options: dict[str, Any] = {}
    if name in ("LeakyRelu", "Elu", "Selu", "Celu", "HardSigmoid", "ThresholdedRelu"):
        options["alpha"] = draw.pick(None, 0.3, 1.5)
    if name == "Selu":
        options["gamma"] = draw.pick(None, 0.7)
    if name == "HardSigmoid":
        options["beta"] = draw.pick(None, 0.3)
    if name in ("Softmax", "LogSoftmax"):
        text.opset = draw.pick(11, 13)
        options["axis"] = draw.pick(None, 1, -1, 2, 3)
    return text.call(name, x, **options)


def _arithmetic(text: FileText, x: str) -> str:
    draw = text.draw
    op = draw.pick("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Pow")
    if op == "Pow":
        rank = draw.pick((), (1,), (1, 1, 1, 1), (1, 1, 1, 1, 1))
        return text.call("Pow", x, text.constant(draw.pick(2.0, 3.0, 1.0, 2.5), kind="float32", shape=rank))
    shape = draw.pick((1,), (text.shape[-1],), (text.shape[1], 1, 1), (2, 1, 1, 1, 1), text.shape)
    other = text.weight(*shape)
    if op == "Div":
        text.constants[other] = np.abs(text.constants[other]) + np.float32(0.5)
    return text.call(op, *draw.pick([x, other], [other, x] if op not in ("Div", "Pow") else [x, other]))


def _move(text: FileText, x: str) -> str:
    draw, rank = text.draw, len(text.shape)
    kind = draw.randrange(11)
    if kind == 0:
        return text.call("Transpose", x, perm=draw.pick(None, draw.sample(range(rank), rank)))
    if kind == 1:
        return text.call("Flatten", x, axis=draw.pick(None, 0, 1, 2, -1))
    if kind == 2:
        starts, ends, steps = draw.pick(0, 1, -2, -100), draw.pick(2, 100, -1, -100), draw.pick(1, 2, -1)
        names = [text.constant(value) for value in (starts, ends, draw.pick(1, 2, -1), steps)]
        return text.call("Slice", x, *names)
    if kind == 3:
        mode = draw.pick(None, "reflect", "edge")
        return text.call(
            "Pad", x, text.constant(0, 0, *draw.several((0, 1), 2), 0, 0, *draw.several((0, 1), 2)), mode=mode
        )
    if kind == 4:
        return text.call("Gather", x, text.constant(*draw.several((0, -1, 1), 2)), axis=draw.pick(1, 2, 3, -1))
    if kind == 5:
        op = draw.pick("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin")
        text.opset = 11
        return text.call(op, x, axes=draw.pick([1], [2], [-1], [2, 3], [1, 2, 3]), keepdims=draw.pick(None, 0, 1))
    if kind == 6:
        blocks = draw.pick("DepthToSpace", "SpaceToDepth")
        return text.call(blocks, x, blocksize=2, mode=draw.pick(None, "CRD") if blocks == "DepthToSpace" else None)
    if kind == 7:
        return text.call("Concat", x, draw.pick(x, text.call("Relu", x)), axis=draw.pick(0, 1, 2, -1))
    if kind == 8:
        names = [draw.pick("", text.constant(value, kind="float32", shape=())) for value in (-0.25, 0.3)]
        return text.call("Clip", x, *names)
    if kind == 9:
        return text.call("Tile", x, text.constant(*draw.several((1, 2), rank)))
    return text.call("Reshape", x, text.constant(*draw.pick((0, -1), (1, -1, 2), (-1,), (0, 0, -1))))


def _normalise(text: FileText, x: str) -> str:
    c = text.shape[1]
    variance = text.weight(c)
    text.constants[variance] = np.abs(text.constants[variance]) + np.float32(0.3)
    names = text.weight(c), text.weight(c), text.weight(c), variance
    return text.call("BatchNormalization", x, *names, epsilon=text.draw.pick(None, 0.01, 0.5))


_MAKERS: tuple[Callable[[FileText, str], str], ...] = (
    _convolve, _pool, _resize, _elementwise, _arithmetic, _move, _normalise,
)  # fmt: skip


def drawn_file(draw: Draw) -> FileText:
    """Draw a file: one operator with drawn attributes, an activation around it now and then, and a sum behind."""
    text = FileText(draw, (1, draw.pick(2, 4), draw.pick(3, 4), draw.pick(4, 5)))
    made = "x"
    if draw.chance(0.3):
        made = text.call("Sub", made, text.constant(0.5, kind="float32"))
    made = draw.choice(_MAKERS)(text, made)
    if draw.chance(0.4):
        made = text.call("Relu", text.call("Sub", made, text.constant(draw.pick(0.3, 0.9), kind="float32")))
    text.call("Flatten", made)
    return text


def try_file(trial: Trial) -> Iterator[Fault]:
    """Import a drawn file, bound it over a box, and run it in onnxruntime at points of the box."""
    draw = trial.draw("file")
    text = drawn_file(draw)
    with loaded(str(text)) as script:
        content = script.content
    try:
        model = parse_model(content)
        net = checked_network(model)
        yield from _against_runtime(trial, model, net, draw, text)
    except SureboundError:
        trial.tally.refused[trial.generator] += 1
    except Exception as error:
        yield Fault(crash(error).what, f"{text}\n")


def _against_runtime(
    trial: Trial, model: Model, net: torch.nn.Module, draw: Draw, text: object, shown: str = ""
) -> Iterator[Fault]:
    shape = (1, *model.inputs[0].shape[1:])
    low = draw.uniform_tensor(shape, -0.5, 1)
    high = low + draw.pick(0.01, 0.5, 2.0) * draw.uniform_tensor(shape)
    region, session = Box(low, high), Session(model)
    bounds = interval_bounds(net, region)
    points = low + (high - low) * draw.uniform_tensor((40, *shape[1:]))
    points[:20] = torch.where(draw.uniform_tensor((20, *shape[1:])) < 0.5, low, high)
    points = torch.minimum(torch.maximum(points, low), high)
    results = [session.run({model.inputs[0].name: each[None].numpy()})[model.outputs[0][0]] for each in points]
    z = torch.from_numpy(np.stack([each.reshape(1, -1) for each in results]).copy())  # (N, 1, K)
    label = torch.zeros(1, dtype=torch.long)
    claims = {"intervals": (bounds.lower.reshape(1, -1), bounds.upper.reshape(1, -1))}
    if z.shape[2] > 1:
        method = draw.choice(list(METHODS))
        try:
            upper = worst_margins(net, region, label, method=method)
            claims[method] = (torch.full_like(upper, -torch.inf), upper)
        except SureboundError:
            trial.tally.silent[method] += 1
    operators = {f"ONNX {name}" for name in map(attrgetter("op_type"), model.nodes)}
    for method, (lower, upper) in claims.items():
        values = z if method == "intervals" else z.double() - z[:, :, :1].double()
        open_ = (lower.isnan() | (lower == -torch.inf)) & (upper.isnan() | (upper == torch.inf))
        at = first(~(((values >= lower) | (lower.isnan())) & ((values <= upper) | upper.isnan()) | open_))
        trial.tally.compared(trial.generator, operators, method, values.numel())
        if at is not None:
            what = f"onnxruntime is outside of the bounds by {method}: by {float((values[at] - upper[0]).max()):.3g}"
            yield Fault(what, f"{text}\n{shown}point = np.array({points[at[0]].tolist()}, dtype='float32')\n")
            return


def try_export(trial: Trial) -> Iterator[Fault]:
    """Export a drawn network and run the file in onnxruntime where our bounds are."""
    draw = trial.draw("network")
    text = network(draw, *draw.pick((activation,), (activation, drawn), (drawn, activation)))
    if text is None or "float64" in str(text):
        return
    with loaded(str(text)) as script, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.onnx"
        try:
            write_network(script.net, script.region.reference[:1], path)
            model = parse_model(path.read_bytes())
            shown = 'sb.vnnlib.write_network(net, region.reference[:1], "net.onnx")\n'
            yield from _against_runtime(trial, model, script.net, draw, text, shown)
        except SureboundError:
            trial.tally.refused[trial.generator] += 1
        except Exception as error:
            yield Fault(crash(error).what, f"{text}\n")


def try_instances(trial: Trial) -> Iterator[Fault]:
    """Decide a list of instances, replace or remove a file, and decide it again."""
    draw = trial.draw("instances")
    text = FileText(draw, (1, 2))
    made = text.call("Gemm", "x", text.weight(2, 1))
    text.call("Add", made, "shift")
    how = draw.pick("other weights", "no network", "garbage", "other query")
    query = "(declare-const X_0 Real)(declare-const X_1 Real)(declare-const Y_0 Real)" + "".join(
        f"(assert (>= X_{i} 0))(assert (<= X_{i} 1))" for i in range(2)
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "q.vnnlib").write_text(query + "(assert (>= Y_0 0))")
        (folder / "list.csv").write_text("n.onnx,q.vnnlib,5\n")
        _write_shifted(text, folder / "n.onnx", -9.0)
        instances = read_instances(folder / "list.csv")
        before = run_instances(instances, folder / "out")[0].verdict.status
        if how == "other weights":
            _write_shifted(text, folder / "n.onnx", 9.0)
        elif how == "no network":
            (folder / "n.onnx").unlink()
        elif how == "garbage":
            (folder / "n.onnx").write_bytes(b"nothing")
        else:
            (folder / "q.vnnlib").write_text(query + "(assert (<= Y_0 0))")
        after = run_instances(instances, folder / "out")[0].verdict.status
        trial.tally.compared(trial.generator, set(), "instances", 2)
        if before is not Status.ROBUST or after is Status.ROBUST:
            yield Fault(f"instances keep {after.value} (before: {before.value}) after a change: {how}", str(text))


def _write_shifted(text: FileText, path: Path, shift: float) -> None:
    text.constants["shift"] = np.array([shift], dtype="float32")
    with loaded(str(text)) as script:
        path.write_bytes(script.content)

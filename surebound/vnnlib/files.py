"""Our networks and questions as files, read back before they are kept; and other people's networks from files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from surebound.bounds.interval import propagate
from surebound.disk import explained, write_whole
from surebound.errors import QueryError, TraceMismatchError
from surebound.graph import ImportedNetwork, Program, program_of
from surebound.graph.onnx.classical import rewritten
from surebound.graph.onnx.export import export_program
from surebound.graph.onnx.file import Model, parse_model, read_bytes
from surebound.graph.onnx.outputs import with_output
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.vnnlib.check import check_import, checked_network, points_around
from surebound.vnnlib.runtime import Session
from surebound.vnnlib.write import robustness_query, write_query


def load_onnx(path: str | Path, output: str | None = None) -> ImportedNetwork:
    """Load a network from an ONNX file (plain or gzip), checked against onnxruntime: (B, *input) -> (B, K).

    It can be given to everything that takes a network: bounds, attacks, ``verify``. Its input has no batch axis of its
    own: a file for (1, C, H, W) takes (B, C, H, W). ``output`` names one of several outputs, or any tensor inside; of
    outputs of which one alone holds numbers, as scores beside a label, that one is taken.
    """
    content, source = read_bytes(path), str(path)
    asked: list[bytes] = []  # the file as it is, but for its other outputs

    def chosen(proto: Any) -> Any:
        cut = with_output(proto, output, source)
        made = rewritten(cut, source)
        if made is not cut:
            asked.append(cut.SerializeToString())
        return made

    model = parse_model(content, source, chosen)
    network = checked_network(model)
    for each in asked:
        check_import(network, replace(model, content=each))
    return network


def write_network(model: nn.Module, example: Tensor, path: str | Path) -> None:
    """Write a network as ONNX for one example (1, ...); kept only if it reads back as the same network.

    onnxruntime runs the file at several inputs, and of every call its value must lie within our bounds at that point.
    """
    program = program_of(model, example)
    content = export_program(program)
    parsed = parse_model(content, str(path))
    checked_network(parsed)
    _check_export(program, parsed, example)
    _write(Path(path), content)


def _check_export(program: Program, written: Model, example: Tensor) -> None:
    """Compare every call of a written file with the program's, which has it under the same name."""
    inner = {name for node in written.nodes for name in node.output}
    names = [node.name for node in program.graph.calls(lambda n: n.varies and n.name in inner)]
    session = Session(written, names)
    for x in points_around(example):
        bounds = _bounds_at(program, x)
        found = session.run({written.inputs[0].name: x.numpy()})
        for name in names:
            value = torch.from_numpy(found[name].copy())
            if value.shape != bounds[name].shape or not bool(bounds[name].contains(value).all()):
                op = program.graph.by_name[name].op
                raise TraceMismatchError(f"{written.source}: {op} differs in the exported network; please report this")


def _bounds_at(program: Program, x: Tensor) -> dict[str, Interval]:
    """Bound every call that varies at one point x (1, ...), by name."""
    found: dict[str, Interval] = {}
    with torch.no_grad():
        propagate(
            program,
            Interval.point(x),
            Soundness.DEPLOYED,
            observe=lambda node, bounds: found.__setitem__(node.name, bounds),
        )
    return found


def write_questions(
    images: Tensor,
    labels: Tensor,
    classes: int,
    eps: str | int | float | Fraction,
    folder: str | Path,
    version: str = "2.0",
    dtype: str = "float32",
    onnx: str | Path | None = None,
    timeout: int = 60,
    numbers: Sequence[int] | None = None,
    clip: tuple[float, float] | None = (0.0, 1.0),
) -> int:
    """Write a query per image (N, C, H, W), NUMBER_eps.vnnlib; if the network's file is named, also a list.

    ``numbers`` are those of the images in their data set, 0 to N - 1 if not given.
    """
    folder = Path(folder)
    lines = []
    for i, image, label in zip(numbers or range(len(images)), images, labels.tolist(), strict=True):
        query = robustness_query(image, int(label), classes, eps, clip=clip, dtype=dtype)
        text = write_query(query, version, comment=f"image {i}, label {label}, l-infinity radius {eps}")
        name = f"{i}_{str(eps).replace('/', 'over')}.vnnlib"
        _write(folder / name, text.encode())
        if onnx is not None:
            lines.append(f"{os.path.relpath(Path(onnx).resolve(), folder.resolve())},{name},{timeout}")
    if lines:
        _write(folder / "instances.csv", ("\n".join(lines) + "\n").encode())
    return len(images)


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
    except OSError as error:
        raise QueryError(f"{path} cannot be written: {explained(error)}") from error

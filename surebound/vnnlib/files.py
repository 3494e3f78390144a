"""Our networks and questions as files, read back before they are kept; and other people's networks from files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import torch
from torch import Tensor, nn

from surebound.errors import QueryError, TraceMismatchError
from surebound.graph import ImportedNetwork, program_of
from surebound.graph.onnx.export import export_program
from surebound.graph.onnx.file import parse_model, read_model
from surebound.graph.onnx.importer import network_of
from surebound.numerics import TRACE_TOLERANCE
from surebound.vnnlib.check import check_import
from surebound.vnnlib.write import robustness_query, write_query


def load_onnx(path: str | Path) -> ImportedNetwork:
    """A network from an ONNX file (plain or gzip), checked against onnxruntime: (B, *input) -> (B, K).

    It can be given to everything that takes a network: bounds, attacks, ``verify``. Its input has no batch axis of its
    own: a file for (1, C, H, W) takes (B, C, H, W).
    """
    model = read_model(path)
    network = network_of(model)
    check_import(network, model)
    return network.eval()


def write_network(model: nn.Module, example: Tensor, path: str | Path) -> None:
    """Write a network as ONNX for one example (1, ...); kept only if it reads back as the same network."""
    content = export_program(program_of(model, example))
    parsed = parse_model(content, str(path))
    again = network_of(parsed)
    check_import(again, parsed)
    with torch.no_grad():
        expected, got = model.eval()(example), again(example)
    scale = expected.abs().max().clamp(min=1.0)
    if not bool((expected.reshape(got.shape) - got).abs().max() <= TRACE_TOLERANCE * scale):
        raise TraceMismatchError(f"{path}: the exported network differs from the module; please report this")
    _write(Path(path), content)


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
) -> int:
    """One query per image (N, C, H, W), NUMBER_eps.vnnlib, and a list of instances if the network's file is named.

    ``numbers`` are those of the images in their data set, 0 to N - 1 if not given.
    """
    folder = Path(folder)
    lines = []
    for i, image, label in zip(numbers or range(len(images)), images, labels.tolist(), strict=True):
        query = robustness_query(image, int(label), classes, eps, dtype=dtype)
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
        path.write_bytes(content)
    except OSError as error:
        raise QueryError(f"{path} cannot be written: {error}") from error

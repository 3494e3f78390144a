"""Networks as Python text: what is tried is what a user could have written, and a find is a script already.

A trial is a list of pieces; leaving pieces out makes it smaller, and whatever does not run any more is not smaller.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn

import surebound as sb
"""

_numbers = itertools.count()


@dataclasses.dataclass(frozen=True)
class Piece:
    """Lines of ``__init__`` and of ``forward`` that belong together."""

    forward: tuple[str, ...]
    init: tuple[str, ...] = ()
    needed: bool = False  # without it there is nothing to try


@dataclasses.dataclass(frozen=True)
class NetworkText:
    """A network, its input and its region as text; ``after`` stands behind the network."""

    pieces: tuple[Piece, ...]
    seed: int
    after: tuple[str, ...]
    scale: float = 1.0
    head: tuple[str, ...] = ()  # behind the imports
    members: tuple[str, ...] = ()  # of the class

    def with_piece(self, piece: Piece) -> NetworkText:
        """Return this network with one more piece at its end."""
        return dataclasses.replace(self, pieces=(*self.pieces, piece))

    def smaller(self) -> Iterator[NetworkText]:
        """Yield the networks that lack one piece."""
        for i, piece in enumerate(self.pieces):
            if not piece.needed:
                yield dataclasses.replace(self, pieces=(*self.pieces[:i], *self.pieces[i + 1 :]))

    def __str__(self) -> str:
        init = [line for piece in self.pieces for line in piece.init]
        body = [line for piece in self.pieces for line in piece.forward]
        lines = [HEAD, *self.head, "", "class Net(nn.Module):"]
        lines += [f"    {line}" for line in self.members]
        if init:
            lines += [
                "    def __init__(self):",
                "        super().__init__()",
                *(f"        {line}" for line in init),
                "",
            ]
        lines += ["    def forward(self, x):", *(f"        {line}" for line in body), "        return x", "", ""]
        lines += [f"torch.manual_seed({self.seed})", "net = Net().requires_grad_(False).eval()"]
        if self.scale != 1:
            lines += ["for each in net.parameters():", f"    each.mul_({self.scale})"]
        return "\n".join([*lines, *self.after]) + "\n"


@contextmanager
def loaded(text: str) -> Iterator[ModuleType]:
    """Run a script as a module, from a file as every module of a user."""
    name = f"audited_{next(_numbers)}"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.py"
        path.write_text(text, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ImportError(name)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
        try:
            spec.loader.exec_module(module)
            yield module
        finally:
            sys.dont_write_bytecode = before
            del sys.modules[name]


def shrunk(network: NetworkText, still: Callable[[NetworkText], bool]) -> NetworkText:
    """Leave out pieces while ``still`` says that the fault is there."""
    smaller = next((each for each in network.smaller() if still(each)), None)
    return network if smaller is None else shrunk(smaller, still)

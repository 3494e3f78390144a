"""``check``: what each method can do with every operator call of a network, before anything is asked of it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from surebound.errors import GraphError, InputError, UnsupportedOperatorError
from surebound.graph import ImportedNetwork, Node, program_of
from surebound.graph.onnx.file import Model, read_model
from surebound.graph.onnx.importer import network_of, refused
from surebound.rules.registry import Rule, find, remedy

COLUMNS = ("interval", "linear", "mip")


@dataclass(frozen=True)
class Operator:
    """One operator call of a network: where it stands, which columns its rule has, and what to do about the others."""

    op: str  # "aten.conv2d.default", or an ONNX operator that cannot be imported
    module: str  # path of the submodule that calls it, or the name of the call in an ONNX file
    source: str  # the user's line, or the ONNX file
    columns: tuple[str, ...]  # of "interval", "linear", "mip": those it has
    remedy: str = ""

    def __str__(self) -> str:
        module = f" in module {self.module!r}" if self.module else ""
        source = f" at {self.source}" if self.source else ""
        advice = f"\n    -> {self.remedy}" if self.remedy else ""
        return f"{self.op}{module}{source}: {', '.join(self.columns) or 'no rule'}{advice}"


@dataclass(frozen=True)
class Support:
    """The result of ``check``: every operator call that depends on the input, or why the network could not be read.

    ``print`` shows the calls that some method cannot use.
    """

    operators: tuple[Operator, ...]
    trouble: str = ""  # the network as a whole: control flow that depends on values, several inputs, ...

    @property
    def supported(self) -> bool:
        """Do interval bounds exist, so that everything but some tighter methods can be asked?"""
        return not self.trouble and not self.missing("interval")

    def missing(self, column: str) -> tuple[Operator, ...]:
        """Return the calls without a column: "interval", "linear" or "mip"."""
        if column not in COLUMNS:
            raise InputError(f"column={column!r}; give one of {', '.join(COLUMNS)}")
        return tuple(each for each in self.operators if column not in each.columns)

    def __str__(self) -> str:
        if self.trouble:
            return f"not supported: {self.trouble}"
        counts = (f"{name} {len(self.operators) - len(self.missing(name))}" for name in COLUMNS)
        verdict = "supported" if self.supported else "not supported"
        head = f"{verdict}; of {len(self.operators)} operator calls: {', '.join(counts)}"
        gaps = [each for each in self.operators if each.columns != COLUMNS]
        return "\n".join([head, *(f"  {each}" for each in gaps)])


def check(model: nn.Module | Model | str | Path, x: Tensor | None = None) -> Support:
    """Find every operator that bounds cannot go through, with its place and a remedy; raises nothing about them.

    ``x``: an input (B, ...) of the network; not needed for ONNX files and networks imported from them.

    >>> support = check(nn.Sequential(nn.Linear(2, 2), nn.GELU(), nn.Linear(2, 2)), torch.zeros(1, 2))
    >>> support.supported
    True
    >>> support.missing("mip")[0].op
    'aten.gelu.default'
    """
    file = None
    try:
        if isinstance(model, (str, Path)):
            model = read_model(model)
        if isinstance(model, Model):
            file = model
            model = network_of(file)
        if x is None:
            if not isinstance(model, ImportedNetwork):
                raise InputError(f"x is missing; give an input (B, ...) of the {type(model).__name__}")
            x = torch.zeros(1, *(int(n or 1) for n in model.graph.input_shape[1:]))
        nodes = program_of(model, x).graph.nodes
    except UnsupportedOperatorError as error:
        return Support(tuple(_foreign(file))) if file is not None else Support((), str(error))
    except GraphError as error:
        return Support((), str(error))
    return Support(tuple(_operator(node) for node in nodes if node.varies and node.op != "getitem"))


def _foreign(model: Model) -> Iterator[Operator]:
    for node in refused(model):
        advice = "export the network without it ('surebound supports --onnx-operators' lists what can be imported)"
        yield Operator(node.op_type, node.name, model.source, (), advice)


def _operator(node: Node) -> Operator:
    rule = find(node.op)
    if rule is None:
        advice = (
            remedy(node.op)
            or "use a supported operator ('surebound ops'), or add a rule: CONTRIBUTING.md, 'Add a layer'"
        )
        return Operator(node.op, node.module, node.source, (), advice)
    has = {"interval": True, "linear": bool(linear_column(rule)), "mip": bool(mip_column(rule))}
    advice = "" if has["linear"] else "interval bounds and attacks only: linear bounds refuse it"
    return Operator(node.op, node.module, node.source, tuple(name for name in COLUMNS if has[name]), advice)


def linear_column(rule: Rule) -> str:
    """Say how linear bounds go through an operator: "exact", "relaxed", or "" where they cannot."""
    # A tensor taken apart, or one of a given shape: entries move, or do not vary at all.
    exact = rule.is_affine or rule.apart or rule.reads_shape
    return "exact" if exact else "relaxed" if rule.relax else ""


def mip_column(rule: Rule) -> str:
    """Say whether the exact solvers encode an operator, at least for some of its parameters: "exact" or ""."""
    return "exact" if rule.is_affine or rule.mip or _piecewise_linear(rule) else ""


def _piecewise_linear(rule: Rule) -> bool:
    """Has it the pieces that MIP encodes, at least for some of its parameters?"""
    if rule.activation is None:
        return False
    if rule.activation.specialise is None:
        return rule.activation.pieces is not None
    needed = [
        name
        for name, parameter in inspect.signature(rule.activation.specialise).parameters.items()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    ]
    # A parameter as a network might give it.
    given = (torch.tensor([0.25]) if name == "weight" else 0.25 for name in needed)
    return rule.activation.bind(*given).pieces is not None

"""Refuse networks whose outputs are NaN or infinite, and say which of their calls is the first to be."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from surebound.errors import GraphError
from surebound.graph.program import Node, Program
from surebound.graph.walk import Env, forward

#: They shift by the largest entry of a row: where all are -infinite, the difference is NaN.
_SOFTMAX = ("aten.softmax.int", "aten._softmax.default", "aten.log_softmax.int", "aten._log_softmax.default")


def check_finite(program: Program, model: nn.Module, x: Tensor, outputs: Tensor, got: Tensor) -> None:
    """Refuse outputs, of the module or of the program, that are not finite, and say where they come from."""
    if bool(outputs.isfinite().all()) and not bool(got.isnan().any()):
        return
    found = _NanSearch(program, x)
    if found.masked and not _not_finite(model.named_parameters()):  # a buffer of -inf is a mask
        raise GraphError(
            f"a softmax has nothing to choose from ({found.place}): a mask hides every key of a query, where "
            "PyTorch's attention is NaN, or 0, by how it is computed. Leave each query, also of padding, a key to "
            "attend to"
        )
    wrong = _not_finite([*model.named_parameters(), *model.named_buffers()])
    if wrong:
        raise GraphError(
            f"{', '.join(wrong)} of the network hold(s) NaN or infinite values; no bound can be computed: "
            "load weights that are finite"
        )
    raise GraphError(
        "the network's outputs are NaN or infinite on random inputs in [0, 1] although its weights are finite"
        + (f", first NaN in {found.place}" if found.first is not None else "")
        + "; look for an overflow, a division by 0, or a root or logarithm of negative numbers"
    )


class _NanSearch:
    """A walk over a program at an input; ``first`` is the call that first returns NaN though it reads none."""

    def __init__(self, program: Program, x: Tensor) -> None:
        self.first: Node | None = None
        self.masked = False  # whether it is the softmax of a row that is -infinite throughout
        forward(program.graph.steps, {**program.parameters(), program.graph.input: x}, self._visit)

    @property
    def place(self) -> str:
        """Return where the call stands: the user's line, or the submodule that makes it."""
        if self.first is None:
            return ""
        return self.first.source or (f"module {self.first.module!r}" if self.first.module else self.first.name)

    def _visit(self, node: Node, env: Env) -> Any:
        value = node.run(env)
        if self.first is None and _has_nan(value) and not any(_has_nan(env[name]) for name in node.refs()):
            self.first = node
            if node.op in _SOFTMAX:
                (scores, dim, *_), _ = node.arguments(env)
                self.masked = bool((scores == -math.inf).all(dim).any())
        return value


def _has_nan(value: Any) -> bool:
    return isinstance(value, Tensor) and bool(value.isnan().any())


def _not_finite(values: Iterable[tuple[str, Tensor]]) -> list[str]:
    return [name for name, value in values if value.is_floating_point() and not bool(value.isfinite().all())]

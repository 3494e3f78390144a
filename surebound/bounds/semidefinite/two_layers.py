"""A network with one hidden layer of ReLUs as two matrices, read off its program by backward passes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from surebound.bounds.constants import Constants
from surebound.bounds.elision import affine_tail
from surebound.bounds.linear.backward import Relaxed
from surebound.bounds.training.dual import bounded_calls, training_step
from surebound.bounds.training.verifier import relu_calls
from surebound.errors import BoundError
from surebound.graph import Program
from surebound.interval import Interval
from surebound.numerics import Soundness


def hidden_call(program: Program) -> tuple[str, str]:
    """Name the one ReLU of a network and the value that enters it; all else must be affine."""
    found = relu_calls(program)
    if len(found) == 1 and affine_tail(program).start == found[0].name:
        source = Constants(program).sources(found[0])[0]
        ends = {found[0].name, program.graph.input}
        inside = [node for node in bounded_calls(Constants(program)) if node.name not in ends]
        if all(len(Constants(program).sources(node)) == 1 for node in inside):
            return found[0].name, source
    raise BoundError(
        f"the semidefinite bound is for networks with one hidden layer of ReLUs; this one has {len(found)} ReLU calls, "
        "or others that are not affine"
    )


def units_shape(program: Program, source: str) -> tuple[int | None, ...]:
    """Return the shape of the value that enters the ReLUs; it may be the network's input itself."""
    if source == program.graph.input:
        return tuple(program.graph.input_shape)
    return tuple(program.graph.by_name[source].shape or ())


@dataclass(frozen=True, eq=False)
class TwoLayers:
    """z = out max(weight x + bias, 0) + ..., x flattened."""

    weight: Tensor  # (m, d)
    out: Tensor  # (K, m)

    @classmethod
    def of(cls, program: Program, box: Interval) -> TwoLayers:
        """Read the matrices with gradients, without rounding control; box: any one example (1, ...)."""
        hidden, source = hidden_call(program)
        relaxed = Relaxed(program, Soundness.NONE, Constants(program), {program.graph.input: box}, {})
        for node in bounded_calls(relaxed.constants):
            if node.name != hidden:
                relaxed.steps[node.name] = training_step(relaxed, node)
        units = units_shape(program, source)
        if len(units) != 2 or units[1] is None:
            raise BoundError("the semidefinite bound is for hidden layers that are fully connected: (B, m)")

        def pulled(start: str, count: int, stop: str) -> Tensor:
            eye = torch.eye(count, dtype=box.dtype, device=box.device).unsqueeze(1)  # (count, 1, count)
            form = relaxed.pull(start, eye, eye.new_zeros(count, 1), stop=stop)
            return form.coefficients[:, 0].flatten(1)

        return cls(pulled(source, units[1], program.graph.input), pulled(program.graph.output, program.outputs, hidden))

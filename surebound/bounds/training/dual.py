"""Linear bounds with gradients, for training: one backward pass over bounds that a training pass has left behind.

The mathematics is that of backward.py (CROWN; with the upper line's slope on both sides it is the dual network of Wong
& Kolter 2018, theorem 1); this file only builds the steps without rounding control and keeps gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from surebound.bounds.constants import Constants, affine_in_one, moved_from
from surebound.bounds.elision import affine_tail
from surebound.bounds.linear.backward import Relaxed
from surebound.bounds.linear.steps import AffineStep, step_of
from surebound.bounds.training.engine import TrainingPass
from surebound.errors import BoundError
from surebound.graph import Node, Program
from surebound.interval import Interval
from surebound.numerics import Soundness, tiny
from surebound.rules.relax.lines import Relaxation, Slopes
from surebound.spec import other_classes


def values_to_keep(program: Program) -> tuple[str, ...]:
    """Name the values whose bounds the relaxations of a program's calls need, and where its affine tail starts."""
    constants, names = Constants(program), {affine_tail(program).start: None}
    for node in bounded_calls(constants):
        sources = constants.sources(node)
        if not _is_affine(constants, node, sources):
            names.update(dict.fromkeys((*sources, node.name)))
    names.pop(program.graph.input, None)
    return tuple(names)


def bounded_calls(constants: Constants) -> list[Node]:
    """List the calls whose value is a tensor that varies with the input, in order."""
    fixed = constants.of(1)
    return [node for node in constants.calls() if node.name not in fixed and node.shape is not None]


def _is_affine(constants: Constants, node: Node, sources: tuple[str, ...]) -> bool:
    return moved_from(constants.program, node) is not None or affine_in_one(node, sources) is not None


def relaxed_from(program: Program, done: TrainingPass, box: Interval, slopes: Slopes = "adaptive") -> Relaxed:
    """Make backward steps over the bounds that a pass has kept (``keep=values_to_keep(program)``).

    Its ``bounds`` are those of the values kept and of the input. Gradients reach the parameters through the bounds,
    the weights and the statistics of the batch.
    """
    return relaxed_over(program, {**done.kept, program.graph.input: box}, slopes, done.norms)


def relaxed_over(
    program: Program,
    bounds: dict[str, Interval],
    slopes: Slopes,
    norms: Mapping[str, tuple[Tensor, Tensor]] | None = None,
) -> Relaxed:
    """Make backward steps over given bounds, without rounding control and with gradients."""
    return completed(Relaxed(program, Soundness.NONE, Constants(program, norms), bounds, {}, slopes))


def completed(relaxed: Relaxed) -> Relaxed:
    """Add the steps that a relaxation does not have yet."""
    for node in bounded_calls(relaxed.constants):
        if node.name not in relaxed.steps:
            relaxed.steps[node.name] = training_step(relaxed, node)
    return relaxed


def training_step(relaxed: Relaxed, node: Node) -> Relaxation:
    """Make the step of one call: of an affine one from shapes alone, of others from the bounds of their operands."""
    constants, sources = relaxed.constants, relaxed.constants.sources(node)
    affine = affine_in_one(node, sources)
    if affine is not None and moved_from(constants.program, node) is None:
        box = relaxed.bounds[constants.program.graph.input]
        like = torch.empty((), dtype=box.dtype, device=box.device)
        return replace(AffineStep.plain(node, affine, shape_of(relaxed, sources[0]), like, constants), trains=True)
    return step_of(constants, node, relaxed.bounds, Soundness.NONE, relaxed.slopes)


def shape_of(relaxed: Relaxed, name: str) -> torch.Size:
    """Return the shape (B, ...) of a value."""
    graph = relaxed.program.graph
    if name == graph.input:
        return relaxed.bounds[name].shape
    shape = graph.by_name[name].shape
    if shape is None:
        raise BoundError(f"{name} is not a tensor; linear bounds need its shape")
    return torch.Size(relaxed.batch if n is None else n for n in shape)


def bound_rows(relaxed: Relaxed, c: Tensor, d: Tensor | None = None) -> Tensor:
    """Bound c.z + d from above, c (B, S, K): (B, S), with gradients in c, d and all that the relaxation is made of."""
    a = c.transpose(0, 1)
    offset = c.new_zeros(a.shape[:2]) if d is None else d.transpose(0, 1)
    form = relaxed.pull(relaxed.program.graph.output, a, offset)
    return relaxed.upper(form).transpose(0, 1)


def bound_margins(relaxed: Relaxed, labels: Tensor) -> Tensor:
    """Bound z_k - z_true from above (B, K), 0 in the true class's column; K - 1 rows go back."""
    outputs = relaxed.program.outputs
    others = other_classes(labels, outputs)  # (B, K - 1)
    rows = _one_hot(others, outputs) - _one_hot(labels, outputs).unsqueeze(1)
    box = relaxed.bounds[relaxed.program.graph.input]
    upper = bound_rows(relaxed, rows.to(box.dtype))
    return upper.new_zeros(upper.shape[0], outputs).scatter(1, others, upper)


def fused_loss(relaxed: Relaxed, margins: Tensor, labels: Tensor) -> Tensor:
    """Bound the cross-entropy log sum_k exp(z_k - z_true) from above, (B,), by one row for any number of classes.

    margins (B, K) are upper bounds from intervals, elided. Each exp(m_k) lies below its chord over [l_k, u_k], so their
    sum lies below one linear function of the outputs, and that goes back (Xu et al. 2020, section 3.3, "loss fusion").
    Everything is divided by exp of the largest margin, so that nothing overflows.
    """
    true = labels.unsqueeze(1)
    largest = margins.detach().amax(1, keepdim=True)  # (B, 1), at least 0
    width = 2 * (margins - _center_margins(relaxed, true)).clamp(min=0)  # u - l
    top = (margins - largest).exp()  # (B, K)
    slope = (top * _mean_decay(width)).scatter(1, true, 0.0)
    constant = (top - slope * margins).sum(1, keepdim=True)
    rows = slope.scatter(1, true, -slope.sum(1, keepdim=True)).unsqueeze(1)  # (B, 1, K)
    total = bound_rows(relaxed, rows, constant).squeeze(1)
    return total.clamp(min=tiny(total.dtype)).log() + largest.squeeze(1)


def _mean_decay(width: Tensor) -> Tensor:
    """Return (1 - exp(-w)) / w, the slope of the chord of exp over [-w, 0]; 1 at w = 0."""
    small = width < 1e-4  # heuristic: training only
    safe = torch.where(small, torch.ones_like(width), width)
    return torch.where(small, 1 - width / 2, -torch.expm1(-safe) / safe)


def _center_margins(relaxed: Relaxed, true: Tensor) -> Tensor:
    """Return z_k - z_true (B, K), elided, at the centre of the bounds where the affine tail starts: in [l_k, u_k]."""
    tail = affine_tail(relaxed.program)
    value = relaxed.bounds[tail.start].center.contiguous()
    for node in tail.calls:
        step = relaxed.steps[node.name]
        if not isinstance(step, AffineStep):  # a tail is affine
            raise BoundError(f"{node.name} is not affine")
        value = step.apply(value, *step.arguments(value.shape[0]))
    return value - value.gather(1, true)


def _one_hot(classes: Tensor, outputs: int) -> Tensor:
    return torch.nn.functional.one_hot(classes, outputs)

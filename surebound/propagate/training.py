"""The training pass: clean outputs and worst-case margins in one walk, without rounding control."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from surebound.graph import Node, Program
from surebound.graph.program import resolve, resolve_kwargs
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.propagate.interval import apply_rule
from surebound.propagate.margins import Tail, affine_tail, margins_from
from surebound.rules import BatchNorm, Context, check_supported, find


@dataclass(frozen=True)
class TrainingPass:
    """What a training method needs of a batch; what was not asked for is None."""

    logits: Tensor | None  # (B, K), the clean outputs
    margins: Tensor | None  # (B, K), upper bounds of z_k - z_true; 0 in the true class's column
    pre_activations: tuple[Interval, ...]  # the bounds that enter each activation, in order, if recorded


def training_pass(
    program: Program,
    x: Tensor,
    labels: Tensor,
    eps: float,
    *,
    clip: tuple[float, float] | None = (0.0, 1.0),
    clean: bool = True,
    bounds: bool = True,
    elide: bool = True,
    batch_statistics: bool = False,
    stop_statistics: bool = False,
    record: bool = False,
) -> TrainingPass:
    """Clean logits and worst-case margins of a batch x (B, ...) with labels (B,) at radius ``eps``.

    batch_statistics: BatchNorm uses the statistics of the clean batch and updates its running ones, as
    nn.BatchNorm does in training mode; gradients flow through the statistics unless ``stop_statistics``.
    """
    check_supported(program.graph)
    tail = affine_tail(program) if elide else Tail(program.graph.output, ())
    statistics = _Statistics(program, stop_statistics) if batch_statistics else None
    walk = _Walk(program, tail, statistics, clean=clean, bounds=bounds, record=record)
    start = _ball(x, eps, clip) if bounds else None
    walk.run(x, start)
    margins = None
    if bounds:
        inside = walk.intervals[tail.start]
        margins = margins_from(program, tail, inside, labels, None, Soundness.NONE)
    return TrainingPass(
        walk.cleans.get(program.graph.output) if clean else None, margins, tuple(walk.recorded)
    )


def _ball(x: Tensor, eps: float, clip: tuple[float, float] | None) -> Interval:
    lower, upper = x - eps, x + eps
    if clip is not None:
        lower, upper = lower.clamp_(*clip), upper.clamp_(*clip)
    return Interval(lower, upper)


class _Statistics:
    """Batch statistics of the clean pass, standing in for the running ones."""

    def __init__(self, program: Program, stop: bool) -> None:
        self.program, self.stop = program, stop

    def replace(self, norm: BatchNorm, node: Node, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of a normalisation with mean and variance of its clean input args[0] (B, C, ...)."""
        clean = args[0]
        mean, var = norm.statistics(clean)
        self._update(
            node.args[norm.running].name, mean.detach(), var.detach(), clean.numel() // clean.shape[1]
        )
        if self.stop:
            mean, var = mean.detach(), var.detach()
        return norm.replace(args, mean, var)

    def _update(self, running_mean: str, mean: Tensor, var: Tensor, count: int) -> None:
        """Running statistics as nn.BatchNorm keeps them: exponential average, unbiased variance."""
        path = self.program.graph.parameters[running_mean].rpartition(".")[0]
        layer = self.program.module.get_submodule(path)
        if (
            not isinstance(layer, nn.modules.batchnorm._BatchNorm)
            or layer.running_mean is None
            or layer.running_var is None
        ):
            return
        if layer.num_batches_tracked is not None:
            layer.num_batches_tracked.add_(1)
        momentum = (
            layer.momentum if layer.momentum is not None else 1.0 / float(layer.num_batches_tracked or 1)
        )
        with torch.no_grad():
            layer.running_mean.lerp_(mean, momentum)
            layer.running_var.lerp_(var * (count / max(1, count - 1)), momentum)


class _Walk:
    """Runs the clean values and the bounds side by side, each only as far as somebody needs it."""

    def __init__(
        self,
        program: Program,
        tail: Tail,
        statistics: _Statistics | None,
        *,
        clean: bool,
        bounds: bool,
        record: bool,
    ) -> None:
        self.program, self.tail, self.statistics = program, tail, statistics
        self.clean, self.bounds, self.record = clean, bounds, record
        self.cleans: dict[str, Any] = {}
        self.intervals: dict[str, Any] = {}
        self.recorded: list[Interval] = []

    def run(self, x: Tensor, start: Interval | None) -> None:
        graph = self.program.graph
        constants: dict[str, Any] = self.program.parameters()
        self.cleans = {**constants, graph.input: x}
        self.intervals = {**constants, graph.input: start}
        tail = {node.name for node in self.tail.nodes}
        last_norm = self._last_norm()
        for position, (node, dying) in enumerate(zip(graph.nodes, graph.dying, strict=True)):
            need_clean = self.clean or position <= last_norm
            self._step(node, need_clean, self.bounds and node.name not in tail)
            for name in dying:
                if name != self.tail.start:
                    self.cleans.pop(name, None)
                    self.intervals.pop(name, None)

    def _last_norm(self) -> int:
        """The clean pass is needed at least up to the last BatchNorm whose statistics it gives."""
        if self.statistics is None:
            return -1
        norms = [i for i, node in enumerate(self.program.graph.nodes) if _norm(node) is not None]
        return max(norms, default=-1)

    def _step(self, node: Node, need_clean: bool, need_bounds: bool) -> None:
        if not node.varies:
            # Sizes are read off the clean value or, without a clean pass, off the bounds.
            env = (
                self.cleans
                if node.op != "aten.sym_size.int" or node.args[0].name in self.cleans
                else self.intervals
            )
            value = apply_rule(_CONTEXT, node, resolve(node.args, env), resolve_kwargs(node.kwargs, env))
            self.cleans[node.name] = self.intervals[node.name] = value
            return
        norm = _norm(node) if self.statistics is not None else None
        statistics: tuple[Any, ...] | None = None
        if self.statistics is not None and norm is not None:
            statistics = self.statistics.replace(norm, node, resolve(node.args, self.cleans))
        if need_clean and norm is not None and statistics is not None:
            self.cleans[node.name] = norm.apply(*statistics)
        elif need_clean:
            args = resolve(node.args, self.cleans)
            self.cleans[node.name] = node.target(*args, **resolve_kwargs(node.kwargs, self.cleans))
        if need_bounds:
            args = resolve(node.args, self.intervals)
            if statistics is not None:
                args = (args[0], *statistics[1:])
            if self.record:
                rule = find(node.op)
                if rule is not None and rule.activation is not None:
                    self.recorded.append(args[0])
            self.intervals[node.name] = apply_rule(
                _CONTEXT, node, args, resolve_kwargs(node.kwargs, self.intervals)
            )


_CONTEXT = Context(Soundness.NONE)


def _norm(node: Node) -> BatchNorm | None:
    rule = find(node.op) if node.varies else None
    return rule.batch_norm if rule is not None else None

"""The training pass: clean outputs and worst-case margins in one walk, without rounding control."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from surebound.errors import BoundError
from surebound.graph import Node, Program
from surebound.graph.program import Ref, resolve, resolve_kwargs
from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.propagate.constants import environment
from surebound.propagate.elision import Tail, affine_tail, margins_from
from surebound.propagate.interval import apply_rule
from surebound.rules import BatchNorm, Context, check_supported, find, fused

_CONTEXT = Context(Soundness.NONE)


@dataclass(frozen=True)
class TrainingPass:
    """What a training method needs of a batch; what was not asked for is None."""

    logits: Tensor | None  # (B, K), the clean outputs
    margins: Tensor | None  # (B, K), upper bounds of z_k - z_true; 0 in the true class's column
    pre_activations: tuple[Interval, ...]  # the bounds that enter each activation, in order, if recorded
    kept: Mapping[str, Interval] = field(default_factory=dict)  # the bounds of the values asked for, by name
    norms: Mapping[str, tuple[Tensor, Tensor]] = field(
        default_factory=dict
    )  # mean and variance that normalisations used instead of the running ones, by name of the call


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
    keep: Collection[str] = (),
    fast: bool = True,
) -> TrainingPass:
    """Clean logits and worst-case margins of a batch x (B, ...) with labels (B,) at radius ``eps``.

    batch_statistics: BatchNorm uses the statistics of the clean batch and updates its running ones, as
    nn.BatchNorm does in training mode; gradients flow through the statistics unless ``stop_statistics``.
    keep: names of values before the affine tail whose bounds are wanted (``TrainingPass.kept``).
    fast: use the fused column of the rules (``rules/fused.py``) where it has one; the same loss and gradients
    to rounding.
    """
    check_supported(program.graph)
    program.check_input(x)
    tail = affine_tail(program) if elide else Tail(program.graph.output, ())
    statistics = _Statistics(program, stop_statistics) if batch_statistics else None
    walk = _Walk(program, tail, statistics, clean=clean, bounds=bounds, record=record, fast=fast)
    walk.keep = frozenset(keep) | {tail.start}
    start = Joint(x, _ball(x, eps, clip) if bounds else None)
    values = walk.run(start)
    margins = None
    if bounds:
        inside = values[tail.start]
        margins = margins_from(program, tail, inside.interval, labels, None, Soundness.NONE)
    logits = values[program.graph.output].clean if clean else None
    kept = {name: values[name].interval for name in keep} if bounds else {}
    norms = statistics.used if statistics is not None else {}
    return TrainingPass(logits, margins, tuple(walk.recorded), kept, norms)


def _ball(x: Tensor, eps: float, clip: tuple[float, float] | None) -> Interval:
    lower, upper = x - eps, x + eps
    if clip is not None:
        lower, upper = lower.clamp_(*clip), upper.clamp_(*clip)
    return Interval(lower, upper)


class Joint:
    """The clean value of a batch and its bounds; stacked into one tensor of twice the batch where that is faster."""

    __slots__ = ("_both", "_clean", "_interval", "_radius")

    def __init__(self, clean: Tensor | None, interval: Interval | None) -> None:
        self._clean, self._interval = clean, interval
        self._both: Tensor | None = None
        self._radius: Tensor | None = None

    @classmethod
    def stacked(cls, both: Tensor, radius: Tensor) -> Joint:
        """both (2B, ...) clean values over centres, or (B, ...) centres alone; radius (B, ...)."""
        joint = cls(None, None)
        joint._both, joint._radius = both, radius
        return joint

    @property
    def clean(self) -> Tensor:
        if self._clean is None and self._both is not None and self._radius is not None:
            self._clean = self._both[: self._radius.shape[0]]
        if self._clean is None:
            raise BoundError("the clean value of a pass that asked for bounds only")
        return self._clean

    @property
    def interval(self) -> Interval:
        if self._interval is None and self._both is not None and self._radius is not None:
            self._interval = Interval.around(self._both[-self._radius.shape[0] :], self._radius)
        if self._interval is None:
            raise BoundError("the bounds of a pass that asked for clean values only")
        return self._interval

    def both(self, with_clean: bool) -> tuple[Tensor, Tensor]:
        """The stacked form."""
        if (
            self._both is None
            or self._radius is None
            or (not with_clean and self._both.shape != self._radius.shape)
        ):
            center, self._radius = self.interval.center, self.interval.radius
            self._both = torch.cat([self.clean, center]) if with_clean else center
        return self._both, self._radius

    @property
    def shape(self) -> torch.Size:
        if self._clean is not None:
            return self._clean.shape
        return self._radius.shape if self._radius is not None else self.interval.shape


class _Statistics:
    """Batch statistics of the clean pass, standing in for the running ones."""

    def __init__(self, program: Program, stop: bool) -> None:
        self.program, self.stop = program, stop
        self.used: dict[str, tuple[Tensor, Tensor]] = {}

    def replace(self, norm: BatchNorm, node: Node, clean: Tensor, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of a normalisation with mean and variance of its clean input (B, C, ...)."""
        mean, var = norm.statistics(clean)
        self._update(
            node.args[norm.running].name, mean.detach(), var.detach(), clean.numel() // clean.shape[1]
        )
        if self.stop:
            mean, var = mean.detach(), var.detach()
        self.used[node.name] = (mean, var)
        return norm.replace(args, mean, var)

    def _update(self, running_mean: str, mean: Tensor, var: Tensor, count: int) -> None:
        """Running statistics as nn.BatchNorm keeps them: exponential average, unbiased variance."""
        path = self.program.graph.parameters[running_mean].rpartition(".")[0]
        layer = self.program.module.get_submodule(path)
        if not isinstance(layer, nn.modules.batchnorm._BatchNorm):
            return
        if layer.running_mean is None or layer.running_var is None:
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
        fast: bool,
    ) -> None:
        self.program, self.tail, self.statistics = program, tail, statistics
        self.clean, self.bounds, self.record = clean, bounds, record
        self.fast = fast and bounds and program.graph.input_shape[0] is None
        self.recorded: list[Interval] = []
        self.keep = frozenset((tail.start,))
        self.after_relu: set[str] = set()
        self.doubled: dict[str, Any] = {}

    def run(self, start: Joint) -> dict[str, Any]:
        """Values by name: a Joint where the input is seen, the plain value elsewhere."""
        graph = self.program.graph
        env: dict[str, Any] = {**self.program.parameters(), graph.input: start}
        tail = {node.name for node in self.tail.nodes}
        norms = [i for i, node in enumerate(graph.nodes) if _norm(node) is not None]
        last_norm = max(norms, default=-1) if self.statistics is not None else -1
        for position, (node, dying) in enumerate(zip(graph.nodes, graph.dying, strict=True)):
            clean = self.clean or position <= last_norm
            bounds = self.bounds and node.name not in tail
            if not node.varies:
                env[node.name] = apply_rule(
                    _CONTEXT, node, resolve(node.args, env), resolve_kwargs(node.kwargs, env)
                )
            elif clean or bounds:
                env[node.name] = self._step(node, env, clean, bounds)
            for name in dying:
                if name not in self.keep:
                    env.pop(name, None)
        return env

    def _step(self, node: Node, env: dict[str, Any], clean: bool, bounds: bool) -> Joint:
        rule = find(node.op)
        if self.record and bounds and rule is not None and rule.activation is not None:
            self.recorded.append(resolve(node.args[0], env).interval)
        norm = _norm(node) if self.statistics is not None else None
        args = resolve(node.args, env)
        if self.statistics is not None and norm is not None:
            replaced = self.statistics.replace(norm, node, args[0].clean, args)
            if self.fast and bounds and isinstance(args[0], Joint):
                both, radius = args[0].both(clean)
                scale, shift, _ = norm.scale(len(radius.shape), *replaced[1:])
                return Joint.stacked(torch.addcmul(shift, both, scale), radius * scale.abs())
            value = norm.apply(args[0].clean, *replaced[1:]) if clean else None
            interval = apply_rule(_CONTEXT, node, (args[0].interval, *replaced[1:]), {}) if bounds else None
            return Joint(value, interval)
        if self.fast and bounds:
            quick = self._fused(node, env, args, clean)
            if quick is not None:
                return quick
        value = (
            node.target(*_part(args, "clean"), **_part(resolve_kwargs(node.kwargs, env), "clean"))
            if clean
            else None
        )
        interval = None
        if bounds:
            interval = apply_rule(
                _CONTEXT, node, _part(args, "interval"), _part(resolve_kwargs(node.kwargs, env), "interval")
            )
        if isinstance(interval, (tuple, list)):
            cleans = value if value is not None else [None] * len(interval)
            return tuple(Joint(c, i) for c, i in zip(cleans, interval, strict=True))  # type: ignore[return-value]
        if isinstance(value, (tuple, list)):
            return tuple(Joint(c, None) for c in value)  # type: ignore[return-value]
        return Joint(value, interval)

    def _fused(self, node: Node, env: dict[str, Any], args: tuple[Any, ...], clean: bool) -> Joint | None:
        """One call of the fused column, or None where it has nothing for this node."""
        x = args[0] if args else None
        if not isinstance(x, Joint) or any(isinstance(a, Joint) for a in args[1:]) or node.kwargs:
            return None
        if node.op in fused.RELU:
            self.after_relu.add(node.name)
            return Joint.stacked(*fused.relu(*x.both(clean)))
        source = node.args[0].name
        if node.op in fused.ROWWISE:
            both, radius = x.both(clean)
            if not self.doubled and clean:
                self.doubled = environment(self.program, both.shape[0])
            move = fused.ROWWISE[node.op]
            moved = move(both, *resolve(node.args[1:], {**env, **self.doubled} if clean else env))
            if node.shape is None or tuple(moved.shape) != (both.shape[0], *node.shape[1:]):
                return None
            if source in self.after_relu:
                self.after_relu.add(node.name)
            return Joint.stacked(moved, move(radius, *args[1:]))
        layer = fused.layer_of(node.op, args[3:]) if len(args) > 1 else None
        if layer is None or not isinstance(node.args[0], Ref):
            return None
        if node.op == "aten.linear.default" and len(x.shape) != 2:
            return None
        bias = args[2] if len(args) > 2 else None
        return Joint.stacked(*fused.weighted(*x.both(clean), args[1], bias, layer, source in self.after_relu))


def _part(value: Any, which: str) -> Any:
    """Replace every Joint by its clean value or its interval."""
    if isinstance(value, Joint):  # the fused column lays images out its own way; other operators may mind
        return (
            value.clean.contiguous() if which == "clean" else value.interval.select(torch.Tensor.contiguous)
        )
    if isinstance(value, tuple):
        return tuple(_part(item, which) for item in value)
    if isinstance(value, list):
        return [_part(item, which) for item in value]
    if isinstance(value, dict):
        return {key: _part(item, which) for key, item in value.items()}
    return value


def _norm(node: Node) -> BatchNorm | None:
    rule = find(node.op) if node.varies else None
    return rule.batch_norm if rule is not None else None

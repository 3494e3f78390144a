"""The training pass: outputs at one point and worst-case margins in one walk, without rounding control."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from surebound.bounds.constants import Constants, environment
from surebound.bounds.elision import Tail, affine_tail, margins_from
from surebound.bounds.first_sums import first_sums
from surebound.bounds.interval import apply_rule
from surebound.bounds.training.chains import Chain, plan
from surebound.bounds.training.joint import Joint
from surebound.errors import BoundError
from surebound.graph import Graph, Node, Program, once_per_graph
from surebound.graph.program import resolve, resolve_kwargs
from surebound.graph.walk import Env, forward
from surebound.interval import Interval, intersect
from surebound.kernels.balance import stable_moments
from surebound.norm_ball import Ball
from surebound.numerics import Soundness
from surebound.rules import BatchNorm, Context, check_supported, find, layer_of
from surebound.rules.fused import Block, run
from surebound.rules.scaling import Norm, Scaling

_CONTEXT = Context(Soundness.NONE)


@dataclass(frozen=True)
class Moments:
    """Sums over the units of a value, by their bounds; see kernels/balance.py."""

    units: int  # examples included
    sums: Tensor  # (8,), float64, differentiable

    @classmethod
    def of(cls, bounds: Interval) -> Moments:
        """Sum over the units of a value's bounds."""
        return cls(bounds.radius.numel(), stable_moments(bounds.center, bounds.radius))


#: Takes a part (B, C, ...) of a batch to the whole batch's mean (C,), biased variance (C,) and values per channel.
Statistics = Callable[[Tensor], tuple[Tensor, Tensor, int]]


@dataclass(frozen=True)
class TrainingPass:
    """Logits, margins and bounds of a batch; what was not asked for is None."""

    logits: Tensor | None  # (B, K), the outputs at the clean images, or at the point given instead
    margins: Tensor | None  # (B, K), upper bounds of z_k - z_true; 0 in the true class's column
    pre_activations: tuple[Moments, ...]  # of the bounds that enter each activation, if recorded
    kept: Mapping[str, Interval] = field(default_factory=dict)  # the bounds of the values asked for, by name
    norms: Mapping[str, tuple[Tensor, Tensor]] = field(
        default_factory=dict
    )  # mean and variance that normalisations used instead of the running ones, by name of the call

    @property
    def computed_margins(self) -> Tensor:
        """The margins (B, K) of a pass that was asked for bounds."""
        if self.margins is None:
            raise BoundError("the margins of a pass that asked for clean values only")
        return self.margins


def training_pass(
    program: Program,
    x: Tensor,
    labels: Tensor,
    eps: float,
    *,
    clip: tuple[float, float] | None = (0.0, 1.0),
    norm: int | None = None,
    point: Tensor | None = None,
    clean: bool = True,
    bounds: bool = True,
    elide: bool = True,
    batch_statistics: bool = False,
    statistics: Statistics | None = None,
    record: bool = False,
    keep: Collection[str] = (),
    fast: bool = True,
) -> TrainingPass:
    """Compute clean logits and worst-case margins of a batch x (B, ...) with labels (B,) at radius ``eps``.

    norm: 1 or 2, for balls of the norm l1 or l2: layers that sum the input itself are bounded by the dual norm, as in
    bounds/first_sums.py; None: l-infinity.
    point: inputs (B, ...), for example attacked ones, that take the place of the clean images: the logits are those
    there, and so are the statistics of the batch. The boxes stay around x.
    batch_statistics: BatchNorm uses the statistics of the clean batch and updates its running ones, as
    nn.BatchNorm does in training mode; gradients flow through the statistics.
    statistics: gives those of the whole batch where several processes share it; blocks then hold no BatchNorm.
    keep: names of values before the affine tail whose bounds are wanted (``TrainingPass.kept``); the statistics in
    ``TrainingPass.norms`` are then differentiable, too.
    fast: use the fused column of the rules (``rules/fused.py``) where it has one; the same loss and gradients
    to rounding.
    """
    check_supported(program.graph)
    program.check_input(x)
    tail = affine_tail(program) if elide else Tail(program.graph.output, ())
    batch = _Statistics(program, statistics) if batch_statistics else None
    visit = _Visitor(program, tail, batch, clean=clean, bounds=bounds, record=record, fast=fast)
    ball = _ball(x, eps, clip, norm) if bounds else None
    if isinstance(ball, Ball):
        skip = _changes if batch is not None else _never
        visit.sums = first_sums(Constants(program), ball, Soundness.NONE, skip=skip)
    values = visit.run(Joint(x if point is None else point, ball), keep)
    margins = None
    if bounds:
        inside = values[tail.start]
        margins = margins_from(program, tail, inside.interval, labels, None, Soundness.NONE)
    logits = values[program.graph.output].clean if clean else None
    kept = {name: values[name].interval for name in keep} if bounds else {}
    norms = batch.used if batch is not None else {}
    return TrainingPass(logits, margins, tuple(visit.recorded), kept, norms)


def _ball(x: Tensor, eps: float, clip: tuple[float, float] | None, norm: int | None) -> Interval:
    lower, upper = x - eps, x + eps
    if clip is not None:
        lower, upper = lower.clamp_(*clip), upper.clamp_(*clip)
    box = Interval(lower, upper)
    return box if norm is None or eps == 0 else Ball(box, x, eps, norm)


def _changes(node: Node) -> bool:
    """Does a call compute something else while the statistics of a batch are used?"""
    return _norm(node) is not None


def _never(_: Node) -> bool:
    return False


class _Statistics:
    """Batch statistics of the clean pass, standing in for the running ones."""

    def __init__(self, program: Program, shared: Statistics | None) -> None:
        self.program, self.shared = program, shared
        self.used: dict[str, tuple[Tensor, Tensor]] = {}

    def replace(self, norm: BatchNorm, node: Node, clean: Tensor, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Replace the statistics among a normalisation's arguments by those of its clean input (B, C, ...)."""
        if self.shared is not None:
            mean, var, count = self.shared(clean)
        else:
            (mean, var), count = norm.statistics(clean), clean.numel() // clean.shape[1]
        self._update(node, norm, mean.detach(), var.detach(), count)
        self.used[node.name] = (mean, var)
        return norm.replace(args, mean, var)

    def update(self, node: Node, norm: BatchNorm, used: Scaling) -> None:
        """Update the running statistics by those that a block has used."""
        self.used[node.name] = (used.mean, used.var)
        self._update(node, norm, used.mean, used.var, used.count)

    def _update(self, node: Node, norm: BatchNorm, mean: Tensor, var: Tensor, count: int) -> None:
        """Update running statistics as nn.BatchNorm does: exponential average, unbiased variance."""
        path = self.program.graph.parameters[node.args[norm.running].name].rpartition(".")[0]
        layer = self.program.module.get_submodule(path)
        if not isinstance(layer, nn.modules.batchnorm._BatchNorm):
            return
        if layer.running_mean is None or layer.running_var is None:
            return
        if layer.num_batches_tracked is not None:
            layer.num_batches_tracked.add_(1)
        momentum = layer.momentum if layer.momentum is not None else 1.0 / float(layer.num_batches_tracked or 1)
        with torch.no_grad():
            layer.running_mean.lerp_(mean, momentum)
            layer.running_var.lerp_(var * (count / max(1, count - 1)), momentum)


class _Visitor:
    """Computes clean values and bounds side by side, each only as far as it is needed."""

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
        self.outside = frozenset(node.name for node in tail.calls)
        self.normed = _until_last_norm(program.graph) if statistics is not None else frozenset()
        self.blocks: Mapping[str, Chain] = {}
        self.recorded: list[Moments] = []
        self.doubled: Env = {}
        self.sums: Mapping[str, Interval] = {}  # bounds of values over a ball of another norm, to intersect with

    def run(self, start: Joint, keep: Collection[str]) -> Env:
        """Compute values by name, those in ``keep`` among them: a Joint where they vary, the plain value elsewhere."""
        graph, wanted = self.program.graph, frozenset(keep) | {self.tail.start}
        norms = not keep and (self.statistics is None or self.statistics.shared is None)
        found = plan(graph, wanted.union(self.sums), self.outside, norms=norms, blocks=self.fast)
        self.blocks = found.blocks
        return forward(found.steps, {**self.program.parameters(), graph.input: start}, self._visit)

    def _visit(self, node: Node, env: Env) -> Any:
        value = self._value(node, env)
        if node.name not in self.sums or node.name in self.outside or not isinstance(value, Joint):
            return value
        clean = value.clean if self._wants_clean(node) else None
        return Joint(clean, intersect(value.interval, self.sums[node.name]))

    def _value(self, node: Node, env: Env) -> Any:
        if node.name in self.blocks:
            chain = self.blocks[node.name]
            return self._chain(chain, env[chain.calls[0].args[0].name], env)
        if not node.varies:
            return apply_rule(_CONTEXT, node, *node.arguments(env))
        clean, bounds = self._wants_clean(node), self.bounds and node.name not in self.outside
        return self._step(node, env, clean, bounds) if clean or bounds else None

    def _wants_clean(self, node: Node) -> bool:
        return self.clean or node.name in self.normed

    def _chain(self, chain: Chain, x: Joint, env: Env) -> Joint:
        """Run one block of the fused column."""
        clean = self._wants_clean(chain.calls[0])
        layer = None
        weight = bias = gamma = beta = on = order = norm = None
        if chain.layer is not None:
            _, weight, *rest = resolve((None, *chain.layer.args[1:]), env)
            bias, layer = (rest[0] if rest else None), layer_of(chain.layer, rest[1:])
            both, radius = x.narrow(clean)
            on, order = x.on, x.order
        else:
            both, radius = x.both(clean)
        column = _norm(chain.norm) if chain.norm is not None else None
        if chain.norm is not None and column is not None:
            gamma, beta, mean, var, eps = column.parts(resolve((None, *chain.norm.args[1:]), env))
            norm = Norm(eps, mean, var) if self.statistics is None else Norm(eps)
        block = Block(
            layer=layer,
            norm=norm,
            relu=chain.relu is not None,
            flat=chain.flatten is not None,
            keep_clean=self._wants_clean(chain.last),
            record=self.record and chain.relu is not None,
            on_in=on,
            order_in=order,
        )
        both, radius, sums = run(block, both, radius, weight, bias, gamma, beta)
        if block.record:
            self.recorded.append(Moments(block.units, sums))
        if self.statistics is not None and chain.norm is not None and column is not None and block.scaling:
            self.statistics.update(chain.norm, column, block.scaling)
        return Joint.stacked(both, radius, block.on, _channels(chain.last), block.order)

    def _step(self, node: Node, env: Env, clean: bool, bounds: bool) -> Joint:
        rule = find(node.op)
        if self.record and bounds and rule is not None and rule.activation is not None:
            self.recorded.append(Moments.of(resolve(node.args[0], env).interval))
        norm = _norm(node) if self.statistics is not None else None
        args = resolve(node.args, env)
        if self.statistics is not None and norm is not None:
            replaced = self.statistics.replace(norm, node, args[0].clean, args)
            value = norm.apply(args[0].clean, *replaced[1:]) if clean else None
            interval = apply_rule(_CONTEXT, node, (args[0].interval, *replaced[1:]), {}) if bounds else None
            return Joint(value, interval)
        if self.fast and bounds:
            quick = self._moved(node, env, args, clean) or self._stacked(node, args, clean)
            if quick is not None:
                return quick
        value = (
            node.target(*_part(args, "clean"), **_part(resolve_kwargs(node.kwargs, env), "clean")) if clean else None
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

    def _moved(self, node: Node, env: Env, args: tuple[Any, ...], clean: bool) -> Joint | None:
        """Run an operator that only moves entries on the stacked value; return None for any other."""
        x = args[0] if args else None
        if not isinstance(x, Joint) or any(isinstance(a, Joint) for a in args[1:]) or node.kwargs:
            return None
        rule = find(node.op)
        if rule is None or rule.move is None:
            return None
        move = rule.move.run
        if rule.move.channelwise:
            if len(args) > 1 and len(args[1]) > 2 * (len(x.shape) - 2):
                return None  # pads channels or examples
            both, radius = x.narrow(clean)
            return x.moved(move(both, *args[1:]), move(radius, *args[1:]))
        both, radius = x.both(clean)
        if not self.doubled and clean:
            self.doubled = environment(self.program, both.shape[0])
        moved = move(both, *resolve(node.args[1:], {**env, **self.doubled} if clean else env))
        if node.shape is None or tuple(moved.shape) != (both.shape[0], *node.shape[1:]):
            return None
        return Joint.stacked(moved, move(radius, *args[1:]))

    def _stacked(self, node: Node, args: tuple[Any, ...], clean: bool) -> Joint | None:
        """Run a sum or an average of varying operands on the stacked values; return None for any other operator."""
        rule, operands = find(node.op), [a for a in args if isinstance(a, Joint)]
        if rule is None or rule.stacks is None or node.kwargs or node.shape is None or node.shape[0] is not None:
            return None
        if rule.stacks.operands != len(operands) or any(len(x.shape) != len(operands[0].shape) for x in operands):
            return None  # a constant among them would add nothing to a radius
        parts = [x.both(clean) for x in operands]
        found = []
        for which in (0, 1):
            values = iter(part[which] for part in parts)
            found.append(rule.stacks.run(*(next(values) if isinstance(a, Joint) else a for a in args)))
        stacked = tuple(found[0].shape) == (parts[0][0].shape[0], *node.shape[1:])
        return Joint.stacked(found[0], found[1]) if stacked else None


def _part(value: Any, which: str) -> Any:
    """Replace every Joint by its clean value or its interval."""
    if isinstance(value, Joint):  # the fused column lays images out its own way; other operators may mind
        if which == "clean":
            return value.clean.contiguous()
        found: Any = value.interval
        # A tensor that only has a varying one's shape (ones_like) has no ends.
        return found.select(torch.Tensor.contiguous) if isinstance(found, Interval) else found
    if isinstance(value, tuple):
        return tuple(_part(item, which) for item in value)
    if isinstance(value, list):
        return [_part(item, which) for item in value]
    if isinstance(value, dict):
        return {key: _part(item, which) for key, item in value.items()}
    return value


def _channels(node: Node) -> int:
    """Count the channels of a value (B, C, ...)."""
    return (node.shape[1] if node.shape is not None else None) or 0


@once_per_graph
def _until_last_norm(graph: Graph) -> frozenset[str]:
    """Name the calls whose clean values the statistics of a batch need."""
    return graph.until_last(lambda node: _norm(node) is not None)


def _norm(node: Node) -> BatchNorm | None:
    rule = find(node.op) if node.varies else None
    return rule.batch_norm if rule is not None else None

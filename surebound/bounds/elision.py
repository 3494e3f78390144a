"""Elision: the trailing affine layers are merged into the specification before it is bounded (eq. 9)."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
import torch.utils.checkpoint
from torch import Tensor

from surebound.bounds.by_example import mixing
from surebound.bounds.constants import Constants, affine_in_one
from surebound.bounds.interval import apply_rule
from surebound.bounds.linear.backward import Form, Relaxed
from surebound.bounds.linear.steps import step_of
from surebound.errors import SpecError
from surebound.flags import exact_kernels
from surebound.graph import Graph, Node, Program
from surebound.graph.program import resolve
from surebound.graph.walk import forward, keeping
from surebound.interval import Interval
from surebound.norm_ball import Ball
from surebound.numerics import Soundness, nothing_known
from surebound.rules import Context, layer_of
from surebound.spec import LinearSpec, check_labels, classification

#: Most classes for which differences of all pairs of classes are cheaper than those of every example.
PAIRS_UP_TO = 32
#: Most numbers that a block of merged coefficients may hold (64 MiB of float32).
BLOCK_ENTRIES = 1 << 24


@dataclass(frozen=True)
class Tail:
    """The affine operators between a value and the output, in order of execution."""

    start: str
    calls: tuple[Node, ...]


#: The tail of each graph: every step of a training asks for the same.
_tails: WeakKeyDictionary[Graph, Tail] = WeakKeyDictionary()


def affine_tail(program: Program) -> Tail:
    """Return the chain of affine operators that ends in the output, as long as merging one more can tighten a bound.

    It does not start with an operator each of whose inputs reaches one output at most (flatten, an average over
    disjoint windows, a scaling): bounds on either side of such a one are the same, but its coefficients are more. And
    it stops where the coefficients of one example, classes times entries, would not fit into a block.
    """
    graph = program.graph
    if graph not in _tails:
        name, nodes, classes = graph.output, list[Node](), math.prod(_shape(graph, graph.output)[1:])
        known = Constants(program).of(1)
        while (node := graph.by_name.get(name)) is not None and node.varies:
            sources = graph.varying(node)
            if affine_in_one(node, sources) is None or not mixing(program).isdisjoint((name, *sources)):
                break
            if sources[0] in known:  # it has the input's shape, and nothing else of it, as after fill
                break
            if classes * math.prod(_shape(graph, sources[0])[1:]) > BLOCK_ENTRIES:
                break
            nodes.append(node)
            name = sources[0]
        while nodes and _gains_nothing(Constants(program), nodes[-1]):
            name = nodes.pop().name
        _tails[graph] = Tail(name, tuple(reversed(nodes)))
    return _tails[graph]


def _gains_nothing(constants: Constants, node: Node) -> bool:
    """Are bounds of rows over an affine call's operand the same as over its value? See ``Affine.keeps_apart``."""
    graph = constants.program.graph
    sources = graph.varying(node)
    affine, shape = affine_in_one(node, sources), _shape(graph, sources[0])
    if affine is None or not shape:
        return False
    rest, kwargs = constants.arguments(node, affine.position, shape[0])
    return affine.keeps_apart(shape, *rest, **kwargs)


def _shape(graph: Graph, name: str) -> tuple[int, ...]:
    """Return a value's shape, of one example where the network does not fix their number."""
    return tuple(n or 1 for n in graph.shape_of(name) or ())


def margins_from(
    program: Program,
    tail: Tail,
    inside: Interval,
    labels: Tensor | None,
    spec: LinearSpec | None,
    mode: Soundness,
) -> Tensor:
    """Bound margins by the bounds of the value where the tail starts."""
    batch, outputs = inside.shape[0], program.outputs
    check_one_of(labels, spec)
    if labels is not None:
        labels = check_labels(labels, batch, outputs)
        box = mode is Soundness.NONE and not isinstance(inside, Ball)
        fast = _plain_linear(program, tail) if box else None
        if fast is not None:
            return classification_margins(inside.center, inside.radius, fast[0], fast[1], labels)
        spec = classification(labels, outputs, inside.dtype)
    if spec is None:  # excluded above; for the type checker
        raise SpecError("no specification")
    c, d = spec.rows(batch, outputs)
    block = max(1, BLOCK_ENTRIES // max(1, c.shape[1] * math.prod(inside.shape[1:])))
    rows = [slice(i, i + block) for i in range(0, batch, block)] or [slice(0, 0)]
    upper = torch.cat([_block(program, tail, inside.take(i), c[i], d[i], mode) for i in rows])
    return upper if labels is None else upper.scatter(1, labels.unsqueeze(1), 0.0)


def _block(program: Program, tail: Tail, inside: Interval, c: Tensor, d: Tensor, mode: Soundness) -> Tensor:
    """Bound the rows (B, S) of some examples."""
    constants = Constants(program)
    with nullcontext() if mode is Soundness.NONE else exact_kernels():
        bounds = _through(constants, tail, inside, mode)
        steps = {node.name: step_of(constants, node, bounds, mode) for node in tail.calls}
        return merged_margins(Relaxed(program, mode, constants, bounds, steps), tail, c, d)


def merged_margins(relaxed: Relaxed, tail: Tail, c: Tensor, d: Tensor) -> Tensor:
    """Bound c.z + d from above, (B, S), by the bounds where the tail starts, with the tail merged into c.

    In the sound modes never above those from the bounds of the output.
    """
    sound = relaxed.mode is not Soundness.NONE
    with exact_kernels() if sound else nullcontext():
        output, a, offset = relaxed.query(c, d)
        form = relaxed.pull(output, a, offset, stop=tail.start)  # docs/soundness.md, Lemma 2
        upper = relaxed.upper(form, at=tail.start)
        if not sound:
            return upper.t()
        if tail.calls:
            upper = torch.fmin(upper, relaxed.upper(Form(a, offset, {}), at=output))
    return nothing_known(upper).t()


def _through(constants: Constants, tail: Tail, inside: Interval, mode: Soundness) -> dict[str, Interval]:
    """Bound every value of the tail by intervals."""
    ctx, env = Context(mode), {**constants.of(inside.shape[0]), tail.start: inside}
    forward(keeping(tail.calls), env, lambda node, env: apply_rule(ctx, node, *node.arguments(env)))
    return {name: env[name] for name in (tail.start, *(node.name for node in tail.calls))}


def check_one_of(labels: Tensor | None, spec: LinearSpec | None) -> None:
    """Refuse anything but exactly one of labels and specification."""
    if (labels is None) == (spec is None):
        raise SpecError("give either labels or spec=LinearSpec(...), not both and not neither")


def _plain_linear(program: Program, tail: Tail) -> tuple[Tensor, Tensor | None] | None:
    """Return weight and bias if the tail is one fully connected layer: the case that training meets at every step."""
    layer = layer_of(tail.calls[0], tail.calls[0].args[3:]) if len(tail.calls) == 1 else None
    if layer is None or not layer.matrix:
        return None
    values = resolve(tail.calls[0].args, {**program.parameters(), tail.start: None})
    return values[1], values[2] if len(values) > 2 else None


def classification_margins(
    center: Tensor, radius: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor
) -> Tensor:
    """Bound elided margins of a last layer z = W h + b: (W_k - W_true) mu + |W_k - W_true| r + b_k - b_true, (B, K).

    center, radius (B, F); weight (K, F). Blocks keep at most BLOCK_ENTRIES merged coefficients at a time,
    recomputed in the backward pass when there is more than one block.
    """
    logits = torch.nn.functional.linear(center, weight, bias)
    nominal = logits - logits.gather(1, labels.unsqueeze(1))
    per_example = weight.numel()
    block = max(1, BLOCK_ENTRIES // per_example)
    if center.shape[0] <= block:
        return nominal + _spread(radius, weight, labels)
    parts = [
        torch.utils.checkpoint.checkpoint(
            _spread, radius[i : i + block], weight, labels[i : i + block], use_reentrant=False
        )
        for i in range(0, center.shape[0], block)
    ]
    return nominal + torch.cat(parts)


def _spread(radius: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Return |W_k - W_true| r for every class: (B, K)."""
    classes, units = weight.shape
    if classes <= min(PAIRS_UP_TO, len(labels)):
        pairs = (weight.unsqueeze(0) - weight.unsqueeze(1)).abs()  # (K, K, F), the true class first
        every = (radius @ pairs.view(-1, units).t()).view(-1, classes, classes)  # (B, K, K)
        return every.gather(1, labels.view(-1, 1, 1).expand(-1, 1, classes)).squeeze(1)
    merged = (weight.unsqueeze(0) - weight[labels].unsqueeze(1)).abs()  # (B, K, F)
    return torch.bmm(merged, radius.unsqueeze(2)).squeeze(2)

"""Upper bounds of c.z + d, with the trailing affine layers merged into the specification ("elision", eq. 9)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor, nn

from surebound.errors import SpecError
from surebound.graph import Node, Program, program_of
from surebound.graph.program import Ref, resolve, resolve_kwargs
from surebound.interval import Interval
from surebound.numerics import Soundness, exact_kernels, gamma, no_information, tiny
from surebound.propagate.interval import apply_rule, propagate
from surebound.region import Region
from surebound.rules import Affine, Context, describe, find
from surebound.spec import LinearSpec, check_labels, classification

#: Most numbers that a block of merged coefficients may hold (64 MiB of float32).
BLOCK_ENTRIES = 1 << 24


def worst_margins(
    model: nn.Module | Program,
    region: Region,
    labels: Tensor | None = None,
    *,
    spec: LinearSpec | None = None,
    soundness: Soundness | str = Soundness.DEPLOYED,
    elide: bool = True,
) -> Tensor:
    """Upper bounds of z_k - z_true (B, K), 0 in the true class's column, or of any c.z + d (B, S).

    requirement: outputs of shape (B, K); give labels (B,) or a LinearSpec
    return:      proved robust where every bound is <= 0 (``numerics.proved``)
    property:    sound for the executions that ``soundness`` names; not complete; never looser than without elision
    reference:   Gowal et al. 2018, eq. 8-9

    >>> from surebound.region import LinfBall
    >>> net = nn.Linear(2, 2, bias=False)
    >>> _ = net.weight.data.copy_(torch.tensor([[1.0, 1.0], [1.0, 0.0]]))
    >>> worst_margins(net, LinfBall(torch.zeros(1, 2), eps=1), torch.tensor([1]), soundness="none").tolist()
    [[1.0, 0.0]]
    """
    mode = Soundness.of(soundness)
    program = program_of(model, region.reference)
    start = region.interval(mode)
    tail = affine_tail(program) if elide else Tail(program.graph.output, ())
    inside = propagate(program, start, mode, stop=tail.start)
    return margins_from(program, tail, inside, labels, spec, mode)


@dataclass(frozen=True)
class Tail:
    """The affine operators between a value and the output, in order of execution."""

    start: str
    nodes: tuple[Node, ...]


def affine_tail(program: Program) -> Tail:
    """The longest chain of affine operators that ends in the output."""
    graph = program.graph
    name, nodes = graph.output, []
    while (node := graph.by_name.get(name)) is not None and node.varies:
        rule = find(node.op)
        sources = [r for r in dict.fromkeys(node.refs()) if r == graph.input or _varies(program, r)]
        if (
            rule is None
            or rule.affine is None
            or len(sources) != 1
            or list(node.refs()).count(sources[0]) != 1
        ):
            break
        if not (len(node.args) > rule.affine.position and node.args[rule.affine.position] == Ref(sources[0])):
            break
        nodes.append(node)
        name = sources[0]
    return Tail(name, tuple(reversed(nodes)))


def _varies(program: Program, name: str) -> bool:
    node = program.graph.by_name.get(name)
    return node is not None and node.varies


def margins_from(
    program: Program,
    tail: Tail,
    inside: Interval,
    labels: Tensor | None,
    spec: LinearSpec | None,
    mode: Soundness,
) -> Tensor:
    """Margins from bounds of the value where the tail starts."""
    if (labels is None) == (spec is None):
        raise SpecError("give either labels or spec=LinearSpec(...), not both and not neither")
    batch, outputs = inside.shape[0], _outputs(program, inside)
    if labels is not None:
        labels = check_labels(labels, batch, outputs)
        fast = _plain_linear(program, tail) if mode is Soundness.NONE else None
        if fast is not None:
            return classification_margins(inside.center, inside.radius, fast[0], fast[1], labels)
        spec = classification(labels, outputs, inside.dtype)
    if spec is None:  # excluded above; for the type checker
        raise SpecError("no specification")
    c, d = spec.rows(batch, outputs)
    c, d = c.to(inside.lower), d.to(inside.lower)
    block = max(1, BLOCK_ENTRIES // max(1, c.shape[1] * math.prod(inside.shape[1:])))
    rows = [slice(i, i + block) for i in range(0, batch, block)] or [slice(0, 0)]
    upper = torch.cat(
        [_block(program, tail, inside.select(lambda v, i=i: v[i]), c[i], d[i], mode) for i in rows]
    )
    return upper if labels is None else upper.scatter(1, labels.unsqueeze(1), 0.0)


def _block(program: Program, tail: Tail, inside: Interval, c: Tensor, d: Tensor, mode: Soundness) -> Tensor:
    """Margins (B, S) of some examples: the merged bound, in the sound modes never above the unmerged one."""
    if mode is Soundness.NONE:
        return _merged(program, tail, _through(program, tail, inside, mode), c, d, mode)
    with exact_kernels():
        bounds = _through(program, tail, inside, mode)
        upper = _merged(program, tail, bounds, c, d, mode)
        if tail.nodes:
            upper = torch.fmin(upper, _merged(program, Tail(program.graph.output, ()), bounds, c, d, mode))
    return no_information(upper, upper)[1]


def _through(program: Program, tail: Tail, inside: Interval, mode: Soundness) -> dict[str, Interval]:
    """Interval bounds of every value of the tail."""
    env, bounds = environment(program, inside.shape[0]), {tail.start: inside}
    for node in tail.nodes:
        local = {**env, **bounds}
        bounds[node.name] = apply_rule(
            Context(mode), node, resolve(node.args, local), resolve_kwargs(node.kwargs, local)
        )
    return bounds


def environment(program: Program, batch: int) -> dict[str, Any]:
    """Parameters, and the values of the calls that no input value reaches, for a batch of this size."""
    env: dict[str, Any] = program.parameters()
    shapes = {
        program.graph.input: program.graph.input_shape,
        **{n.name: n.shape for n in program.graph.nodes},
    }
    for node in program.graph.nodes:
        if node.op == "aten.sym_size.int":
            size = (shapes[node.args[0].name] or ())[node.args[1]]
            env[node.name] = batch if size is None else size
        elif not node.varies:
            env[node.name] = node.target(*resolve(node.args, env), **resolve_kwargs(node.kwargs, env))
    return env


def _outputs(program: Program, inside: Interval) -> int:
    node = program.graph.by_name.get(program.graph.output)
    shape = node.shape if node is not None else tuple(inside.shape)
    if shape is None or len(shape) != 2 or shape[1] is None:
        raise SpecError(
            f"the network's output has shape {shape}; specifications need (B, K): flatten the output"
        )
    return shape[1]


def _plain_linear(program: Program, tail: Tail) -> tuple[Tensor, Tensor | None] | None:
    """Weight and bias if the tail is one fully connected layer: the case that training meets at every step."""
    if len(tail.nodes) != 1 or tail.nodes[0].op != "aten.linear.default":
        return None
    values = resolve(tail.nodes[0].args, {**program.parameters(), tail.start: None})
    return values[1], values[2] if len(values) > 2 else None


def classification_margins(
    center: Tensor, radius: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor
) -> Tensor:
    """Elided margins of a last layer z = W h + b: (W_k - W_true) mu + |W_k - W_true| r + b_k - b_true, (B, K).

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
    """|W_k - W_true| r for every class: (B, K)."""
    merged = (weight.unsqueeze(0) - weight[labels].unsqueeze(1)).abs()  # (B, K, F)
    return torch.bmm(merged, radius.unsqueeze(2)).squeeze(2)


def _merged(
    program: Program, tail: Tail, bounds: dict[str, Interval], c: Tensor, d: Tensor, mode: Soundness
) -> Tensor:
    """c.z + d over the tail, c merged backwards through it; (B, S). See docs/soundness.md, Lemma 2."""
    a = c.transpose(0, 1)  # (S, B, *value)
    offset = d.transpose(0, 1).double()  # (S, B), as is the error
    error = torch.zeros_like(offset)
    env, single = environment(program, c.shape[0]), environment(program, 1)
    for node in reversed(tail.nodes):
        affine = affine_facts(node)
        source = node.args[affine.position].name
        value = bounds[source]
        rest = tuple(resolve(v, env) for i, v in enumerate(node.args) if i != affine.position)
        kwargs = resolve_kwargs(node.kwargs, env)
        zero = torch.zeros((1, *value.shape[1:]), dtype=value.dtype, device=value.device)
        constant = node.target(
            *resolve(node.args, {**single, source: zero}), **resolve_kwargs(node.kwargs, single)
        )
        offset = offset + _dot(a, constant.unsqueeze(0))
        terms, back = affine.terms(*rest, **kwargs), affine.adjoint_terms(*rest, **kwargs)
        if mode is not Soundness.NONE and (terms or back):
            size = affine.magnitude(value.magnitude, *rest, **kwargs)
            # The network's own rounding (DEPLOYED), that of the constant, and that of the merged coefficients.
            rate = gamma(terms + 2, a.dtype) * (2 if mode is Soundness.DEPLOYED else 1) + gamma(
                back + 2, a.dtype
            )
            rate += 2 * gamma(math.prod(a.shape[2:]) + 4, torch.float64)
            error = (
                error
                + _dot(a.abs(), size.unsqueeze(0)) * (rate * (1 + 2.0**-10))
                + _underflow(a, terms + back, size)
            )
        a = affine.adjoint(a, value.shape, *rest, **kwargs)
    upper = _evaluate(a, bounds[tail.start], offset, error, mode)
    upper = upper.to(c.dtype) if mode is Soundness.NONE else _round_up(upper, c.dtype)
    return upper.transpose(0, 1)


def affine_facts(node: Node) -> Affine:
    """The affine column of a node that ``affine_tail`` chose."""
    rule = find(node.op)
    if rule is None or rule.affine is None:
        raise SpecError(f"{describe(node)} is not affine and cannot be merged into a specification")
    return rule.affine


def _underflow(a: Tensor, terms: int, size: Tensor) -> Tensor:
    """Underflow of the products of one layer: tiny per term, seen through the coefficients."""
    flat = a.abs().flatten(2).sum(2, dtype=torch.float64)
    return (flat + math.prod(a.shape[2:])) * (
        8.0 * (terms + 1) * tiny(a.dtype) * (1 + float(size.detach().max()))
    )


def _dot(a: Tensor, value: Tensor) -> Tensor:
    """Sum over all but the first two axes, in float64: (S, B)."""
    if a.dim() == 2:
        return a.double() * value.double()
    return (a.double() * value.double()).flatten(2).sum(2)


def _evaluate(a: Tensor, inside: Interval, offset: Tensor, error: Tensor, mode: Soundness) -> Tensor:
    """max over the box of a.x + offset + error, in float64 with its rounding paid: (S, B)."""
    lower, upper = inside.lower.double().unsqueeze(0), inside.upper.double().unsqueeze(0)
    wide = a.double()
    best = torch.where(wide >= 0, wide * upper, wide * lower)
    # A coefficient of 0 contributes nothing even where the bound is infinite.
    best = torch.where(wide == 0, torch.zeros_like(best), best).flatten(2).sum(2)
    if mode is Soundness.NONE:
        return best + offset
    size = (wide.abs() * inside.magnitude.double().unsqueeze(0)).flatten(2).sum(2) + offset.abs() + error
    terms = math.prod(a.shape[2:]) + 16
    return best + offset + error * (1 + 2.0**-20) + size * (4 * gamma(terms, torch.float64))


def _round_up(value: Tensor, dtype: torch.dtype) -> Tensor:
    nearest = value.to(dtype)
    return torch.where(
        nearest.double() < value, torch.nextafter(nearest, torch.full_like(nearest, math.inf)), nearest
    )

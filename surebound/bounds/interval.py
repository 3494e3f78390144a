"""Interval bound propagation: walk a Program and apply the interval column of the rules (Gowal et al. 2018, eq. 5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from surebound.bounds.constants import Constants
from surebound.bounds.first_sums import first_sums
from surebound.errors import BoundError, SureboundError
from surebound.flags import exact_kernels
from surebound.graph import Graph, Node, Program, once_per_graph, program_of
from surebound.graph.program import Ref
from surebound.graph.walk import Env, forward
from surebound.interval import Interval, intersect
from surebound.norm_ball import Ball
from surebound.numerics import Soundness, no_information
from surebound.region import Region, check_region
from surebound.rules import Context, check_supported, describe, find
from surebound.rules.facts import Memory
from surebound.rules.owned import Owned

Observer = Callable[[Node, Any], None]


def interval_bounds(
    model: nn.Module | Program, region: Region, soundness: Soundness | str = Soundness.DEPLOYED
) -> Interval:
    """Bound every output over the region by intervals.

    requirement: every operator that touches the input has a rule (``surebound ops``)
    return:      Interval of the output's shape; differentiable in the module's live parameters
    property:    sound for the executions that ``soundness`` names; not complete
    reference:   Gowal et al. 2018, eq. 5-7

    >>> from surebound.region import LinfBall
    >>> net = nn.Linear(2, 1, bias=False)
    >>> _ = net.weight.data.copy_(torch.tensor([[1.0, -2.0]]))
    >>> interval_bounds(net, LinfBall(torch.zeros(1, 2), eps=1), soundness="none").upper.item()
    3.0
    """
    mode = Soundness.of(soundness)
    check_region(region)
    program = program_of(model, region.reference)
    result = propagate(program, _start(region, mode), mode)
    if mode is Soundness.NONE:
        return result
    return Interval(*no_information(result.lower, result.upper))


def _start(region: Region, mode: Soundness) -> Interval:
    """Return the bounds of the input, to be overwritten if their memory is their own; nobody else may hold them."""
    bounds = region.interval(mode)
    return Owned.taking(bounds) if region.makes_memory else bounds


def propagate(
    program: Program,
    start: Interval,
    soundness: Soundness,
    stop: str | None = None,
    observe: Observer | None = None,
) -> Interval:
    """Bound the value named ``stop`` (the output by default) from bounds of the input.

    ``observe`` sees every varying node with its bounds. Values are dropped when the last reader has read them; a
    ``start`` that is ``Owned`` is overwritten where that saves memory.
    """
    check_supported(program.graph)
    program.check_input(start.center if start.centered else start.lower)
    if soundness is Soundness.NONE:
        return _propagated(program, start, soundness, stop or program.graph.output, observe)
    with exact_kernels():
        return _propagated(program, start, soundness, stop or program.graph.output, observe)


def _propagated(
    program: Program, start: Interval, soundness: Soundness, target: str, observe: Observer | None
) -> Interval:
    graph, ctx = program.graph, Context(soundness)
    env: Env = program.parameters()
    free: frozenset[str] = frozenset()
    if observe is None and not _wants_gradient(env, start):
        free = overwriting_all(graph) if isinstance(start, Owned) else overwriting(graph)
    env[graph.input] = _given_back(start)
    known = first_sums(Constants(program), start, soundness) if isinstance(start, Ball) else {}

    def visit(node: Node, env: Env) -> Any:
        if node.name in free:
            value = _overwriting_step(ctx, node, env)
            return intersect(value, known[node.name]) if node.name in known else value
        value = apply_rule(ctx, node, *node.arguments(env))
        if node.name in known:
            value = intersect(value, known[node.name])
        if observe is not None and node.varies:
            observe(node, value)
        return value

    result = forward(graph.steps, env, visit, target)[target]
    if isinstance(result, Tensor):  # the network ignores its input
        return Interval.point(result)
    if not isinstance(result, Interval):
        raise BoundError(f"{target} is {type(result).__name__}, not a tensor; no bound exists")
    return result


def _overwriting_step(ctx: Context, node: Node, env: Env) -> Any:
    """Apply the rule of a call that may overwrite its first argument, of which it then holds the only reference."""
    first = node.args[0].name
    if isinstance(env[first], Interval):
        env[first] = Owned.taking(env[first])
    args, kwargs = node.arguments(env)
    del env[first]
    return _given_back(apply_rule(ctx, node, args, kwargs))


def _given_back(value: Any) -> Any:
    """Return a rule's result as plain bounds, for any number of readers, if the rule gave owned ones back."""
    kind = type(value)  # exact types: this runs for every call
    if kind is Owned:
        return value.given_back()
    if kind is tuple or kind is list:
        return kind(_given_back(item) for item in value)
    return value


@once_per_graph
def overwriting(graph: Graph) -> frozenset[str]:
    """Name the calls that may overwrite their first argument: they are its only reader, and its memory is its own.

    Products make new memory; activations, BatchNorm and reshapings pass on what they were given or make new memory.
    Of everything else nothing is known, so nothing is overwritten.
    """
    return _overwriting(graph, set())


@once_per_graph
def overwriting_all(graph: Graph) -> frozenset[str]:
    """Name the calls that may overwrite their first argument when the bounds of the input may be overwritten too."""
    return _overwriting(graph, {graph.input})


def _overwriting(graph: Graph, owned: set[str]) -> frozenset[str]:
    # A size is read before the value is overwritten or not at all: then the value does not die here.
    reads = Counter(name for node in graph.calls(lambda node: not node.is_size) for name in node.refs())
    calls: set[str] = set()
    for node, dying in graph.steps:
        rule = find(node.op) if node.varies else None
        if rule is None or not node.args or not isinstance(node.args[0], Ref):
            continue
        first = node.args[0].name
        if first in owned and reads[first] == 1 and first in dying:
            calls.add(node.name)
        if rule.memory is Memory.OWN or (rule.memory is Memory.VIEW and node.name in calls):
            owned.add(node.name)
    return frozenset(calls)


def _wants_gradient(values: Env, start: Interval) -> bool:
    if not torch.is_grad_enabled():
        return False
    return start.lower.requires_grad or any(isinstance(v, Tensor) and v.requires_grad for v in values.values())


def apply_rule(ctx: Context, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run one call: the operator itself where nothing varies, its interval rule where something does.

    A call that reads the input only for its shape (``zeros_like``) gives a plain tensor, and so do calls on that.
    """
    if not node.varies or not (
        (args and isinstance(args[0], Interval)) or _has_interval((args, tuple(kwargs.values())))
    ):
        if node.is_size:
            return args[0].shape[args[1]]
        return node.target(*args, **kwargs)
    if node.is_part:
        return args[0][args[1]]
    rule = find(node.op)
    if rule is None:  # check_supported has run; only a caller that skips it comes here
        raise BoundError(f"no rule for {describe(node)}")
    try:
        return rule.interval(ctx, *args, **kwargs)
    except BoundError as error:
        raise type(error)(f"{error} ({describe(node)})") from error
    except SureboundError:
        raise
    except TypeError as error:
        raise BoundError(f"the rule does not cover this use of the operator: {error} ({describe(node)})") from error


def _has_interval(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(_has_interval(item) for item in value)
    return isinstance(value, Interval)

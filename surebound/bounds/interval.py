"""Interval bound propagation: walk a Program and apply the interval column of the rules (Gowal et al. 2018, eq. 5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from surebound.errors import BoundError, SureboundError
from surebound.flags import exact_kernels
from surebound.graph import Graph, Node, Program, once_per_graph, program_of
from surebound.graph.program import Ref, resolve, resolve_kwargs
from surebound.interval import Interval
from surebound.numerics import Soundness, no_information
from surebound.region import Region, check_region
from surebound.rules import Context, check_supported, describe, find
from surebound.rules.facts import Memory

Observer = Callable[[Node, Any], None]
_SIZE = "aten.sym_size.int"


def interval_bounds(
    model: nn.Module | Program, region: Region, soundness: Soundness | str = Soundness.DEPLOYED
) -> Interval:
    """Bounds of every output over the region.

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
    result = propagate(program, region.interval(mode), mode, consume=region.makes_memory)
    if mode is Soundness.NONE:
        return result
    return Interval(*no_information(result.lower, result.upper))


def propagate(
    program: Program,
    start: Interval,
    soundness: Soundness,
    stop: str | None = None,
    observe: Observer | None = None,
    *,
    consume: bool = False,
) -> Interval:
    """Bounds of the value named ``stop`` (the output by default) from bounds of the input.

    ``observe`` sees every varying node with its bounds. Values are dropped when the last reader has read them;
    ``consume`` allows it to overwrite ``start``.
    """
    check_supported(program.graph)
    program.check_input(start.center if start.centered else start.lower)
    if soundness is Soundness.NONE:
        return _walk(program, start, soundness, stop, observe, consume)
    with exact_kernels():
        return _walk(program, start, soundness, stop, observe, consume)


def _walk(
    program: Program,
    start: Interval,
    soundness: Soundness,
    stop: str | None,
    observe: Observer | None,
    consume: bool,
) -> Interval:
    graph, shared, mine = program.graph, Context(soundness), Context(soundness, owned=True)
    env: dict[str, Any] = program.parameters()
    env[graph.input] = start
    target = stop or graph.output
    may_overwrite = observe is None and not _wants_gradient(env, start)
    free = (overwriting_all(graph) if consume else overwriting(graph)) if may_overwrite else frozenset()
    for node, dying in zip(graph.nodes, graph.dying, strict=True):
        if target in env:
            break
        ctx = mine if node.name in free else shared
        env[node.name] = apply_rule(ctx, node, resolve(node.args, env), resolve_kwargs(node.kwargs, env))
        if observe is not None and node.varies:
            observe(node, env[node.name])
        for name in dying:
            if name != target:
                del env[name]
    result = env[target]
    if isinstance(result, Tensor):  # the network ignores its input
        return Interval.point(result)
    if not isinstance(result, Interval):
        raise BoundError(f"{target} is {type(result).__name__}, not a tensor; no bound exists")
    return result


@once_per_graph
def overwriting(graph: Graph) -> frozenset[str]:
    """The calls that may overwrite their first argument: they are its only reader, and its memory is its own.

    Products make new memory; activations, BatchNorm and reshapings pass on what they were given or make new memory.
    Of everything else nothing is known, so nothing is overwritten.
    """
    return _overwriting(graph, set())


@once_per_graph
def overwriting_all(graph: Graph) -> frozenset[str]:
    """``overwriting`` when the bounds of the input may be overwritten too."""
    return _overwriting(graph, {graph.input})


def _overwriting(graph: Graph, owned: set[str]) -> frozenset[str]:
    # A size is read before the value is overwritten or not at all: then the value does not die here.
    reads = Counter(name for node in graph.nodes if node.op != _SIZE for name in node.refs())
    calls: set[str] = set()
    for node, dying in zip(graph.nodes, graph.dying, strict=True):
        rule = find(node.op) if node.varies else None
        if rule is None or not node.args or not isinstance(node.args[0], Ref):
            continue
        first = node.args[0].name
        if first in owned and reads[first] == 1 and first in dying:
            calls.add(node.name)
        if rule.memory is Memory.OWN or (rule.memory is Memory.VIEW and node.name in calls):
            owned.add(node.name)
    return frozenset(calls)


def _wants_gradient(values: dict[str, Any], start: Interval) -> bool:
    if not torch.is_grad_enabled():
        return False
    return start.lower.requires_grad or any(
        isinstance(v, Tensor) and v.requires_grad for v in values.values()
    )


def apply_rule(ctx: Context, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One step: the operator itself where nothing varies, its interval rule where something does.

    A call that reads the input only for its shape (``zeros_like``) gives a plain tensor, and so do calls on that.
    """
    if not node.varies or not (
        (args and type(args[0]) is Interval) or _has_interval((args, tuple(kwargs.values())))
    ):
        if node.op == _SIZE:
            return args[0].shape[args[1]]
        return node.target(*args, **kwargs)
    if node.op == "getitem":
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
        raise BoundError(
            f"the rule does not cover this use of the operator: {error} ({describe(node)})"
        ) from error


def _has_interval(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(_has_interval(item) for item in value)
    return isinstance(value, Interval)


def box_of(interval: Interval) -> tuple[Tensor, Tensor]:
    """Ends without gradients, for callers that only read numbers."""
    with torch.no_grad():
        return interval.lower.detach(), interval.upper.detach()

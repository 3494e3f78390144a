"""The loops over the calls of a graph. They know no method: a method is what it does at one call, a visitor."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from surebound.graph.program import Node

Value = TypeVar("Value")

#: The values known so far by name: of parameters, constants, the input and calls; whatever a method computes with.
Env = dict[str, Any]
#: Computes a call's value from the environment; None if the method gives it none.
Visit = Callable[["Node", Env], Any]
#: Calls in the order of execution, each with the values that are not read after it.
Steps = tuple[tuple["Node", tuple[str, ...]], ...]


def forward(steps: Steps, env: Env, visit: Visit, stop: str | None = None) -> Env:
    """Compute the value of every call from the input to ``stop`` and drop each after its last reader.

    A call whose value ``env`` holds from the start is not visited. Returns ``env``, which is overwritten.
    """
    for node, dying in steps:
        if stop in env:
            break
        if node.name not in env:
            env[node.name] = visit(node, env)  # no name of our own: whoever overwrites a value holds all of it
            if env[node.name] is None:
                del env[node.name]
        for name in dying:
            env.pop(name, None)
    return env


def backward(
    steps: Steps,
    found: dict[str, Value],
    visit: Callable[[Node, Value], Iterable[tuple[str, Value]]],
    add: Callable[[str, Value, Value], Value],
    stop: str,
) -> dict[str, Value]:
    """Take what is known about the values ``found`` back to ``stop``, call by call from the last to the first.

    ``visit`` turns what is known about a call's value into what is known about its operands, as pairs; ``add`` joins
    what comes to one operand from several places. Returns ``found``, which is overwritten.
    """
    for node, _ in reversed(steps):
        if node.name == stop or node.name not in found:
            continue
        for source, value in visit(node, found.pop(node.name)):
            found[source] = add(source, found[source], value) if source in found else value
    return found


def freeing(
    nodes: Iterable[Node], keep: Collection[str], reads: Callable[[Node], Iterable[str]] | None = None
) -> Steps:
    """Pair calls with the values that they are the last to read, but for those in ``keep``.

    reads: the values that a call reads; by default those that its arguments name.
    """
    calls = list(nodes)
    last: dict[str, int] = {}
    for position, node in enumerate(calls):
        for name in node.refs() if reads is None else reads(node):
            last[name] = position
    dying: list[list[str]] = [[] for _ in calls]
    for name, position in last.items():
        if name not in keep:
            dying[position].append(name)
    return tuple((node, tuple(names)) for node, names in zip(calls, dying, strict=True))


def keeping(nodes: Iterable[Node]) -> Steps:
    """Pair calls with nothing: every value stays."""
    return tuple((node, ()) for node in nodes)

"""Which calls of a network jump at 0, so that the sign of what they read decides them."""

from __future__ import annotations

from surebound.graph import Node, Program
from surebound.graph.walk import Env, forward
from surebound.rules import find


def jumping(program: Program) -> list[Node]:
    """List the steps that jump at 0 alone and read no other steps."""
    found = list[Node]()

    def visit(node: Node, env: Env) -> bool:
        behind = any(env.get(name, False) for name in node.refs())
        rule = find(node.op) if node.varies else None
        if rule is None or rule.surrogate is None:
            return behind
        if not behind and rule.activation is not None and rule.activation.breaks == 0.0:
            found.append(node)
        return True

    forward(program.graph.keeping, {}, visit)
    return found

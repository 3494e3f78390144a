"""One walk, one search: no method loops over calls or open sub-problems by itself (read from the source text)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "surebound"

#: What holds the calls of a graph, in order.
CALLS = {"nodes", "steps", "keeping"}
#: Functions that pass on what they are given in some order.
ORDERS = {"enumerate", "list", "reversed", "sorted", "tuple", "zip"}

ALLOWED = {
    "graph/walk.py": "the walks themselves",
    "graph/program.py": "facts of a graph that are derived once, and its queries",
    "graph/trace.py:_graph": "what torch.export found, which becomes a graph",
    "graph/onnx/importer.py": "the nodes of an ONNX file, which become a graph or are refused",
    "graph/onnx/build.py:_with_targets": "the calls of a graph that was sent without its functions",
    "vnnlib/interface.py:_structure": "the nodes of an ONNX file, compared with those of another",
    "vnnlib/files.py:_check_export": "the nodes of an ONNX file, by name",
    "vnnlib/operators.py:check_operators": "the nodes of an ONNX file, each run by itself",
    "graph/identity.py": "the text of a graph, which its digest is of",
    "checker/checker.py": "a program of its own, which shares nothing with the others, walks included",
    "bounds/interval.py:_overwriting": "derived once per graph, from rules: which calls may overwrite what dies there",
}
"""A file or one function of it -> why it may loop."""


def loops(path: Path) -> Iterator[tuple[str, int]]:
    """The functions of a file that loop over calls, with the line; also by comprehensions."""
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.comprehension) and any(map(_holds_calls, _iterated(node.iter))):
            line = node.iter.lineno
            around = [f for f in functions if f.lineno <= line <= (f.end_lineno or line)]
            yield max(around, key=lambda f: f.lineno).name if around else "", line


def _iterated(value: ast.expr) -> Iterator[ast.expr]:
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in ORDERS:
        for argument in value.args:
            yield from _iterated(argument)
    else:
        yield value


def _holds_calls(value: ast.expr) -> bool:
    if isinstance(value, ast.Subscript):
        value = value.value
    return isinstance(value, ast.Attribute) and value.attr in CALLS


def forbidden(root: Path) -> list[str]:
    """Loops that are not allowed, as `file:function, line`."""
    found = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        places = [(f"{name}:{function}", line) for function, line in loops(path)]
        found += [f"{at}, line {line}" for at, line in places if not {name, at} & set(ALLOWED)]
    return found


def test_only_the_walk_loops_over_calls() -> None:
    assert forbidden(PACKAGE) == []
    assert len(ALLOWED) <= 11


@pytest.mark.parametrize(
    "source",
    [
        "for node in program.graph.nodes: pass",
        "names = [node.name for node in graph.nodes]",
        "for node, dying in zip(graph.nodes, known): pass",
        "for node in reversed(graph.nodes): pass",
        "for node, dying in graph.steps: pass",
        "for node in graph.nodes[1:]: pass",
    ],
)
def test_a_loop_is_seen(tmp_path: Path, source: str) -> None:
    (tmp_path / "a.py").write_text(f"def f():\n    {source}\n", encoding="utf-8")
    assert forbidden(tmp_path) == ["a.py:f, line 2"]


#: Where the search may go on until something is done: the loop of branch and bound, and what begins it anew.
SEARCHES = {
    "branch_and_bound.py:explore": "the loop",
    "by_signs.py:run": "calls it again with other bounds of the network",
}


def searches(root: Path) -> list[str]:
    """Loops without a known end, and calls of a splitter's ``advance``, as `file:function`."""
    found = []
    for path in sorted(root.rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
            if isinstance(function, ast.FunctionDef) and any(map(_goes_on, ast.walk(function))):
                found.append(f"{path.relative_to(root).as_posix()}:{function.name}")
    return found


def _goes_on(node: ast.AST) -> bool:
    match node:
        case ast.While() | ast.Call(func=ast.Attribute(attr="advance")):
            return True
    return False


def test_one_loop_of_branch_and_bound() -> None:
    """A kind of sub-problem is a splitter; depth first is an order of its pool (search/depth_first.py)."""
    assert searches(PACKAGE / "search") == sorted(SEARCHES)


@pytest.mark.parametrize(
    "source", ["while waiting: waiting += cut(waiting.pop())", "for _ in range(9): s.advance(b, t)"]
)
def test_a_search_is_seen(tmp_path: Path, source: str) -> None:
    (tmp_path / "a.py").write_text(f"class A:\n    def f(self):\n        {source}\n", encoding="utf-8")
    assert searches(tmp_path) == ["a.py:f"]

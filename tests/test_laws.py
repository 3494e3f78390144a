"""Laws of CONTRIBUTING.md, read from the source text: operators' names, slacks, outcomes, docstrings, classes."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "surebound"

#: They name operators by nature: the registry's rows; the tracer, and translation from and to ONNX.
NAMES_OPERATORS = ("rules", "graph")

#: Where a proof is computed. Attacks, training and solvers have tolerances of their own that no proof rests on.
PAYS_FOR_ROUNDING = (
    "rules", "bounds", "search", "kernels", "spec", "affine.py", "interval.py", "norm_ball.py", "pixel_ball.py",
    "region.py",
)  # fmt: skip

#: A line that says so, itself or just above, may hold a small number: no proof rests on it, or it is the operator's.
REASON = re.compile(r"# (heuristic|fact): \w")

#: The engine and what is built on it, where a docstring is read without the code around it.
SPEAKS_PLAINLY = (
    *PAYS_FOR_ROUNDING, "numerics", "graph", "attack", "flags.py", "solvers", "certificates", "checker", "verify",
    "vnnlib", "threats", "train", "models", "zoo", "audit",
)  # fmt: skip

#: First words that leave a sentence without a verb.
HEADLESS = (
    " a an the another both every each all any some those these such no none nothing one two"
    " of by as at in on over under from to for with without within along behind between before after"
    " what how which where who whose whoever whether when while if see not only same"
    " bounds upper rows columns lines margins entries values points numbers gradients weights "
)

Law = Callable[[ast.AST], bool]


def names_operator(node: ast.AST) -> bool:
    """An operator by name: "aten...", or a look at what a call's or a rule's ``op`` or ``family`` is."""
    match node:
        case ast.Constant(value=str() as text):
            return "aten." in text
        case ast.Attribute(attr="aten"):
            return True
        case ast.Compare():
            return any(map(_is_name, (node.left, *node.comparators)))
        case ast.Subscript(slice=part) | ast.Attribute(value=part):  # TABLE[rule.op], rule.op.startswith
            return _is_name(part)
        case ast.Call(func=ast.Attribute(attr="get")):
            return any(map(_is_name, node.args))
    return False


def _is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in ("op", "family")


def is_slack(node: ast.AST) -> bool:
    """A number that pays for rounding: a small one, a factor next to 1, a float's neighbour, a multiple of gamma."""
    match node:
        case ast.Attribute(attr="nextafter") | ast.Name(id="nextafter"):
            return True
        case ast.Constant(value=float() as number):
            return 0 < number < 1e-3
        case ast.Attribute(value=ast.Call(func=ast.Attribute(attr="finfo"))):
            return node.attr not in ("max", "min")  # the largest number is no slack
        case ast.Assign(value=ast.Call(func=ast.Attribute(attr="finfo"))):
            return True
        case ast.BinOp(left=ast.Constant(), op=ast.Pow(), right=ast.UnaryOp(op=ast.USub())):
            return True
        case (
            ast.BinOp(op=ast.Mult(), left=ast.Constant(value=factor), right=other)
            | ast.BinOp(op=ast.Mult(), left=other, right=ast.Constant(value=factor))
        ):
            gamma = isinstance(other, ast.Call) and getattr(other.func, "id", "") == "gamma"
            return gamma or (isinstance(factor, float) and 0 < abs(factor - 1) < 1e-2)
    return False


def compares_the_name_of_a_status(node: ast.AST) -> bool:
    """A look at how a status is spelt, ``verdict.status.value == "robust"``: a misspelling would be seen by nobody."""
    if not isinstance(node, ast.Compare):
        return False
    return any(re.search(r"\bstatus\.(value|name)$", ast.unparse(each)) for each in (node.left, *node.comparators))


def headless(node: ast.AST) -> bool:
    """Does a function's docstring begin with anything but a verb? A property may be a noun, a test a question."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not (text := ast.get_docstring(node)):
        return False
    if any("property" in ast.unparse(decorator) for decorator in node.decorator_list):
        return False
    first = text.split()[0].rstrip(",:;")
    return not re.fullmatch("[A-Z][a-z]+", first) or f" {first.lower()} " in HEADLESS


def found(root: Path, broken: Law, within: Callable[[str], bool]) -> list[str]:
    """Breaches as `file:line source`."""
    breaches = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if not within(relative.parts[0]):
            continue
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for node in filter(broken, ast.walk(ast.parse(text, str(path)))):
            first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
            if broken is not is_slack or not any(map(REASON.search, lines[max(0, first - 2) : last])):
                breaches.append(f"{relative.as_posix()}:{first} {lines[first - 1].strip()}")
    return sorted(set(breaches))


def named(root: Path) -> list[str]:
    # Sizes and parts of results are notions of the graph.
    breaches = found(root, names_operator, lambda room: room not in NAMES_OPERATORS)
    return [line for line in breaches if not re.search(r"sym_size|_SIZE|getitem", line)]


def unnamed(root: Path) -> list[str]:
    return found(root, is_slack, lambda room: room in PAYS_FOR_ROUNDING)


def unspoken(root: Path) -> list[str]:
    return found(root, headless, lambda room: room in SPEAKS_PLAINLY)


def test_only_rules_and_graph_name_operators() -> None:
    """What a method wants to know of an operator is a column or a fact of its Rule."""
    assert named(PACKAGE) == []


def test_rounding_is_paid_by_numerics() -> None:
    """A slack has a name and an argument there; search heuristics say on their line that they are some."""
    assert unnamed(PACKAGE) == []


def test_outcomes_are_told_apart_by_their_enumeration() -> None:
    assert found(PACKAGE, compares_the_name_of_a_status, lambda room: True) == []


@pytest.mark.parametrize("source", ['if r.verdict.status.value == "robust": pass', 'x = status.name in ("ERROR",)'])
def test_a_status_by_its_name_is_seen(tmp_path: Path, source: str) -> None:
    (tmp_path / "a.py").write_text(f"{source}\nif r.status is Status.ROBUST: pass\n", encoding="utf-8")
    assert found(tmp_path, compares_the_name_of_a_status, lambda room: True) == [f"a.py:1 {source}"]


def test_docstrings_begin_with_a_verb() -> None:
    """What a function does is said in words that need no look at its code; shapes and symbols stand behind."""
    assert unspoken(PACKAGE) == []


@pytest.mark.parametrize(
    "source",
    [
        'if node.op == "relu": pass',
        'if "max" in rule.op: pass',
        "if node.op in RESHAPES: pass",
        'moves = rule.family in ("shape", "arithmetic")',
        "move = MOVES[node.op]",
        "move = MOVES.get(node.op)",
        'x = rule.op.startswith("conv")',
        'NAMES = ("aten.relu.default",)',
        "y = torch.ops.aten.relu(x)",
    ],
)
def test_an_operator_by_name_is_seen(tmp_path: Path, source: str) -> None:
    for room in ("bounds", "search", "rules"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "a.py").write_text(f"rule = find(node.op)\n{source}\n", encoding="utf-8")
    assert [line.split(" ")[0] for line in named(tmp_path)] == ["bounds/a.py:2", "search/a.py:2"]


@pytest.mark.parametrize(
    "source",
    [
        "y = x * (1 + 2.0**-40)",
        "y = x + 1e-300",
        "y = x + 1e-12 * size",
        "y = 1.0001 * x",
        "y = torch.nextafter(x, goal)",
        "y = size * (8 * gamma(terms, torch.float64))",
        "y = x + torch.finfo(x.dtype).tiny",
        "info = torch.finfo(x.dtype)",
    ],
)
def test_a_slack_without_a_name_is_seen(tmp_path: Path, source: str) -> None:
    for room in ("bounds", "numerics", "train"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "a.py").write_text(f"top = torch.finfo(x.dtype).max / 4\n{source}\n")
    (tmp_path / "region.py").write_text(f"{source}  # heuristic\n\n# heuristic: Adam's\n{source}\n")
    assert [line.split(" ")[0] for line in unnamed(tmp_path)] == ["bounds/a.py:2", "region.py:1"]


@pytest.mark.parametrize(
    "docstring",
    [
        "Of units counted with the channel innermost: their channels (c,).",
        "None: most of it, or nobody can tell.",
        "``priced``: the ``price`` of a (S, B), where somebody knows it already.",
        "What rounding of a * slope may cost: (B, *out).",
        "How far the network's evaluation of f may be from f.",
        "Where (B, *value) an estimate is of use.",
        "x (B, C, ...).",
        "|W| m + |b|.",
        "S, B, n.",
        "The bias as (1, out, 1, ...).",
        "Upper bounds (B, S) of c.z + d.",
    ],
)
def test_a_docstring_without_a_verb_is_seen(tmp_path: Path, docstring: str) -> None:
    source = f'def act():\n    """{docstring}"""\n'
    spoken = 'class A:\n    """The units."""\n    @property\n    def b(self):\n        """The units."""\n'
    asked = 'def c():\n    """Is it ours?"""\ndef d():\n    """Return the units."""\n'
    for room in ("bounds", "report"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "a.py").write_text(source + spoken + asked, encoding="utf-8")
    assert [line.split(" ")[0] for line in unspoken(tmp_path)] == ["bounds/a.py:1"]


def test_a_class_name_means_one_thing() -> None:
    """Only names that users read in two packages, as sb.bounds.Method and sb.training.Method, may occur twice."""
    names = Counter(
        node.name
        for path in PACKAGE.rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    )
    twice = sorted(name for name, count in names.items() if count > 1)
    assert len(twice) <= 8, f"rename until at most 8 of these occur twice: {', '.join(twice)}"

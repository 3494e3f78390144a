"""Dependencies point one way: each layer imports only the layers named here (read from the source text)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "surebound"

VALUES = frozenset(
    {
        "affine",
        "disk",
        "errors",
        "flags",
        "markup",
        "numerics",
        "interval",
        "norm_ball",
        "pixel_ball",
        "region",
        "spec",
        "verdict",
    }
)
ENGINE = VALUES | {"kernels", "graph", "rules", "bounds"}
BESIDE = VALUES | {"data", "models"}
SEARCH = ENGINE | BESIDE | {"attack", "solvers", "search", "certificates"}
WORK = SEARCH | {"verify", "train", "vnnlib", "threats"}

ALLOWED: dict[str, frozenset[str]] = {
    **dict.fromkeys(VALUES, VALUES),
    "region": VALUES | {"kernels"},
    "kernels": frozenset({"numerics"}),
    "graph": VALUES,
    "rules": VALUES | {"graph", "kernels"},
    "bounds": VALUES | {"graph", "kernels", "rules"},
    "solvers": frozenset({"errors", "numerics"}),
    "checker": frozenset(),
    "certificates": VALUES | {"graph", "checker"},
    "data": VALUES,
    "threats": VALUES,
    "models": VALUES,
    "zoo": BESIDE,
    "attack": ENGINE | BESIDE,
    "train": ENGINE | BESIDE | {"attack"},
    "search": SEARCH,
    "verify": SEARCH,
    "vnnlib": SEARCH | {"verify"},
    "experiment": WORK | {"zoo"},
    "report": WORK | {"checker", "zoo", "experiment"},
    "reproduction": WORK | {"zoo", "experiment", "report"},
    "audit": WORK,
    "cli": WORK | {"checker", "zoo", "experiment", "report", "reproduction", "audit"},
    "__main__": frozenset({"cli"}),
    "__init__": WORK | {"experiment", "zoo"},
}
"""Layer -> the other layers it may import. Every module of the package belongs to one of them."""


def layer_of(module: tuple[str, ...]) -> str:
    """`("surebound", "rules", "affine")` -> `"rules"`."""
    return module[1] if len(module) > 1 else "__init__"


def imported_modules(path: Path) -> Iterator[tuple[tuple[str, ...], int]]:
    """Every module of surebound that a file imports, wherever in the file, with the line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            if node.module == "surebound":  # `from surebound import rules` names a layer or a public name
                names = [f"surebound.{alias.name}" for alias in node.names]
            else:
                names = [node.module]
        else:
            continue
        for name in names:
            parts = tuple(name.split("."))
            if parts[0] == "surebound":
                yield parts, node.lineno


def breaches(root: Path) -> list[str]:
    """Imports against the direction, as `file:line imports layer`."""
    found = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        layer = relative.parts[0].removesuffix(".py")
        for module, line in imported_modules(path):
            target = layer_of(module)
            if target != layer and target not in ALLOWED.get(layer, frozenset()):
                found.append(f"{relative}:{line} ({layer}) imports surebound.{target}")
    return found


def test_every_module_has_a_layer() -> None:
    modules = {p.stem for p in PACKAGE.iterdir() if p.suffix == ".py" or any(p.rglob("*.py"))}
    unknown = modules - set(ALLOWED)
    assert not unknown, f"say in ALLOWED what these may import: {sorted(unknown)}"


def test_dependencies_point_one_way() -> None:
    assert breaches(PACKAGE) == []


@pytest.mark.parametrize(
    ("file", "source", "expected"),
    [
        ("region.py", "from surebound.graph import trace", "region.py:1 (region) imports surebound.graph"),
        ("rules/a.py", "if 1:\n    import surebound.cli.ops", "rules/a.py:2 (rules) imports surebound.cli"),
        ("graph/a.py", "import surebound", "graph/a.py:1 (graph) imports surebound.__init__"),
        ("verify/a.py", "from surebound import cli", "verify/a.py:1 (verify) imports surebound.cli"),
        ("verify/a.py", "from surebound.verify.b import x\nimport torch", None),
    ],
)
def test_a_breach_is_seen(tmp_path: Path, file: str, source: str, expected: str | None) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(source, encoding="utf-8")
    assert breaches(tmp_path) == ([expected] if expected else [])

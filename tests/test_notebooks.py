"""The notebooks run from top to bottom, quickly, and are committed without outputs."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in found if cell["cell_type"] == kind]


def shown(code: str, name: str, namespace: dict[str, Any]) -> object:
    """Run a cell as a kernel does: what its last line gives is shown."""
    tree = ast.parse(code, name)
    if isinstance(last := tree.body[-1], ast.Expr):
        kept = ast.Assign([ast.Name("__shown__", ast.Store())], last.value)
        tree.body[-1] = ast.fix_missing_locations(ast.copy_location(kept, last))
    namespace["__shown__"] = None
    exec(compile(tree, name, "exec", dont_inherit=True), namespace)
    value = namespace["__shown__"]
    for way in ("_repr_html_", "_repr_png_", "__repr__"):
        if hasattr(value, way):
            return getattr(value, way)()
    return value


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SUREBOUND_QUICK", "1")
    monkeypatch.setenv("MPLBACKEND", "agg")
    module = ModuleType("__notebook__")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    outputs = [
        shown("".join(cell["source"]), f"{path.name}, cell {number}", module.__dict__)
        for number, cell in enumerate(cells(path, "code"))
    ]
    said = capsys.readouterr().out
    page = (tmp_path / "explore.html").read_text(encoding="utf-8")
    assert '"methods":["interval"' in page and '"images":{' in page
    if path.stem == "digits":
        proofs = {
            key: int(count) for *key, count in re.findall(r"(\w+) +(\S+) +proves (\d+)", said) for key in [tuple(key)]
        }
        assert proofs["provable", "alpha-crown"] >= proofs["provable", "interval"] > proofs["plain", "interval"]
        assert any("all confirmed" in str(output) for output in outputs)
    else:
        assert "->" in said and "'unsat'" in outputs
    assert not [output for output in outputs if isinstance(output, str) and len(output) > 20_000]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_is_clean(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells(path, "code"))
    assert len({cell["id"] for kind in ("code", "markdown") for cell in cells(path, kind)}) == len(
        json.loads(text)["cells"]
    )
    for target in re.findall(r"\]\(([^)#:]+)\)", "".join("".join(cell["source"]) for cell in cells(path, "markdown"))):
        assert (path.parent / target).exists(), target

"""The documentation tells the truth: its Python runs, its commands exist, its links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest
import typer

from surebound.cli import build_app
from surebound.cli.exits import CODES

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """Code blocks of a language with the line on which each starts."""
    text = page.read_text(encoding="utf-8")
    return [(text.count("\n", 0, m.start(2)), m[2]) for m in FENCE.finditer(text) if m[1] == language]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=name)
def test_python_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page, from top to bottom, in one namespace."""
    monkeypatch.chdir(tmp_path)
    module = ModuleType("__page__")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # dataclasses look their module up
    for line, code in blocks(page, "python"):
        exec(compile("\n" * line + code, str(page), "exec", dont_inherit=True), module.__dict__)


def options(command: Any, words: list[str]) -> tuple[Any, list[str], list[str]]:
    """The command that words lead to, the options among the rest, and all options it knows."""
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    known = [name for parameter in command.params for name in parameter.opts]
    return command, [word.partition("=")[0] for word in words if word.startswith("--")], known


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "console")], ids=name)
def test_commands_exist(page: Path) -> None:
    """Every `surebound ...` and `make ...` shown is a command with such options."""
    targets = set(re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    root = typer.main.get_command(build_app())
    for _, block in blocks(page, "console"):
        for shown in re.findall(r"^\$ (.*)$", block, re.MULTILINE):
            for line in shown.split("&&"):
                words = shlex.split(line, comments=True)
                if words[0] == "make":
                    assert {w for w in words[1:] if "=" not in w} <= targets, line
                if words[0] == "surebound":
                    command, used, known = options(root, words[1:])
                    assert command is not root or not [w for w in words[1:] if not w.startswith("--")], line
                    assert set(used) <= {*known, "--help"}, line


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    generated = {"reference/commands.md", "reference/operators.md"}
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" not in target and target not in generated:
            assert (page.parent / target).exists(), f"{name(page)} links to {target}"


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    index, navigation = (
        (folder / "README.md").read_text(encoding="utf-8"),
        (ROOT / "mkdocs.yml").read_text("utf-8"),
    )
    for page in folder.glob("0*.md"):
        assert f"({page.name})" in index
        assert f"decisions/{page.name}" in navigation


def loaded(path: Path) -> ModuleType:
    """A module that lies beside the pages."""
    spec = importlib.util.spec_from_file_location(f"docs_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_of_commands_has_types_and_choices() -> None:
    text = loaded(ROOT / "docs" / "hooks.py").commands()
    choices = "`table`, `markdown`, `csv`, `json`"
    assert f"| `--format` | How to write the table: table, markdown, csv or json. | {choices} | `table` |" in text
    assert "| `--timeout` | Seconds for a query, or per image and stage (default: none). | number |  |" in text
    assert "| 2 numbers |" in text and "text, repeatable" in text and "| switch |" in text
    assert "```console\n$ surebound verify query.vnnlib --network N=net.onnx --timeout 60\n" in text


def test_docstrings_become_markdown() -> None:
    """Examples are code, not three nested quotations; what is required and returned is a list."""
    module = loaded(ROOT / "docs" / "docstrings.py")
    assert module.fenced("Add.\n\n>>> 1 + 1\n2\n\nMore.") == "Add.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nMore."
    assert module.listed("return:  bounds\n         (B,)") == "- **return**: bounds\n    (B,)"


def test_formulas_become_mathml() -> None:
    """Every formula of every page is understood; what LaTeX it does not know is an error, not a hole."""
    module = loaded(ROOT / "docs" / "mathml.py")
    found = {name(p): module.on_page_markdown(p.read_text(encoding="utf-8")) for p in PAGES}
    assert sum(text.count("<math ") for text in found.values()) > 10
    for text in found.values():
        for formula in re.findall("<math .*?</math>", text):
            assert not re.search(r"\\|[{}](?!</mo>)", formula), formula
            ElementTree.fromstring(formula)
    two = module.mathml(r"a & \le \frac{b}{\hat{c}_1^2} \\ & \text{no <b>}")
    assert two.count("<mtr>") == 2 and "<mfrac><mrow><mi>b</mi></mrow><mrow><msubsup>" in two and "no &lt;b&gt;" in two
    with pytest.raises(ValueError, match="not known in formulas"):
        module.mathml(r"\unheard")


def test_the_home_page_has_the_results() -> None:
    """The table is read from the files of the results, the most proved first at each radius."""
    module = loaded(ROOT / "docs" / "hooks.py")
    text = module.on_page_markdown((ROOT / "docs" / "index.md").read_text(encoding="utf-8"))
    assert "<!-- leaderboard -->" not in text
    assert "| 0.3 | **88.87%** | `mnist-small-ibp-0.4` | 88.46% | 90.10% | 95.96% | 0 |" in text
    radii = [float(eps) for eps in re.findall(r"^\| ([\d.]+) \| \*\*", text, re.MULTILINE)]
    assert len(radii) >= 10 and radii == sorted(radii)


def test_one_table_of_exit_codes() -> None:
    """The table of the page has the codes that commands end with, and no other page has a table of its own."""
    page = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    assert tuple(int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)) == CODES
    used = {
        code
        for path in (ROOT / "surebound" / "cli").glob("*.py")
        for code in re.findall(r"Exit\((\d+|EXIT_\w+)", path.read_text(encoding="utf-8"))
    }
    assert used and not [code for code in used if code.isdigit()], "codes have names, in cli/exits.py"
    assert [name(p) for p in PAGES if "| exit code |" in p.read_text(encoding="utf-8")] == ["docs/command-line.md"]


NAMED = re.compile(r"`(surebound/[\w/]+\.py)`:\s+`(\w+)`")


def test_the_functions_that_the_architecture_names_exist() -> None:
    """Every `file`: `function` of docs/architecture.md, and every file of its last table."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    found = NAMED.findall(text)
    assert len(found) > 20
    for path, function in found:
        source = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"^(?:def|class) {function}\b", source, re.MULTILINE), f"{path} has no {function}"
    for path in re.findall(r"`((?:bounds|search|train|attack|experiment|tests)/[\w/]+\.py)`", text):
        assert (ROOT / path).exists() or (ROOT / "surebound" / path).exists(), path

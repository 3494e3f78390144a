"""The frame of the command line: help, version, errors, start-up."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from surebound import cli
from surebound.errors import InputError, UnsupportedOperatorError

runner = CliRunner()
FOLDER = Path(cli.__file__).parent


def commands(app: typer.Typer) -> set[str]:
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    return set(group.commands)


def test_help_teaches_by_examples() -> None:
    result = runner.invoke(cli.build_app(), ["--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    shown = set(re.findall(r"^ +surebound (\S+)", result.output, re.MULTILINE))
    assert len(shown) >= 4
    assert shown <= commands(cli.build_app()), "an example names a command that does not exist"


@pytest.mark.parametrize("name", ["verify", "bounds", "attack", "radius"])
def test_help_cuts_nothing_at_80_columns(name: str) -> None:
    """An option whose name is cut cannot be typed."""
    shown = runner.invoke(cli.build_app(), [name, "--help"], env={"COLUMNS": "80"}).output
    assert "…" not in shown and max(map(len, shown.splitlines())) <= 80
    assert "--serialise-assignments " in shown or name != "verify"


def test_every_command_explains_itself() -> None:
    app = cli.build_app()
    for name in commands(app):
        result = runner.invoke(app, [name, "--help"], env={"COLUMNS": "200"})
        assert result.exit_code == 0
        assert "Usage: " in result.output
        assert len(result.output.splitlines()) > 8, f"{name} says too little"


def test_version() -> None:
    result = runner.invoke(cli.build_app(), ["--version"])
    assert (result.exit_code, result.output) == (0, f"{importlib.metadata.version('surebound')}\n")


def test_every_module_with_commands_is_registered() -> None:
    with_commands = {p.stem for p in FOLDER.glob("*.py") if "\ndef register(" in p.read_text(encoding="utf-8")}
    assert with_commands == set(cli.COMMANDS)


def test_a_missing_command_module_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "COMMANDS", ("nonsense",))
    with pytest.raises(ModuleNotFoundError, match="nonsense"):
        cli.build_app()


def app_that_raises(error: Exception) -> typer.Typer:
    app = cli.build_app()

    @app.command("fail")
    def fail() -> None:
        raise error

    return app


def test_an_error_raised_on_purpose_is_one_message() -> None:
    result = runner.invoke(app_that_raises(InputError("eps=-1 is negative; give 0 or more")), ["fail"])
    assert result.exit_code == 2
    assert result.stderr == "surebound: eps=-1 is negative; give 0 or more\n"
    assert result.stdout == ""


def test_debug_shows_where_it_came_from() -> None:
    result = runner.invoke(app_that_raises(UnsupportedOperatorError("no")), ["--debug", "fail"])
    assert isinstance(result.exception, UnsupportedOperatorError)


def test_a_bug_is_not_dressed_up_as_a_message() -> None:
    result = runner.invoke(app_that_raises(KeyError("oops")), ["fail"])
    assert isinstance(result.exception, KeyError)


#: They import the standard library alone.
LIGHT = ("errors", "disk")


def imported_at_the_top(name: str, folder: Path = FOLDER) -> set[str]:
    """Modules outside the standard library that a module of surebound.cli imports when it is imported."""
    names: set[str] = set()
    for node in ast.parse((folder / f"{name}.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return {n for n in names if n.split(".")[0] not in sys.stdlib_module_names}


def test_help_does_not_wait_for_the_engine() -> None:
    """Heavy imports belong inside the functions, also in the siblings that a command module imports."""
    seen, waiting = set[str](), {"__init__", *cli.COMMANDS}
    while waiting:
        name = waiting.pop()
        seen.add(name)
        imported = imported_at_the_top(name)
        siblings = {n.removeprefix("surebound.cli.") for n in imported if n.startswith("surebound.cli.")}
        light = ("surebound.cli", "typer", *(f"surebound.{each}" for each in LIGHT))
        heavy = {n for n in imported if not n.startswith(light)}
        assert not heavy, f"surebound/cli/{name}.py imports {sorted(heavy)} at the top"
        waiting |= siblings - seen
    assert not any(imported_at_the_top(each, FOLDER.parent) for each in LIGHT)


def test_as_a_module() -> None:
    command = [sys.executable, "-m", "surebound", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{importlib.metadata.version('surebound')}\n"


def test_a_warning_is_a_sentence_without_a_line_of_code() -> None:
    script = (
        "import sys, warnings, surebound.cli as cli\n"
        "cli.build_app = lambda: lambda **_: warnings.warn('the copy is not verified', UserWarning)\n"
        "cli.main()"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stderr == "surebound: warning: the copy is not verified\n"


@pytest.mark.parametrize(
    ("words", "meant"),
    [(("bounds", "x", "--method", "crwon"), "crown"), (("attack", "x", "--attack", "pdg"), "pgd")],
)
def test_a_misspelt_choice_is_answered_with_the_one_that_was_meant(words: tuple[str, ...], meant: str) -> None:
    said = " ".join(runner.invoke(cli.build_app(), list(words)).output.replace("│", " ").split())
    assert f"did you mean '{meant}'?" in said
    assert "Value error" not in said
    nothing_near = runner.invoke(cli.build_app(), [*words[:-1], "zzz"]).output
    assert "did you mean" not in nothing_near

"""Pages of the site that are written by the code: the commands and the operators."""

from __future__ import annotations

from typing import Any

import typer
from mkdocs.structure.files import File, Files

from surebound.cli import EXAMPLES, build_app
from surebound.cli.ops import COLUMNS, row
from surebound.rules import all_rules


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    for path, text in (("reference/commands.md", commands()), ("reference/operators.md", operators())):
        files.append(File.generated(config, path, content=text))
    return files


def commands() -> str:
    """Every command with its arguments and options."""
    examples = EXAMPLES.replace("[bold]Examples[/bold]\n", "").replace("[dim]", "").replace("[/dim]", "")
    parts = ["# Commands", "```console" + examples.rstrip() + "\n```"]
    parts += _sections(typer.main.get_command(build_app()), "surebound")
    return "\n\n".join(parts) + "\n"


def _sections(command: Any, name: str) -> list[str]:
    """One section per command; groups open into their own commands."""
    inner = getattr(command, "commands", None)
    if inner is not None:
        return [part for key in inner for part in _sections(inner[key], f"{name} {key}")]
    lines = [f"## {name}", "\n".join(line.strip() for line in (command.help or "").splitlines())]
    rows = ["| | | default |", "| --- | --- | --- |"]
    for parameter in command.params:
        names = ", ".join(f"`{n}`" for n in parameter.opts)
        if parameter.param_type_name == "argument":
            names = f"`{(parameter.metavar or parameter.name).upper()}`"
        default = "" if parameter.default is None or callable(parameter.default) else f"`{parameter.default}`"
        text = (parameter.help or "").replace("|", "\\|")
        rows.append(f"| {names} | {text} | {default} |")
    return [*lines, "\n".join(rows)]


def operators() -> str:
    """The registry as a table, one family after the other."""
    parts = ["# Operators", "What a network may use, and what each method can do with it (`surebound ops`)."]
    families: dict[str, list[str]] = {}
    for rule in all_rules():
        cells = row(rule)
        families.setdefault(rule.family, []).append(f"| `{cells[0]}` | " + " | ".join(cells[2:]) + " |")
    shown = [column for column in COLUMNS if column != "family"]
    head = "| " + " | ".join(shown) + " |\n|" + " --- |" * len(shown)
    for family, lines in families.items():
        parts += [f"## {family}", head + "\n" + "\n".join(lines)]
    return "\n\n".join(parts) + "\n"

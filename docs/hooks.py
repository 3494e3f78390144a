"""Pages of the site that are written by the code: the commands and the operators."""

from __future__ import annotations

import enum
import json
import types
import typing
from fractions import Fraction
from pathlib import Path
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


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in what is read from the results."""
    return markdown.replace("<!-- leaderboard -->", leaderboard())


def leaderboard(folder: Path = Path(__file__).parents[1] / "results" / "verification") -> str:
    """Every verified test set as a table, from the files of the results: the radius, then the most proved first."""
    found = []
    for path in folder.glob("*.json"):
        result = json.loads(path.read_text(encoding="utf-8"))
        name, radius = path.stem.rpartition("-")[0], Fraction(result["eps"])
        shares = [1 - result[key] for key in ("verified_error", "ibp_verified_error", "pgd_error", "clean_error")]
        if shares[0] > 0:
            cells = [f"{float(radius):g}", f"**{shares[0]:.2%}**", f"`{name}`", *(f"{s:.2%}" for s in shares[1:])]
            found.append((radius, -shares[0], [*cells, str(result["open"])]))
    head = ("ε", "proved", "network", "by interval bounds alone", "survives PGD", "accuracy", "left open")
    lines = [list(head), ["---:", "---:", "---", *["---:"] * (len(head) - 3)], *(cells for *_, cells in sorted(found))]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


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
    rows = ["| option | what it does | takes | default |", "| --- | --- | --- | --- |"]
    hints = typing.get_type_hints(command.callback)
    for parameter in command.params:
        names = ", ".join(f"`{n}`" for n in parameter.opts)
        if parameter.param_type_name == "argument":
            names = f"`{(parameter.metavar or parameter.name).upper()}`"
        default = parameter.default
        shown = "" if default is None or default is False or callable(default) else f"`{_plain(default)}`"
        text = (parameter.help or "").replace("|", "\\|")
        rows.append(f"| {names} | {text} | {_kind(hints.get(parameter.name, bool))} | {shown} |")
    return [f"## {name}", _help(command.help or ""), "\n".join(rows)]


def _plain(value: Any) -> str:
    """A default as one types it."""
    if isinstance(value, list | tuple):
        return " ".join(_plain(each) for each in value)
    return str(getattr(value, "value", value))


def _kind(hint: Any) -> str:
    """What an option takes, from the annotation of its argument: choices, or the type of its value."""
    parts = [part for part in typing.get_args(hint) if part is not type(None)]
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        return _kind(parts[0])
    if origin is list:
        return f"{_kind(parts[0])}, repeatable"
    if origin is tuple:
        return f"{len(parts)} {_kind(parts[0])}s"
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return ", ".join(f"`{each.value}`" for each in hint)
    return {bool: "switch", int: "whole number", float: "number", Path: "path"}.get(hint, "text")


def _help(text: str) -> str:
    """A command's help, its examples as code."""
    prose, _, examples = text.partition("Examples:")
    lines = [line.strip() for line in examples.splitlines() if line.strip()]
    shown = "\n".join(f"$ {line}" for line in " ".join(lines).replace(" surebound ", "\nsurebound ").splitlines())
    block = f"\n\n```console\n{shown}\n```" if lines else ""
    return "\n".join(line.strip() for line in prose.splitlines()) + block


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

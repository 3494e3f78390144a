"""The command line. Each command group is one file with `register(app)`; nothing here knows what they do.

Modules of this package import torch and the engine inside their functions only, so that
`surebound --help` answers at once.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import sys
import warnings
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup

from surebound.cli.exits import EXIT_INPUT
from surebound.disk import advice, explained
from surebound.errors import SureboundError, nearest

COMMANDS = (
    "quickstart",
    "train",
    "doctor",
    "evaluate",
    "zoo",
    "bounds",
    "attack",
    "verify",
    "radius",
    "results",
    "check",
    "archive",
    "report",
    "explore",
    "picture",
    "export",
    "reproduce",
    "data",
    "ops",
    "supports",
    "audit",
)
"""The modules of surebound.cli that bring commands, in the order of the help page."""

EXAMPLES = """
[bold]Examples[/bold]

  [dim]# what this is about, on data that comes with the package: a table and a picture[/dim]
  surebound quickstart --out runs/quickstart

  [dim]# train a network whose robustness can be proved, and go on with a run that was stopped[/dim]
  surebound train digits-ibp --out runs/digits
  surebound resume runs/digits

  [dim]# what is this network made of, how hard is it, which method should I choose?[/dim]
  surebound doctor runs/digits

  [dim]# what is proved by bounds, what breaks under attack, and which of the rest can be decided[/dim]
  surebound bounds runs/digits --eps 1/10 --method alpha-crown
  surebound attack runs/digits --eps 1/10 --steps 200 --restarts 10
  surebound verify runs/digits --eps 1/10

  [dim]# how far is each image proved, how close does a counterexample come?[/dim]
  surebound radius runs/digits --first 100

  [dim]# a page about all of it, for people[/dim]
  surebound report runs/digits

  [dim]# every image by itself, in a browser: ranges, counterexample, proof; slide epsilon, ask again[/dim]
  surebound explore runs/digits --open

  [dim]# a network of your own: a function that builds it, its weights, ten of your images[/dim]
  surebound bounds mypkg.nets:build --weights w.safetensors --data images.npz --first 10 --eps 8/255

  [dim]# a query about an ONNX network, as the VNN-LIB standard has it[/dim]
  surebound verify query.vnnlib --network N=net.onnx --timeout 60

  [dim]# which operators may my network use, and what can each method do with them?[/dim]
  surebound ops
  surebound ops conv

  [dim]# what a command takes[/dim]
  surebound bounds --help
"""


class _CommandGroup(TyperGroup):
    """Errors raised on purpose, or by a full disk, become one message and exit code 2; others are bugs, and show."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except SureboundError as error:
            if ctx.params.get("debug"):
                raise
            typer.echo(f"surebound: {error}", err=True)
            raise typer.Exit(EXIT_INPUT) from None
        except typer.BadParameter as error:
            error.message = _with_suggestion(error.message)
            raise
        except Exception as error:
            if ctx.params.get("debug") or not advice(error):
                raise
            typer.echo(f"surebound: {explained(error)}", err=True)
            raise typer.Exit(EXIT_INPUT) from None


def _with_suggestion(message: str) -> str:
    """End the complaint about a choice that does not exist with the one that was probably meant."""
    found = re.search(r"'([^']*)' is not one of (('[^']*'(, )?)+)\.?$", message)
    if found is None:
        return message
    known = re.findall(r"'([^']*)'", found[2])
    return message.removeprefix("Value error, ").removesuffix(".") + nearest(found[1], known)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(importlib.metadata.version("surebound"))
        raise typer.Exit


def _print_name(wanted: bool) -> None:
    if wanted:
        typer.echo("surebound")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
    name: Annotated[
        bool, typer.Option("--name", help="Print the solver's name.", callback=_print_name, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Train neural networks with provable robustness, and prove it."""


def build_app() -> typer.Typer:
    """The Typer application with every command registered."""
    app = typer.Typer(
        name="surebound",
        cls=_CommandGroup,
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog=EXAMPLES,
    )
    app.callback(epilog=EXAMPLES)(_root)
    for name in COMMANDS:
        importlib.import_module(f"surebound.cli.{name}").register(app)
    return app


def _say(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning is for the user: its sentence, not the line of code that raised it."""
    typer.echo(f"surebound: warning: {message}" if issubclass(category, UserWarning) else message, err=True)


def main() -> None:
    """Entry point of the `surebound` script."""
    warnings.showwarning = _say
    build_app()(prog_name="surebound")
    sys.exit(0)

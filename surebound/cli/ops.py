"""`surebound ops`: the registry of operators as a table."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated

import typer

from surebound.cli.output import Format, print_table
from surebound.errors import InputError

if TYPE_CHECKING:
    from surebound.rules.registry import Rule

COLUMNS = ("operator", "family", "interval", "linear", "MIP", "note")


def register(app: typer.Typer) -> None:
    app.command("ops")(ops)


def ops(
    pattern: Annotated[str, typer.Argument(help="Only operators or families that contain this text.")] = "",
    form: Annotated[Format, typer.Option("--format", help="How to write the table.")] = Format.TABLE,
) -> None:
    """List the operators a network may use, and what each method can do with them.

    interval: bounds by intervals. linear: bounds by linear relaxation, 'exact' where nothing is lost.
    MIP: can be encoded for the exact solvers.

    Examples:  surebound ops    surebound ops conv    surebound ops --format markdown > operators.md
    """
    from surebound.rules.registry import all_rules

    rows = [row(rule) for rule in all_rules() if pattern.lower() in f"{rule.op} {rule.family}".lower()]
    if not rows:
        raise InputError(f"no supported operator contains {pattern!r}; 'surebound ops' lists all of them")
    print_table(COLUMNS, rows, form)


def row(rule: Rule) -> tuple[str, ...]:
    """One operator's line; a dash where the method cannot use it."""
    # A tensor taken apart, or one of a given shape: entries move, or do not vary at all.
    exact = rule.is_affine or rule.apart or rule.reads_shape
    linear = "exact" if exact else "relaxed" if rule.relax else "-"
    mip = "exact" if rule.is_affine or rule.mip or _piecewise_linear(rule) else "-"
    return rule.op, rule.family, "yes", linear, mip, rule.note


def _piecewise_linear(rule: Rule) -> bool:
    """Has it the pieces that MIP encodes, at least for some of its parameters?"""
    if rule.activation is None:
        return False
    if rule.activation.specialise is None:
        return rule.activation.pieces is not None
    needed = [
        name
        for name, parameter in inspect.signature(rule.activation.specialise).parameters.items()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    ]
    return rule.activation.bind(*(_parameter(name) for name in needed)).pieces is not None


def _parameter(name: str) -> object:
    """A parameter as a network might give it."""
    import torch

    return torch.tensor([0.25]) if name == "weight" else 0.25

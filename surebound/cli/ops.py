"""`surebound ops`: the registry of operators as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from surebound.cli.options import Form
from surebound.cli.output import Format, print_table
from surebound.errors import InputError

if TYPE_CHECKING:
    from surebound.rules.registry import Rule

COLUMNS = ("operator", "family", "interval", "linear", "MIP", "note")


def register(app: typer.Typer) -> None:
    app.command("ops")(ops)


def ops(
    pattern: Annotated[str, typer.Argument(help="Only operators or families that contain this text.")] = "",
    form: Form = Format.TABLE,
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
    from surebound.rules.support import linear_column, mip_column

    return rule.op, rule.family, "yes", linear_column(rule) or "-", mip_column(rule) or "-", rule.note

"""`surebound doctor`: what a network is made of, how hard it is, and which method to choose."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surebound.cli.exits import EXIT_ERRORS
from surebound.cli.options import Clip, Data, DataDir, Device, Form, Target, Weights
from surebound.cli.output import Cell, Format, print_table, print_text

if TYPE_CHECKING:
    from surebound.experiment.doctor import Diagnosis, MethodCost, Stability


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor(
    model: Target,
    eps: Annotated[
        str | None,
        typer.Option(help="Radii to look at, 1/255,8/255 (default: those it was measured at, or usual ones)."),
    ] = None,
    weights: Weights = None,
    data: Data = None,
    data_dir: DataDir = None,
    device: Device = None,
    clip: Clip = None,
    first: Annotated[int, typer.Option(min=1, help="Images to try the methods with.")] = 8,
    seconds: Annotated[float, typer.Option(min=0, help="Methods that would exceed this in all are not tried.")] = 20.0,
    form: Form = Format.TABLE,
) -> None:
    """Look at a network before anything is asked of it: operators, unstable ReLUs, what each method costs.

    Operators without a rule are named with their place and a remedy, and the exit code is then 1. ReLUs are unstable
    where their input may have both signs within the radius: the fewer, the easier a proof.

    Examples:

      surebound doctor runs/digits

      surebound doctor net.onnx

      surebound doctor mypkg.nets:build --weights w.safetensors --data images.npz --eps 1/255,8/255
    """
    from surebound.experiment.doctor import diagnose
    from surebound.experiment.target import load_target
    from surebound.verify.radii import parse_radii

    radii = [] if eps is None else parse_radii(eps)
    target = load_target(model, weights=weights, data=data, data_dir=data_dir, device=device, clip=clip)
    found = diagnose(target, [radius for radius in radii if radius > 0], first, seconds)
    if form is Format.JSON:
        typer.echo(json.dumps(as_json(found), indent=1))
    else:
        _show(found, form)
    if not found.support.supported:
        raise typer.Exit(EXIT_ERRORS)


def _show(found: Diagnosis, form: Format) -> None:
    shape = "x".join(map(str, found.inputs))
    typer.echo(f"{found.parameters:,} parameters, {shape} inputs, {found.outputs} outputs")
    what = "made-up inputs (no --data)" if found.made_up else f"images, {found.correct} classified correctly"
    typer.echo(f"tried with {found.images} {what}\n")
    rows: list[list[Cell]] = [
        [op, count, *("yes" if column in columns else "-" for column in ("interval", "linear", "mip"))]
        for op, count, columns in found.operators
    ]
    if rows:
        print_table(("operator", "calls", "interval", "linear", "MIP"), rows, form)
    for each in found.troubles:
        typer.echo(f"  {each}")
    if found.stability:
        few = found.stability[0].images
        print_text(f"\nunstable ReLUs per image ({'one image' if few == 1 else f'mean of {few} images'})")
        print_table(("eps", "by intervals", "by CROWN", "of"), [_stable(s) for s in found.stability], form)
    if found.costs:
        typer.echo(f"\none image at eps {found.eps}")
        columns = ("method", "seconds", "memory, MiB", f"proved of {found.correct}", "")
        print_table(columns, [_cost_row(cost) for cost in found.costs], form)
    print_text(f"\n{found.advice}")


def _stable(s: Stability) -> list[Cell]:
    tight = None if s.by_crown is None else round(s.by_crown, 1)
    return [str(s.eps), round(s.by_intervals, 1), tight, s.units]


def _cost_row(cost: MethodCost) -> list[Cell]:
    memory = None if cost.memory is None else round(cost.memory / 2**20, 1)
    seconds = None if cost.seconds is None else round(cost.seconds, 4)
    return [cost.name, seconds, memory, cost.proved, cost.remark]


def as_json(found: Diagnosis) -> dict[str, Any]:
    """Everything that was found, as plain values."""
    return {
        "supported": found.support.supported,
        "trouble": found.support.trouble,
        "parameters": found.parameters,
        "inputs": list(found.inputs),
        "outputs": found.outputs,
        "images": found.images,
        "correct": found.correct,
        "made_up": found.made_up,
        "operators": [
            {"op": o.op, "module": o.module, "source": o.source, "columns": list(o.columns), "remedy": o.remedy}
            for o in found.support.operators
        ],
        "unstable": [
            {"eps": str(s.eps), "by_intervals": _finite(s.by_intervals), "by_crown": _finite(s.by_crown), "of": s.units}
            for s in found.stability
        ],
        "eps": str(found.eps),
        "methods": [
            {"method": c.name, "seconds": c.seconds, "bytes": c.memory, "proved": c.proved, "remark": c.remark}
            for c in found.costs
        ],
        "advice": found.advice,
    }


def _finite(value: float | None) -> float | None:
    return None if value is None or value != value else value

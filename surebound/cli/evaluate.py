"""`surebound evaluate`: error rates of a trained network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from surebound.cli.bounds import SOUNDNESS_HELP, Arithmetic
from surebound.cli.options import Clip, Data, DataDir, Device, First, Form, Quiet, Target, Weights
from surebound.cli.output import Cell, Format, percent, print_table, write_file
from surebound.errors import InputError


def evaluate(
    model: Target,
    eps: Annotated[
        list[str] | None,
        typer.Option(help="Radius; may be repeated (default: those the network was measured at)."),
    ] = None,
    weights: Weights = None,
    data: Data = None,
    data_dir: DataDir = None,
    device: Device = None,
    clip: Clip = None,
    first: First = None,
    soundness: Annotated[Arithmetic, typer.Option(help=SOUNDNESS_HELP)] = Arithmetic.DEPLOYED,
    pgd_steps: Annotated[int, typer.Option(min=0, help="Steps of the attack; 0: no attack.")] = 40,
    pgd_restarts: Annotated[int, typer.Option(min=1, help="Random starts of the attack.")] = 1,
    batch_size: Annotated[int, typer.Option(min=1, help="Images at a time.")] = 250,
    seed: Annotated[int, typer.Option(help="Seed of the attack.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Also write the numbers to this JSON file.")] = None,
    form: Form = Format.TABLE,
    quiet: Quiet = False,
) -> None:
    """Measure clean error, error under attack and error not proved by interval bounds.

    The true robust error lies between the attacked and the unproved one.
    """
    from surebound.cli.bar import Bar
    from surebound.experiment.target import load_target
    from surebound.numerics import Soundness
    from surebound.train.evaluate import Evaluation, measure

    target = load_target(model, weights=weights, data=data, data_dir=data_dir, device=device, clip=clip)
    radii = tuple(eps) if eps else target.radii
    if not radii:
        raise InputError(f"no radius is known for {model!r}; give one or more with --eps, e.g. --eps 0.1")
    test = target.test()
    wanted = Evaluation(
        radii=radii,  # type: ignore[arg-type]  # strings are read exactly
        images=first,
        pgd_steps=pgd_steps,
        pgd_restarts=pgd_restarts,
        pgd_images=len(test),
        batch_size=batch_size,
    )
    with Bar("measuring") as bar:
        mode = Soundness(soundness.value)
        errors = measure(target.model, test, wanted, soundness=mode, clip=target.clip, seed=seed, progress=bar.show)
    rows: list[list[Cell]] = [
        [str(r), percent(errors.clean), percent(errors.attacked.get(r)), percent(v)] for r, v in errors.verified.items()
    ]
    print_table(("eps", "clean error", "PGD error", "unproved (IBP)"), rows, form)
    if form is Format.TABLE:
        typer.echo(f"{errors.images} images; bounds sound for: {errors.soundness}")
    if out is not None:
        write_file(out, json.dumps({"model": model, **errors.record()}, indent=2) + "\n")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(evaluate)

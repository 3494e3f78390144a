"""`surebound evaluate` and `surebound zoo`: error rates of trained networks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from surebound.cli.bounds import SOUNDNESS_HELP, Arithmetic
from surebound.cli.exits import EXIT_ERRORS
from surebound.cli.options import Data, DataDir, First, Form, Quiet, Target, Weights
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

    target = load_target(model, weights=weights, data=data, data_dir=data_dir)
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
        errors = measure(target.model, test, wanted, soundness=Soundness(soundness.value), seed=seed, progress=bar.show)
    rows: list[list[Cell]] = [
        [str(r), percent(errors.clean), percent(errors.attacked.get(r)), percent(v)] for r, v in errors.verified.items()
    ]
    print_table(("eps", "clean error", "PGD error", "unproved (IBP)"), rows, form)
    if form is Format.TABLE:
        typer.echo(f"{errors.images} images; bounds sound for: {errors.soundness}")
    if out is not None:
        write_file(out, json.dumps({"model": model, **errors.record()}, indent=2) + "\n")


def zoo(
    form: Form = Format.TABLE,
    add: Annotated[Path | None, typer.Option(help="A finished run to package.", show_default=False)] = None,
    name: Annotated[str | None, typer.Option("--as", help="The name to package it under.", show_default=False)] = None,
    verified: Annotated[
        Path | None,
        typer.Option(help="Results of `surebound verify` on the network --as, to note.", show_default=False),
    ] = None,
    check: Annotated[
        str | None, typer.Option(help="Check the packaged certificates of this network.", show_default=False)
    ] = None,
    certified: Annotated[
        Path | None,
        typer.Option(help="Certificates of the network --as: package a sample of them.", show_default=False),
    ] = None,
    leaderboard: Annotated[
        Path | None,
        typer.Option(help="Write a page that ranks them with the paper's and the literature's to this folder."),
    ] = None,
) -> None:
    """List the networks that come with the package, with their measured errors; or package a run of yours.

    Examples:

      surebound zoo --leaderboard docs

      surebound zoo --check mnist-small-ibp-0.4

      surebound verify mnist-small-ibp-0.4 --eps 1/10 --certificates proofs && surebound check proofs

      surebound zoo --certified proofs --as mnist-small-ibp-0.4
    """
    from surebound import zoo as nets
    from surebound.experiment.publish import publish, publish_verification

    if check is not None:
        _check_sample(check)
        return
    if leaderboard is not None:
        from surebound.reproduction.leaderboard import write

        typer.echo("".join(f"wrote {path}\n" for path in write(leaderboard)), nl=False)
        return
    if certified is not None and name is not None:
        from surebound.experiment.certified import publish_sample

        typer.echo(f"wrote {publish_sample(certified, name)}")
        return
    if verified is not None and name is not None and add is None:
        typer.echo(f"wrote {publish_verification(verified, name)}")
        return
    if (add is None) != (name is None) or verified is not None:
        raise InputError(
            "--add and --as belong together: the run directory, and the name to package it under; so do --verified "
            "and --as: the results of `surebound verify`, and the packaged network they are about"
        )
    if add is not None and name is not None:
        typer.echo(f"wrote {publish(add, name)}")
        return
    rows: list[list[Cell]] = []
    for entry in nets.entries():
        unproved: dict[str, float] = entry.results["verified_error"]
        # An attack on the first few images is not to be read beside errors on all of them.
        whole = entry.results["pgd_images"] == entry.results["images"]
        attacked: dict[str, float] = entry.results["pgd_error"] if whole else {}
        for radius, value in unproved.items():
            found = (entry.verification or {}).get(radius, {})
            clean, pgd = entry.results["clean_error"], found.get("pgd_error", attacked.get(radius))
            errors = (clean, pgd, found.get("float_sound_verified_error"), value)
            rows.append([entry.name, entry.data, entry.eps_train, radius, *map(percent, errors)])
    print_table(
        ("network", "data", "eps_train", "eps", "clean error", "PGD error", "unproved", "unproved (IBP)"),
        rows,
        form,
    )


def _check_sample(name: str) -> None:
    """Check the packaged certificates of a network, against the network as the package has it."""
    from surebound.certificates.archive import entries
    from surebound.cli.check import run_check
    from surebound.experiment.certified import packaged_network, sample_of

    if run_check(entries(sample_of(name)), 1, False, packaged_network(name)):
        raise typer.Exit(EXIT_ERRORS)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(evaluate)
    app.command()(zoo)

"""`surebound radius`: how far each image is proved, and how close a counterexample comes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surebound.cli.notes import note
from surebound.cli.options import Clip, Data, DataDir, Device, First, Form, Quiet, Target, ThreatName, Weights
from surebound.cli.output import Cell, Format, print_table, print_text, text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from torch import Tensor, nn

    from surebound.experiment.target import Target as TargetNetwork
    from surebound.search.verdicts import SizedRegion
    from surebound.threats import Threat
    from surebound.verify.radius import ImageRadius

COLUMNS = ("image", "label", "proved up to", "broken at", "left open", "float-sound")


def register(app: typer.Typer) -> None:
    app.command("radius")(radius)


def radius(
    model: Target,
    most: Annotated[
        str | None, typer.Option(help="The largest radius to ask about, kept exact (default: 1/2).")
    ] = None,
    step: Annotated[
        str | None,
        typer.Option(
            help="Distance of neighbouring radii: how exact the answer is (default: 1/256; of a threat 1/64, of "
            "patches and l0 a pixel)."
        ),
    ] = None,
    threat: ThreatName = None,
    first: First = None,
    weights: Weights = None,
    data: Data = None,
    data_dir: DataDir = None,
    device: Device = None,
    clip: Clip = None,
    cascade: Annotated[str, typer.Option(help="Which stages: default, paper, fast or crown.")] = "default",
    timeout: Annotated[float, typer.Option(min=0, help="Seconds per image, radius and stage.")] = 10.0,
    jobs: Annotated[int | None, typer.Option(min=1, help="Worker processes (default: one per core).")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Directory of the results store (default: RUN/radius; without a run none).")
    ] = None,
    figures: Annotated[Path | None, typer.Option(help="Write the distribution there, as PDF, SVG and PNG.")] = None,
    mix: Annotated[bool, typer.Option("--mix", help="Allow a store that holds results of other code.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the attacks.")] = 0,
    form: Form = Format.TABLE,
    quiet: Quiet = False,
) -> None:
    """Find, image by image, the largest radius that is proved and the smallest that is broken, by bisection.

    A proof holds at every smaller radius and a counterexample at every larger one, so a few questions per image settle
    all radii. Every verdict is kept at once: after Ctrl-C the table has what is known, and the same command goes on.

    Examples:

      surebound radius runs/digits --first 100 --figures figures

      surebound radius runs/digits --first 20 --threat rotation:20deg --step 1/2

      surebound radius runs/digits --first 20 --threat patch:4

      surebound radius net.onnx --data images.npz --most 16/255 --step 1/1020 --cascade fast --out radii
    """
    from surebound.cli.bar import Bar
    from surebound.experiment.target import load_target
    from surebound.numerics import exact_fraction
    from surebound.verify.radius import RadiusSearch

    asked = _asked(most, threat)
    exact = _finest(asked) if step is None and threat is not None else exact_fraction(step or "1/256", "--step")
    if ":" in model:
        sys.path.insert(0, os.getcwd())  # workers import the factory's module, too
    target = load_target(model, weights=weights, data=data, data_dir=data_dir, device=device, clip=clip)
    images, labels = target.first(first)
    place = out or (Path(model) / "radius" if (Path(model) / "config.toml").is_file() else None)
    if place is not None and out is None and threat is not None:
        place = place / str(asked).replace(":", "-").replace("/", "_")
    network, region = _largest(asked, target, images)
    if place is None:
        note("results are shown and not kept; with --out DIR they are, and a second start goes on")
    kept = "nothing was kept: use --out DIR" if place is None else "the same command goes on from here"
    stopped = None
    with Bar("bisecting", kept) as bar:
        search = RadiusSearch(
            network, region, labels, cascade, step=exact, timeout=timeout,
            jobs=target.processes(jobs), out=place, mix=mix, seed=seed, progress=bar.show,
        )  # fmt: skip
        try:
            search.run()
        except KeyboardInterrupt as error:
            stopped = error
    show(search.found, asked, form)
    if figures is not None:
        from surebound.report.charts import radius_distribution

        radius_distribution(search.found, target.name, _axis(asked)).write(figures)
        note(f"figure: {figures / 'radius.png'} (.svg, .pdf)")
    if stopped is not None:
        typer.echo(f"stopped; {kept}", err=True)
        raise stopped


def _asked(most: str | None, threat: str | None) -> Threat:
    """Return the threat whose sizes are searched, at its largest: --threat, or l-infinity balls up to --most."""
    from surebound.cli.threats import asked_threat
    from surebound.errors import InputError

    if threat is None:
        return asked_threat(most or "1/2", None)
    if most is not None:
        raise InputError("--most is for l-infinity balls; the size of --threat is the largest that is asked about")
    return asked_threat(None, threat)


def _finest(asked: Threat) -> Fraction:
    """Return the distance of neighbouring sizes where none is given: a pixel, or a part of the largest size."""
    from fractions import Fraction

    from surebound.threats.threat import PATCHES

    return Fraction(1) if asked.name in PATCHES else asked.size / 64


def _largest(asked: Threat, target: TargetNetwork, images: Tensor) -> tuple[nn.Module, SizedRegion]:
    """Return the network and the region of the largest size; patches and pixels anywhere, all places at once."""
    from surebound.pixel_ball import L0Ball, Patch

    if asked.name in ("patch", "l0"):
        kind = Patch if asked.name == "patch" else L0Ball
        return target.model, kind(images, asked.size, target.clip or (0.0, 1.0))
    return asked.against(target.model, images, target.clip)


def show(found: Sequence[ImageRadius], asked: Threat, form: Format) -> None:
    """One line per image; for people also what the middle image can take."""
    if form is Format.JSON:
        typer.echo(json.dumps([as_json(each, asked) for each in found], indent=1))
        return
    print_table(COLUMNS, [_row(each, asked) for each in found], form)
    if form is Format.TABLE:
        print_text(f"\n{conclusion(found, asked)}")


def as_json(each: ImageRadius, asked: Threat) -> dict[str, Any]:
    """Exact fractions as text, the same as numbers, and as the threats that --threat takes."""
    proved, broken = each.proved, each.broken
    return {
        "image": each.index,
        "label": each.label,
        "proved": None if proved is None else float(proved),
        "proved_exactly": None if proved is None else str(proved),
        "proved_threat": _named(proved, asked),
        "broken": None if broken is None else float(broken),
        "broken_exactly": None if broken is None else str(broken),
        "broken_threat": _named(broken, asked),
        "left_open": each.undecided,
        "float_sound": each.float_sound,
    }


def _named(radius: Fraction | None, asked: Threat) -> str | None:
    """Return a size as --threat takes it; a patch of no pixels is none."""
    from surebound.threats.threat import PATCHES

    return None if radius is None or (radius == 0 and asked.name in PATCHES) else str(asked.at(radius))


def conclusion(found: Sequence[ImageRadius], asked: Threat) -> str:
    """The table in two sentences."""
    from surebound.verify.radius import median

    right = [each for each in found if not each.misread]
    middle = median(each.proved for each in right if each.proved is not None)
    closest = median(each.broken for each in right if each.broken is not None)
    parts = [f"{len(found)} images, {len(found) - len(right)} misread as they are"]
    if middle is not None:
        parts.append(f"half of the others are proved up to {text(_size(middle, asked))} or more")
    if closest is not None:
        parts.append(f"half of the counterexamples lie within {text(_size(closest, asked))}")
    return "; ".join(parts)


def _size(radius: Fraction | None, asked: Threat) -> Cell:
    """Return a radius for people: a number, or of several changes at once the size of each of them."""
    from surebound.threats import Combination

    if radius is None:
        return None
    return asked.at(radius).rounded if isinstance(asked, Combination) else round(float(radius), 6)


def _axis(asked: Threat) -> str:
    """Return what the radii of a figure are."""
    from surebound.threats import Combination

    if isinstance(asked, Combination):
        return f"size, of which {asked.size} is {asked.rounded}"
    unit = {"patch": "side of the patch, in pixels", "l0": "pixels that hold anything"}.get(asked.name)
    return "ε, the largest change of a pixel" if asked.name == "linf" else unit or f"size of {asked.name}"


def _row(each: ImageRadius, asked: Threat) -> list[Cell]:
    sound = None if each.proved is None else each.float_sound
    return [each.index, each.label, _size(each.proved, asked), _size(each.broken, asked), each.undecided, sound]

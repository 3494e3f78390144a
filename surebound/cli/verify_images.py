"""Images on the command line: decide them, show what was found, say why some ended in errors."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from surebound.cli.certified import tell_certificates, write_onnx
from surebound.cli.exits import EXIT_ERRORS, EXIT_UNDER
from surebound.cli.loading import loading
from surebound.cli.notes import note
from surebound.cli.output import Cell, Format, percent, print_table
from surebound.cli.threats import asked_threats

if TYPE_CHECKING:
    from surebound.verify import Results, Summary


@dataclass(frozen=True)
class ImageRequest:
    """What `surebound verify NET --eps ...` was asked."""

    target: str
    eps: str | None
    threat: str | None
    cascade: str
    tighten: int
    first: int | None
    weights: Path | None
    data: str | None
    data_dir: Path | None
    device: str | None
    clip: tuple[float, float] | None
    out: Path | None
    certificates: Path | None
    jobs: int | None
    cluster: str | None
    timeout: float | None
    mix: bool
    seed: int
    form: Format
    fail_under: float | None
    explain: bool


def run_images(asked: ImageRequest) -> None:
    """Decide test images by a cascade."""
    with loading():
        from surebound.cli.explain import image_question
        from surebound.cli.verify_progress import Counts
        from surebound.experiment.target import load_target
        from surebound.experiment.verifications import note_verification
        from surebound.graph import forward
        from surebound.search.cascade import cascade as find_cascade
        from surebound.verify import verify as decide
        from surebound.verify.cluster import check_cluster

    threats = asked_threats(asked.eps, asked.threat, asked.certificates, asked.explain)
    radii = [each.size for each in threats]
    stages = find_cascade(asked.cascade)
    stages = stages.tightened(asked.tighten) if asked.tighten else stages
    stages.check()  # before anything slow is loaded
    if asked.cluster is not None:
        check_cluster(asked.cluster)
    if ":" in asked.target:
        sys.path.insert(0, os.getcwd())  # workers import the factory's module, too
    found = load_target(
        asked.target, weights=asked.weights, data=asked.data, data_dir=asked.data_dir, clip=asked.clip,
        device=asked.device,
    )  # fmt: skip
    here = None if asked.cluster is not None else found.processes(asked.jobs)
    place = store_directory(asked.target, asked.out)
    if place is not None and asked.out is None and asked.threat is not None:
        place = place / "threats" / str(threats[0]).replace(":", "-").replace("/", "_")
    images, labels = found.first(asked.first)
    limit = float("inf") if asked.timeout is None else asked.timeout
    if asked.explain:
        typer.echo(image_question(found, images, labels, radii, stages, limit, place), err=True)
    network, regions = found.model, []
    for each in threats:
        network, region = each.against(found.model, images, found.clip)
        regions.append(region)
    places = threats[0].each(images)
    read = forward(found.model, images).argmax(1).tolist() if places > 1 else []

    def keep_request() -> None:
        if place is not None:
            note_verification(
                place, network=found.name, data=found.data, images=len(images), radii=radii,
                cascade=stages, timeout=limit, seed=asked.seed, certificates=asked.certificates,
                threat=None if asked.threat is None else str(threats[0]), clip=found.clip,
                places=places, predictions=read,
            )  # fmt: skip

    if places > 1:
        keep_request()  # first: nobody may take places for images, even if it is stopped
    try:
        with Counts() as progress:
            results = decide(
                network, regions, labels.repeat_interleave(places), stages,
                timeout=limit, jobs=here, cluster=asked.cluster, out=place, mix=asked.mix,
                certificates=asked.certificates, seed=asked.seed, progress=progress,
            )  # fmt: skip
    except KeyboardInterrupt:
        kept = "nothing was kept: use --out DIR" if place is None else "the same command goes on from here"
        typer.echo(f"stopped; {kept}", err=True)
        raise
    if places > 1:
        note(f"{places} places of the patch for each image; an image is proved if all of them are")
        results = results.by_image(places, read)
    keep_request()
    show(results, asked.form)
    if asked.certificates is not None:
        tell_certificates(sum(r.verdict.status.decided for r in results), asked.certificates)
        write_onnx(found.model, images[:1], asked.certificates / "network.onnx")
    failed = tell_errors(results)
    if asked.fail_under is not None and too_little(results, asked.fail_under):
        raise typer.Exit(EXIT_UNDER)
    if failed:
        raise typer.Exit(EXIT_ERRORS)


def too_little(results: Results, percentage: float) -> bool:
    """Say at which radii less is proved than asked for; is there one?"""
    under = [s for eps in results.radii if 100 * (1 - (s := results.summary(eps)).verified_error) < percentage]
    for summary in under:
        typer.echo(
            f"surebound: {1 - summary.verified_error:.2%} of the images are proved at eps {summary.eps}, "
            f"less than --fail-under {percentage:g}",
            err=True,
        )
    return bool(under)


def tell_errors(results: Results) -> bool:
    """Say why images ended in errors, each reason once; were there any?"""
    from surebound.verdict import Status

    reasons = Counter(r.verdict.detail or "no reason given" for r in results if r.verdict.status is Status.ERROR)
    for reason, count in reasons.most_common(5):
        typer.echo(f"surebound: {count} image(s) ended in an error: {reason}", err=True)
    if reasons:
        typer.echo("surebound: they count as attackable, and are tried again by the same command", err=True)
    return bool(reasons)


def store_directory(target: str, out: Path | None) -> Path | None:
    """Where results go: --out, or the run directory itself; None: nowhere, they are only shown."""
    if out is not None:
        return out
    if (Path(target) / "config.toml").is_file():
        return Path(target)
    note("results are shown and not kept; with --out DIR they are, and a second start goes on")
    return None


COLUMNS = (
    "eps", "images", "clean error", "PGD error", "verified error", "float-sound", "truth in", "unknown",
    "timeout", "error", "seconds",
)  # fmt: skip


def show(results: Results, form: Format) -> None:
    """One line per radius; for people and as JSON also what each stage settled."""
    summaries = [results.summary(radius) for radius in results.radii]
    if form is Format.JSON:
        typer.echo(json.dumps([as_json(summary) for summary in summaries], indent=1))
        return
    print_table(COLUMNS, [_row(summary) for summary in summaries], form)
    if form is Format.TABLE:
        typer.echo()
        stages: list[list[Cell]] = [[str(s.eps), *line] for s in summaries for line in s.stages]
        print_table(("eps", "stage", "status", "images"), stages)
        if results.path is not None:
            typer.echo(f"\nresults: {results.path}")


def as_json(summary: Summary) -> dict[str, Any]:
    """The table's line with numbers, shares in [0, 1], and what each stage settled in how many seconds."""
    line: dict[str, Any] = dict(zip(COLUMNS, _row(summary), strict=True))
    seconds = dict(summary.stage_seconds)
    names = dict.fromkeys([*seconds, *(stage for stage, _, _ in summary.stages)])
    line["truth in"] = [summary.falsified_error, summary.verified_error]
    line["stages"] = [
        {
            "stage": name,
            "seconds": round(seconds.get(name, 0.0), 6),
            **{status: count for stage, status, count in summary.stages if stage == name},
        }
        for name in names
    ]
    return line


def _row(summary: Summary) -> list[Cell]:
    counts = dict(summary.statuses)
    low, high = summary.falsified_error, summary.verified_error
    return [
        str(summary.eps), summary.total, percent(summary.clean_error), percent(summary.pgd_error),
        percent(summary.verified_error), percent(summary.float_sound_error), f"[{low:.2%}, {high:.2%}]",
        counts.get("unknown", 0), counts.get("timeout", 0), counts.get("error", 0), round(summary.seconds, 1),
    ]  # fmt: skip

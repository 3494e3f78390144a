"""`surebound attack`: look for inputs that break a network, and count what is left standing."""

from __future__ import annotations

import dataclasses
import enum
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from surebound.cli.exits import EXIT_ERRORS
from surebound.cli.options import Clip, Data, DataDir, Device, First, Form, Quiet, Target, ThreatName, Weights
from surebound.cli.output import Cell, Format, percent, print_table, write_file
from surebound.cli.threats import asked_threat, pictures
from surebound.errors import BoundError, GraphError, InputError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from surebound.attack import Attack, AttackProgress, AttackResult
    from surebound.cli.bar import Bar
    from surebound.search.verdicts import SizedRegion

BOUND_BATCH = 100


class Name(enum.StrEnum):
    """The names of surebound.attack.methods.BY_NAME, which this module must not import at the top."""

    PGD = "pgd"
    MULTI_TARGETED = "multi-targeted"
    FGSM = "fgsm"
    SPSA = "spsa"
    CARLINI_WAGNER = "carlini-wagner"


class Start(enum.StrEnum):
    """The names of surebound.attack.starts.STARTS."""

    UNIFORM = "uniform"
    CORNER = "corner"
    MIXED = "mixed"
    CENTER = "center"


def register(app: typer.Typer) -> None:
    app.command("attack")(attack)


def attack(
    target: Target,
    eps: Annotated[
        str | None,
        typer.Option(help="Radius of the l-infinity ball in pixel space, kept exact: 8/255, 0.3.", show_default=False),
    ] = None,
    threat: ThreatName = None,
    name: Annotated[Name, typer.Option("--attack", help="Which attack.")] = Name.PGD,
    steps: Annotated[int | None, typer.Option(help="Steps per trial (default: the attack's own; PGD 200).")] = None,
    restarts: Annotated[int | None, typer.Option(help="Restarts (default: the attack's own; PGD 10).")] = None,
    start: Annotated[Start | None, typer.Option(help="Where trials start.")] = None,
    weights: Weights = None,
    data: Data = None,
    data_dir: DataDir = None,
    device: Device = None,
    clip: Clip = None,
    first: First = None,
    attack_proved: Annotated[
        bool,
        typer.Option("--attack-proved", help="Attack what a bound proves as well: a check on the bounds."),
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of starts and samples.")] = 0,
    memory: Annotated[int, typer.Option(min=1, help="MiB for the examples in flight.")] = 256,
    save: Annotated[
        Path | None,
        typer.Option(help="Write the worst inputs to this .safetensors file; --data can read it."),
    ] = None,
    form: Form = Format.TABLE,
    quiet: Quiet = False,
) -> None:
    """Attack a network inside l-infinity balls around test images, or by another threat.

    Whatever is found lies in the ball exactly and was run through the network again. Images that interval
    bounds prove robust cannot fall and are skipped, unless --attack-proved asks for the check. Ctrl-C ends the
    search after the step it is at: what was found until then is shown, and saved with --save.

    Examples:

      surebound attack runs/mnist-small --eps 0.3 --steps 200 --restarts 10

      surebound attack runs/mnist-small --threat translation:2 --save worst.safetensors

      surebound attack mypkg.nets:build --weights w.safetensors --data digits --eps 8/255 --attack spsa
    """
    from surebound.attack import attack as search
    from surebound.cli.bar import Bar
    from surebound.experiment.signals import exit_code, stop_on_signals
    from surebound.experiment.target import load_target
    from surebound.graph import forward
    from surebound.region import warn_if_wide

    method = _method(name, steps, restarts, start)
    _check_save(save)
    asked = asked_threat(eps, threat)  # before anything slow is loaded
    found = load_target(target, weights=weights, data=data, data_dir=data_dir, device=device, clip=clip)
    images, labels = found.first(first)
    network, region = asked.against(found.model, images, found.clip)
    places = asked.each(images)
    labels = labels.repeat_interleave(places)
    if asked.in_pixels:
        warn_if_wide([region.widest], region.clip)
    began = time.monotonic()
    with Bar("bounding") as bar:
        proved = _proved(network, region, labels, bar)
    with Bar("attacking") as bar, stop_on_signals() as stopped:

        def show(now: AttackProgress) -> None:
            bar.show(now.done, now.total, f"{now.broken} of {now.examples} broken")

        result = search(
            network, region, labels, method,
            proved=None if attack_proved else proved, seed=seed, memory=memory * 2**20, progress=show,
            stop=lambda: bool(stopped),
        )  # fmt: skip
    seconds = time.monotonic() - began
    contradicted = (result.success & proved).nonzero().squeeze(1).tolist()
    if places > 1:
        result, proved = _by_image(result, proved, places, forward(found.model, images).argmax(1) != labels[::places])
        labels = labels[::places]
    print_table(COLUMNS, [_row(name, eps or str(asked), result, proved, seconds)], form)
    if save is not None:
        _save(save, result, labels, pictures(network, result.adversarial))
    partial = not bool(result.finished.all())  # a signal after the last step came too late to matter
    if partial:
        typer.echo(_partial(result, save), err=True)
    if contradicted:
        typer.echo(
            f"surebound: {len(contradicted)} image(s) were proved robust and then broken, the first is "
            f"number {contradicted[0]}: the bounds are wrong. Please report this network.",
            err=True,
        )
        raise typer.Exit(EXIT_ERRORS)
    if partial:
        raise typer.Exit(exit_code(stopped[0]))


def _by_image(result: AttackResult, proved: Tensor, places: int, wrong: Tensor) -> tuple[AttackResult, Tensor]:
    """Keep the worst of the places of a patch for each image: broken if one is, proved and finished if all are.

    wrong (B,): which images are misread as they are.
    """
    rank = result.success.double() * 1e9 + result.margins.double()  # heuristic: broken ones first; nothing rests on it
    best = rank.reshape(-1, places).argmax(1)
    index = best + places * best.new_ones(len(best)).cumsum(0) - places
    every = {name: getattr(result, name).reshape(-1, places) for name in ("attacked", "finished", "steps", "queries")}
    joined = dataclasses.replace(
        result,
        **{name: getattr(result, name)[index] for name in ("adversarial", "success", "margins", "predictions")},
        clean_success=wrong,
        attacked=every["attacked"].any(1),
        finished=every["finished"].all(1) | result.success[index],
        steps=every["steps"].sum(1),
        queries=every["queries"].sum(1),
    )
    return joined, proved.reshape(-1, places).all(1)


def _partial(result: AttackResult, save: Path | None) -> str:
    """What a search that was stopped can say."""
    searched = int(result.attacked.sum())
    finished = int((result.attacked & result.finished).sum())
    broken = int((result.attacked & result.success).sum())
    kept = "" if save is None else f"; {save} holds what was found until then"
    return (
        f"stopped, so this is partial: of {searched} images to search, {finished} are finished and {broken} broken; "
        f"the error under attack is that of what was searched so far, and can only grow{kept}"
    )


COLUMNS = (
    "attack", "eps", "examples", "clean error", "error under attack",
    "proved", "searched", "finished", "undecided", "seconds",
)  # fmt: skip


def _row(name: Name, eps: str, result: AttackResult, proved: Tensor, seconds: float) -> list[Cell]:
    """The table's one line; undecided are the examples that are neither broken nor proved."""
    undecided = int((~result.success & ~proved).sum())
    return [
        name.value, eps, len(result), percent(result.clean_error), percent(result.error),
        int(proved.sum()), int(result.attacked.sum()), int((result.attacked & result.finished).sum()), undecided,
        round(seconds, 1),
    ]  # fmt: skip


def _method(name: Name, steps: int | None, restarts: int | None, start: Start | None) -> Attack:
    """The attack with what was asked for, and its own defaults for the rest."""
    from surebound.attack.methods import BY_NAME

    given = {"steps": steps, "restarts": restarts, "start": None if start is None else start.value}
    options = {key: value for key, value in given.items() if value is not None}
    make = BY_NAME[name.value]
    return make(**options)  # type: ignore[arg-type]  # every attack has these three


def _proved(model: nn.Module, region: SizedRegion, labels: Tensor, bar: Bar) -> Tensor:
    """Which examples interval bounds prove, for every float32 execution: (B,); none without bounds."""
    import torch

    from surebound.bounds import worst_margins
    from surebound.numerics import proved

    settled = torch.zeros(len(labels), dtype=torch.bool, device=labels.device)
    try:
        with torch.no_grad():
            for first in range(0, len(labels), BOUND_BATCH):
                part = slice(first, first + BOUND_BATCH)
                settled[part] = proved(worst_margins(model, region[part], labels[part])).all(1)
                bar.show(min(part.stop, len(labels)), len(labels))
    except (GraphError, BoundError) as error:  # not traced, or no finite bound: an attack needs neither
        reason = str(error).splitlines()[0]
        typer.echo(
            f"surebound: no bounds for this network, so nothing is proved and everything is attacked ({reason})",
            err=True,
        )
        settled[:] = False
    return settled


def _check_save(path: Path | None) -> None:
    if path is not None and path.suffix != ".safetensors":
        raise InputError(f"--save {path}: give a file name that ends in .safetensors")
    if path is not None and not path.resolve().parent.is_dir():
        raise InputError(f"--save {path}: there is no directory {path.resolve().parent}; make it first")


def _save(path: Path, result: AttackResult, labels: Tensor, images: Tensor) -> None:
    from safetensors.torch import save

    found = {
        "images": images,
        "labels": labels,
        "success": result.success,
        "finished": result.finished,
        "margins": result.margins,
        "predictions": result.predictions,
    }
    write_file(path, save({name: tensor.contiguous() for name, tensor in found.items()}), "--save")

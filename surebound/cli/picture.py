"""`surebound picture`: what a network makes of one image, as files for slides and papers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from surebound.cli.options import Clip, Data, DataDir, Device, Target, Weights
from surebound.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from surebound.region import LinfBall
    from surebound.report.figure import Figure

METHODS = ("interval", "crown-ibp", "alpha-crown")


def register(app: typer.Typer) -> None:
    app.command("picture")(picture)


def picture(
    model: Target,
    eps: Annotated[str, typer.Option(help="Radius in pixel space, kept exact: 8/255, 0.1.", show_default=False)],
    index: Annotated[int, typer.Option(min=0, help="The image by its number.")] = 0,
    out: Annotated[Path, typer.Option(help="Directory for the files.")] = Path("figures"),
    weights: Weights = None,
    data: Data = None,
    data_dir: DataDir = None,
    device: Device = None,
    clip: Clip = None,
) -> None:
    """Draw what a network makes of one image, each figure as PDF, SVG and PNG.

    outputs: the range of every output over the ball, by three methods. propagation: the bounds before every ReLU, and
    how many may have either sign. filters: the weights that read the image. counterexample: one that PGD finds.

    Example:  surebound picture runs/digits --eps 1/10 --index 3 --out figures
    """
    import torch

    from surebound.experiment.target import load_target
    from surebound.region import LinfBall
    from surebound.report.pictures import filters, propagation

    target = load_target(model, weights=weights, data=data, data_dir=data_dir, device=device, clip=clip)
    test = target.test()
    if index >= len(test):
        raise InputError(f"--index {index}: there are {len(test)} images, 0 to {len(test) - 1}")
    image, label = test.batch(torch.tensor([index]))
    region = LinfBall(image, eps, target.clip)
    drawn = [
        _ranges(target.model, region, label),
        propagation(target.model, region),
        filters(target.model, tuple(image.shape[1:])),
        _broken(target.model, region, label, index),
    ]
    for figure in drawn:
        if figure is not None:
            figure.write(out)
            typer.echo(f"{out / figure.name}.png, .svg, .pdf: {figure.alt}")


def _ranges(model: nn.Module, region: LinfBall, label: Tensor) -> Figure:
    """Ranges by every method that the network's operators allow."""
    import torch

    from surebound.bounds import worst_margins
    from surebound.errors import UnsupportedOperatorError
    from surebound.graph import forward
    from surebound.report.pictures import output_ranges
    from surebound.spec import LinearSpec

    with torch.no_grad():
        values = forward(model, region.x)[0]
        rows = torch.eye(len(values), dtype=values.dtype)
        found = {}
        for method in METHODS:
            try:  # z_k and -z_k as specifications
                bounds = worst_margins(model, region, spec=LinearSpec(torch.cat([rows, -rows])), method=method)[0]
            except UnsupportedOperatorError:
                continue
            found[method] = (-bounds[len(values) :], bounds[: len(values)])
    return output_ranges(int(label), values, found, str(region.eps))


def _broken(model: nn.Module, region: LinfBall, label: Tensor, index: int) -> Figure | None:
    from surebound.attack import attack
    from surebound.attack.methods import PGD
    from surebound.report.gallery import Picture
    from surebound.report.pictures import counterexamples

    found = attack(model, region, label, PGD(steps=100, restarts=4))
    if not bool(found.success[0]):
        return None
    title = f"{int(label)} → {int(found.predictions[0])}"
    shown = Picture(region.x[0], found.adversarial[0], title, f"image {index}", float(region.eps))
    return counterexamples("counterexample", [shown])

"""`surebound bounds`: what a network can be made to answer inside a region, as a table."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Annotated

import typer

from surebound.cli.options import Clip, Data, DataDir, Device, Form, Indices, Quiet, Target, ThreatName, Weights
from surebound.cli.output import Cell, Format, print_table, print_text
from surebound.cli.pieces import pieces
from surebound.cli.threats import asked_threat
from surebound.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from surebound.search.verdicts import SizedRegion


class MethodName(enum.StrEnum):
    """The names of surebound.bounds.margins.METHODS, which this module must not import at the top."""

    INTERVAL = "interval"
    ZONOTOPE = "zonotope"
    SYMBOLIC = "symbolic"
    HYBRID = "hybrid"
    CROWN_IBP = "crown-ibp"
    CROWN = "crown"
    WONG = "wong"
    ALPHA_CROWN = "alpha-crown"
    DVIJOTHAM = "dvijotham"
    RAGHUNATHAN = "raghunathan"


class Arithmetic(enum.StrEnum):
    """The names of surebound.numerics.Soundness, which this module must not import at the top."""

    NONE = "none"
    REAL = "real"
    DEPLOYED = "deployed"


class Show(enum.StrEnum):
    """What is bounded."""

    MARGINS = "margins"
    OUTPUTS = "outputs"


SOUNDNESS_HELP = "The arithmetic: deployed (every float32 execution), real (exact), none (proves nothing)."
METHOD_HELP = "From quick to tight; all but the first are linear bounds, never looser than intervals."
SHOW_HELP = "margins: of the class that comes closest to the true one; outputs: every output's range."


def register(app: typer.Typer) -> None:
    app.command("bounds")(bounds)


def bounds(
    model: Target,
    eps: Annotated[
        str | None, typer.Option(help="Radius in pixel space, kept exact: 8/255, 0.1.", show_default=False)
    ] = None,
    threat: ThreatName = None,
    weights: Weights = None,
    data: Data = None,
    data_dir: DataDir = None,
    device: Device = None,
    index: Indices = None,
    first: Annotated[int | None, typer.Option(help="The first N images (default: all).")] = None,
    method: Annotated[MethodName, typer.Option(help=METHOD_HELP)] = MethodName.INTERVAL,
    soundness: Annotated[Arithmetic, typer.Option(help=SOUNDNESS_HELP)] = Arithmetic.DEPLOYED,
    show: Annotated[Show, typer.Option(help=SHOW_HELP)] = Show.MARGINS,
    clip: Clip = None,
    batch_size: Annotated[
        int, typer.Option(min=1, help="At most so many images at a time; slow methods take fewer.")
    ] = 100,
    form: Form = Format.TABLE,
    quiet: Quiet = False,
) -> None:
    """Bound a network's outputs over l-infinity balls around images, or against another threat to them.

    An image is proved robust when no class can overtake the true one anywhere in its ball. Ctrl-C shows the table of
    the images bounded until then.

    Examples:

      surebound bounds runs/digits --eps 1/10 --first 10 --method alpha-crown

      surebound bounds net.onnx --data images.npz --eps 1/20

      surebound bounds runs/digits --threat rotation:5deg --first 10 --method crown

      surebound bounds mypkg.nets:build --data images.npz --index 3 --index 7 --eps 0.1 --show outputs
    """
    import torch

    from surebound.cli.bar import Bar
    from surebound.experiment.target import load_target
    from surebound.graph import program_of
    from surebound.kernels import keep_memory
    from surebound.region import warn_if_wide

    keep_memory()  # batch after batch needs the same arrays
    asked = asked_threat(eps, threat)  # before anything slow is loaded
    target = load_target(model, weights=weights, data=data, data_dir=data_dir, device=device, clip=clip)
    network, test = target.model, target.test()
    chosen = choose(len(test), index or [], first)
    columns, bound = (MARGIN_COLUMNS, margin_rows) if show is Show.MARGINS else (OUTPUT_COLUMNS, output_rows)
    rows: list[list[Cell]] = []
    stopped = None
    try:
        with torch.no_grad(), Bar("bounding") as bar:
            # A network that fixes its batch size (x.view(8, -1)) takes no smaller pieces.
            batch, _ = test.batch(torch.tensor(chosen[:batch_size]))
            front, region = asked.against(network, batch, target.clip)
            if asked.in_pixels:
                warn_if_wide([region.widest], region.clip)
            fixed = program_of(front, region.x).graph.input_shape[0] is not None
            for part in pieces(len(chosen), batch_size, fixed=fixed):
                numbers = chosen[part]
                images, labels = test.batch(torch.tensor(numbers))
                # One network for all batches: it is traced once.
                region = asked.against(network, images, target.clip)[1]
                places = asked.each(images)
                every = [number for number in numbers for _ in range(places)]
                found = bound(front, region, labels.repeat_interleave(places), every, method, soundness)
                rows += found if places == 1 else _by_image(found, show, network, images)
                bar.kept = f"the table has the first {part.stop} of {len(chosen)} images"
                bar.show(part.stop, len(chosen))
    except KeyboardInterrupt as error:
        stopped = error
    if rows or stopped is None:
        print_table(columns, rows, form)
        if form is Format.TABLE and show is Show.MARGINS:
            print_text(conclusion(rows, f"at eps = {eps}" if threat is None else f"against {asked}", soundness))
    if stopped is not None:
        raise stopped


def _by_image(rows: list[list[Cell]], show: Show, network: nn.Module, images: Tensor) -> list[list[Cell]]:
    """Keep the worst over the places of a patch: one line for each image, or for each output of one."""
    outputs = network(images)
    groups: dict[tuple[Cell, ...], list[list[Cell]]] = {}
    for row in rows:
        groups.setdefault((row[0],) if show is Show.MARGINS else (row[0], row[2]), []).append(row)
    made = []
    for number, group in enumerate(groups.values()):
        if show is Show.MARGINS:
            worst = max(group, key=lambda row: float(str(row[4])))
            made.append([*worst[:2], int(outputs[number].argmax()), *worst[3:5], all(row[5] for row in group)])
        else:
            low, high = (pick(float(str(row[at])) for row in group) for pick, at in ((min, 3), (max, 5)))
            made.append([*group[0][:3], low, float(outputs.flatten()[number]), high])
    return made


def choose(count: int, index: list[int], first: int | None) -> list[int]:
    """Which images were asked for: given indices, else the first few, else all."""
    if index and first is not None:
        raise InputError("--index and --first were both given; use one of them")
    if first is not None and first < 1:
        raise InputError(f"--first {first}: give 1 or more")
    wrong = [i for i in index if not 0 <= i < count]
    if wrong:
        raise InputError(f"--index {wrong[0]}: there are {count} images, so indices run from 0 to {count - 1}")
    return index or list(range(count if first is None else min(first, count)))


MARGIN_COLUMNS = ("image", "label", "prediction", "rival", "worst margin", "proved")
OUTPUT_COLUMNS = ("image", "label", "output", "lower", "value", "upper")


def margin_rows(
    network: nn.Module,
    region: SizedRegion,
    labels: Tensor,
    numbers: list[int],
    method: MethodName,
    soundness: Arithmetic,
) -> list[list[Cell]]:
    """One line per image: the class that comes closest to overtaking the true one, and by how much."""
    from surebound.bounds import worst_margins
    from surebound.numerics import proved

    margins = worst_margins(network, region, labels, method=method.value, soundness=soundness.value)  # (B, K)
    if margins.shape[1] < 2:
        raise InputError("the network has a single output, so there are no margins; use --show outputs")
    predictions = network(region.x).argmax(1)
    # NaN counts as the worst: it proves nothing.
    rivals = margins.nan_to_num(float("inf")).scatter(1, labels[:, None], -float("inf"))
    worst, rival = rivals.max(1)
    sound = soundness is not Arithmetic.NONE
    robust = proved(worst) & (predictions == labels)
    return [
        [
            number,
            int(labels[i]),
            int(predictions[i]),
            int(rival[i]),
            float(worst[i]),
            bool(robust[i]) if sound else None,
        ]
        for i, number in enumerate(numbers)
    ]


def output_rows(
    network: nn.Module,
    region: SizedRegion,
    labels: Tensor,
    numbers: list[int],
    method: MethodName,
    soundness: Arithmetic,
) -> list[list[Cell]]:
    """One line per image and output: its range over the region, and its value at the image."""
    import torch

    from surebound.bounds import interval_bounds, worst_margins
    from surebound.graph import forward
    from surebound.spec import LinearSpec

    values = forward(network, region.x).flatten(1)  # (B, K)
    if method is MethodName.INTERVAL:
        box = interval_bounds(network, region, soundness=soundness.value)
        lower, upper = box.lower.flatten(1), box.upper.flatten(1)
    else:  # z_k and -z_k as specifications
        both = torch.eye(values.shape[1], dtype=values.dtype).repeat(2, 1)
        both[values.shape[1] :] *= -1
        found = worst_margins(network, region, spec=LinearSpec(both), method=method.value, soundness=soundness.value)
        upper, lower = found.chunk(2, dim=1)[0], -found.chunk(2, dim=1)[1]
    return [
        [number, int(labels[i]), k, float(lower[i, k]), float(values[i, k]), float(upper[i, k])]
        for i, number in enumerate(numbers)
        for k in range(values.shape[1])
    ]


def conclusion(rows: list[list[Cell]], against: str, soundness: Arithmetic) -> str:
    """The table in one sentence."""
    correct = sum(row[1] == row[2] for row in rows)
    start = f"\n{len(rows)} images, {correct} classified correctly"
    if soundness is Arithmetic.NONE:
        return f"{start}; soundness 'none' proves nothing"
    robust = sum(row[5] is True for row in rows)
    held = "every float32 execution" if soundness is Arithmetic.DEPLOYED else "exact arithmetic"
    return f"{start}, {robust} proved robust {against} for {held}"

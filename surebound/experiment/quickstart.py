"""The first thing a newcomer runs: two networks, one of them trained with its bounds, on the embedded digits.

The point of the whole field in one comparison: the ordinary network is accurate and nothing can be proved of
it; the one that was trained with interval bounds is nearly as accurate and provably robust.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import torch
from torch import Tensor, nn

from surebound import data as datasets
from surebound.bounds import interval_bounds
from surebound.data import Split
from surebound.experiment import run
from surebound.experiment.overrides import Overrides
from surebound.experiment.presets import preset
from surebound.experiment.run import Caller
from surebound.experiment.target import load_target
from surebound.experiment.verifications import note_verification
from surebound.numerics import exact_fraction
from surebound.region import LinfBall
from surebound.search.stages import Clean, IntervalBounds, PgdAttack
from surebound.verify import Cascade, verify

PRESETS = {"ordinary training": "digits-nominal", "trained with interval bounds": "digits-ibp"}
EPSILONS = tuple(exact_fraction(f"{k}/50") for k in range(9))
SHOWN = exact_fraction("1/10")  # the radius of the table; the second network was trained for it
EXAMPLE_EPS = exact_fraction("1/25")  # the radius of the bars, small enough for the first network's to fit
CASCADE = Cascade("quickstart", (Clean(), IntervalBounds(), PgdAttack(steps=40, restarts=2)))


@dataclass(frozen=True)
class Curve:
    """Shares of the test images that are classified correctly, by radius. The truth lies in between."""

    name: str
    eps: tuple[Fraction, ...]
    attacked: tuple[float, ...]  # still correct after the attack: no more than these are robust
    proved: tuple[float, ...]  # proved for every float32 execution: no fewer than these are robust

    def at(self, eps: Fraction) -> tuple[float, float]:
        """(attacked, proved) at one of the radii."""
        where = self.eps.index(eps)
        return self.attacked[where], self.proved[where]


@dataclass(frozen=True)
class BoundedImage:
    """One image with the range of every output over its ball."""

    image: Tensor  # (H, W)
    label: int
    eps: Fraction
    lower: Tensor  # (K,)
    value: Tensor  # (K,)
    upper: Tensor  # (K,)


@dataclass(frozen=True)
class Quickstart:
    """Everything the table and the picture show."""

    curves: tuple[Curve, ...]
    examples: tuple[BoundedImage, ...]  # one per curve


def train(
    out: Path, caller_for: Callable[[str], Caller], steps: int | None = None, device: str | None = None
) -> dict[str, nn.Module]:
    """Both networks, trained in run directories under `out`; what is there already is continued or reused."""
    networks = {}
    for name, preset_name in PRESETS.items():
        path, caller = out / preset_name, caller_for(preset_name)
        if not (path / "final.safetensors").is_file():
            if (path / "config.toml").is_file():
                run.resume(path, caller)
            else:
                run.start(Overrides(steps=steps, device=device).apply(preset(preset_name)), path, caller)
        networks[name] = load_target(str(path), device=device).model
    return networks


def run_paths(out: Path) -> dict[str, Path]:
    """Where each network's run is."""
    return {name: out / preset_name for name, preset_name in PRESETS.items()}


def compare(
    networks: dict[str, nn.Module],
    epsilons: Sequence[Fraction] = EPSILONS,
    shown: Fraction = EXAMPLE_EPS,
    out: Path | None = None,
    device: str | None = None,
) -> Quickstart:
    """Attack and bound every network on the test images; with `out` the verdicts stay in the run directories."""
    test = datasets.load("digits").to(run.device_of(device or "cpu")).test
    paths = run_paths(out) if out is not None else {}
    curves = tuple(curve(name, network, test, epsilons, paths.get(name)) for name, network in networks.items())
    return Quickstart(curves, tuple(example(network, test, 0, shown) for network in networks.values()))


def curve(name: str, network: nn.Module, test: Split, epsilons: Sequence[Fraction], out: Path | None = None) -> Curve:
    """Attacked and proved accuracy at every radius."""
    images, labels = test.batch(torch.arange(len(test)))
    # mix: verdicts of an older version on the same weights count as done
    balls = [LinfBall(images, eps, clip=(0, 1)) for eps in epsilons]
    found = verify(network, balls, labels, CASCADE, out=out, mix=True)
    if out is not None:
        note_verification(
            out, network=PRESETS[name], data="digits", images=len(images), radii=epsilons,
            cascade=CASCADE, timeout=float("inf"), seed=0,
        )  # fmt: skip
    summaries = [found.summary(eps) for eps in epsilons]
    return Curve(
        name,
        tuple(epsilons),
        tuple(1 - s.pgd_error for s in summaries),
        tuple(1 - s.verified_error for s in summaries),
    )


def example(network: nn.Module, test: Split, index: int, eps: Fraction) -> BoundedImage:
    """The outputs' ranges over the ball around one test image."""
    image, label = test.batch(torch.tensor([index]))
    with torch.no_grad():
        box = interval_bounds(network, LinfBall(image, eps, clip=(0, 1)))
        value = network(image)
    shown = (v[0].cpu() for v in (image[:, 0], box.lower, value, box.upper))
    pixels, lower, outputs, upper = shown
    return BoundedImage(pixels, int(label), eps, lower, outputs, upper)

"""Figures 1 and 8: an image that PGD cannot break and a complete search can, with both perturbations."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from surebound.report.figure import BROKEN, PROVED, Figure
from surebound.report.gallery import difference_pixels, image_pixels
from surebound.report.verdicts import radius_text
from surebound.reproduction.artefacts import gap_case
from surebound.reproduction.artefacts.base import Artefact, Drawn, notes_at, number
from surebound.reproduction.bench import Bench
from surebound.reproduction.scale import Scale

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


def _picture(values: dict[str, Any]) -> Figure:
    eps = float(Fraction(values["eps"]))
    nominal = torch.tensor(values["image"])
    attacks = [
        ("PGD", torch.tensor(values["pgd_image"])),
        ("complete search", torch.tensor(values["exact_image"])),
    ]

    def draw(canvas: Canvas) -> None:
        grid = canvas.add_gridspec(2, 3, width_ratios=(1.05, 1, 1))
        axes = canvas.add_subplot(grid[:, 0])
        axes.imshow(image_pixels(nominal))
        axes.set_title(f"image {values['index']}: a {values['label']}")
        axes.set_axis_off()
        for row, (name, image) in enumerate(attacks):
            prediction = values["predictions"][1 + row]
            right = prediction == values["label"]
            left, change = canvas.add_subplot(grid[row, 1]), canvas.add_subplot(grid[row, 2])
            left.imshow(image_pixels(image))
            verdict = f"still a {prediction}" if right else f"a {prediction}"
            left.set_title(f"{name}: {verdict}", color=PROVED if right else BROKEN)
            change.imshow(np.asarray(difference_pixels(image - nominal, eps)))
            change.set_title(f"change, ±{radius_text(Fraction(values['eps']))}")
            for each in (left, change):
                each.set_axis_off()

    alt = "An image, the worst change PGD found, and the counterexample of the complete search"
    return Figure("figure-1", alt, draw, (6.2, 4.0))


def draw(bench: Bench, scale: Scale) -> Drawn:
    values = bench.values(gap_case.case(scale))
    net = gap_case.network(scale)
    if not values["found"]:
        return Drawn(headline=gap_case.nothing_found(values, scale), notes=notes_at(scale))
    notes = notes_at(
        scale,
        f"Network {bench.facts(net)['network']} ({net.schedule}), ε = {values['eps']}. PGD: {values['pgd']}, "
        f"untargeted, Adam with a step that decays, tried twice with different seeds. Of {values['images']} images "
        f"PGD broke {values['attacked']}, the complete search {values['missed']} more; {values['undecided']} stayed "
        "undecided. The paper shows image 1365 of a medium network trained with ε = 0.1.",
    )
    headline = (
        f"PGD ({values['pgd']}) leaves image {values['index']} a {values['label']}; "
        f"{values['stage']} finds a change that makes it a {values['predictions'][2]}."
    )
    numbers = (number(bench, net, figure="figure-1", index=values["index"], eps=values["eps"]),)
    return Drawn((), (_picture(values),), headline, notes, numbers)


ARTEFACT = Artefact("figure-1", "pgd-vs-exact", "When PGD is not enough", gap_case.plan, draw)

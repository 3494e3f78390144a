"""The image behind figures 1, 8 and 9: the search for it is done once."""

from __future__ import annotations

from fractions import Fraction

from surebound.attack.methods import PGD
from surebound.reproduction.bench import Bench
from surebound.reproduction.gap import gap
from surebound.reproduction.scale import Scale, training
from surebound.reproduction.work import Check, Compute, Training, WorkPlan


def network(scale: Scale) -> Training:
    """The paper's is a medium network trained for 0.1; below that scale the packaged small one does."""
    if scale is Scale.PAPER:
        return training(scale, "mnist", "medium", "ibp", "0.1")
    return training(scale, "mnist", "small", "ibp", "0.4")


def check(scale: Scale) -> Check:
    """The search: images that PGD leaves and the complete stage breaks."""
    radius, images = {
        Scale.SMOKE: ("1/20", 40), Scale.LAPTOP: ("3/10", 200), Scale.PAPER: ("1/10", None)
    }[scale]  # fmt: skip
    return Check(network(scale), (Fraction(radius),), scale.complete, images)


def case(scale: Scale) -> Compute:
    """Both perturbations and the loss between them."""
    attack = PGD(steps=1, restarts=1) if scale is Scale.SMOKE else PGD(steps=200, restarts=10)
    wanted, side = check(scale), 21 if scale is Scale.SMOKE else 81

    def compute(bench: Bench) -> dict[str, object]:
        return gap(bench, wanted, attack, side=side)

    return Compute("gap", (wanted.network.name, wanted.request, attack, side), compute, 60.0)


def plan(scale: Scale) -> WorkPlan:
    """Network, search, picture."""
    return WorkPlan((network(scale),), (check(scale),), (case(scale),))


def nothing_found(values: dict[str, object], scale: Scale) -> str:
    """The sentence for a search without a find."""
    return (
        f"Among {values['images']} images no such case was found: {values['attacked']} were broken by PGD "
        f"({values['pgd']}), none only by the complete search, and {values['undecided']} stayed undecided."
    )

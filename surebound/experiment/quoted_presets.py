"""Recipes of the methods that the paper quotes without training them: digits in a minute, MNIST as their authors did.

Names as in `presets.py`: `digits-METHOD` and, for the small network of MNIST, `mnist-small-METHOD[-RADIUS]`; the
semidefinite bound has the network of its paper, `mnist-fc500-raghunathan-0.1`. Where a
paper's schedule is for another network or says nothing, the docstring says what was taken instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from surebound.experiment.config import Config, DataConfig, ModelConfig, RunConfig
from surebound.experiment.schedules_of_others import Epochs
from surebound.train.evaluate import Evaluation
from surebound.train.methods import Dvijotham, Method, Mirman, MixTrain, Raghunathan, Xiao
from surebound.train.plan import Plan

DIGITS = Plan(
    steps=3_000, batch_size=100, warmup=150, ramp=1_200, decay_steps=(2_000, 2_600), eps_train=Fraction(1, 10)
)
IMAGES = 60_000  # of MNIST
RADII = ("0.1", "0.2", "0.3", "0.4")


def mirman() -> Plan:
    """Mirman et al. 2018: 200 epochs of Adam, batches of 500, clean and abstract loss at once; no ramp in the paper.

    The ramp is that of the runs their authors published later (weight up to 1/2 and radius over most of the run).
    """
    return Epochs(200, 500, 10, 150, ()).plan(IMAGES, learning_rate=1e-3)


def mixtrain() -> Plan:
    """Wang et al. 2018: 60 epochs of batch 50, Adam with 1e-3 halved every 10 epochs, the radius growing over 20.

    They take over the schedule of Wong et al. 2018.
    """
    return Epochs(60, 50, 0, 20, (10, 20, 30, 40, 50)).plan(IMAGES, decay_factor=0.5, eps_start=Fraction(1, 100))


def xiao() -> Plan:
    """Xiao et al. 2019: 70 epochs of Adam with 1e-4, the full radius from the first step; l1 2e-5 and batches of 64.

    The last two are those of the runs that their authors published, with a weight of 1e-4 for stability.
    """
    return Epochs(70, 64, 0, 0, ()).plan(IMAGES, learning_rate=1e-4, l1=2e-5)


def dvijotham() -> Plan:
    """Dvijotham et al. 2018: the plan of Gowal et al. 2018, some of its authors; its own is not known."""
    return Plan(steps=60_000, batch_size=100, warmup=2_000, ramp=10_000, decay_steps=(15_000, 25_000))


def raghunathan() -> Plan:
    """Raghunathan et al. 2018: Adam with 1e-3, a tenth of it after every 30 epochs, no ramp: a regulariser."""
    return Epochs(90, 100, 0, 0, (30, 60)).plan(IMAGES, kappa_start=1.0, kappa_final=1.0)


def presets() -> Iterator[Config]:
    """Every recipe of this file."""
    short = DIGITS.stretched(1_500)
    yield _digits(Mirman(correlated=16, objective="cross_entropy"), short)
    yield _digits(MixTrain(samples=10), DIGITS.stretched(2_000))
    yield _digits(Dvijotham(), short)
    yield _digits(Raghunathan(), DIGITS.stretched(2_000), "fc100")
    yield _digits(Xiao(weight=2e-3), replace(short, warmup=0, l1=2e-5))
    for method, plan in (
        (Mirman(), mirman()),
        (MixTrain(), mixtrain()),
        (Dvijotham(), dvijotham()),
        (Xiao(), xiao()),
    ):
        yield from _mnist(method, plan, RADII)
    yield from _mnist(Raghunathan(weight=0.05), raghunathan(), RADII[:1], "fc500")


def _digits(method: Method, plan: Plan, model: str = "digits") -> Config:
    return Config(
        name=f"digits-{method.name}",
        data=DataConfig("digits"),
        model=ModelConfig(model),
        method=method,
        plan=plan,
        evaluation=Evaluation(radii=(plan.eps_train,), every=500, pgd_steps=20),
        run=RunConfig(checkpoint_seconds=15.0),
    )


def _mnist(method: Method, plan: Plan, radii: tuple[str, ...], model: str = "small") -> Iterator[Config]:
    """One recipe per radius, and one without in its name for the largest."""
    base = f"mnist-{model}-{method.name}"
    evaluation = Evaluation(
        radii=tuple(map(Fraction, RADII)), every=max(plan.steps // 20, 1), images=1_000, pgd_steps=20
    )
    for name, radius in [(base, radii[-1]), *((f"{base}-{radius}", radius) for radius in radii)]:
        yield Config(
            name=name,
            data=DataConfig("mnist"),
            model=ModelConfig(model),
            method=method,
            plan=replace(plan, eps_train=Fraction(radius)),
            evaluation=evaluation,
        )

"""Recipes that join an attack with interval bounds, for networks that the complete search proves.

Names as in `presets.py`, DATASET-NET-METHOD-RADIUS: CNN5 at half its width with a schedule for one core, or CNN7 with
the published schedule. The hyper-parameters are those of two public re-tunings of MTL-IBP (De Palma et al. 2024) and
SABR (Müller et al. 2023): alpha or the small box's size, l1, steps and scale of the attack inside.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from surebound.experiment.config import Config, DataConfig, ModelConfig
from surebound.experiment.schedules_of_others import Epochs
from surebound.train.evaluate import Evaluation
from surebound.train.methods import MTLIBP, SABR, InnerAttack, Method
from surebound.train.regularise import BoundRegulariser


@dataclass(frozen=True)
class Tuning:
    """A dataset and a radius: its schedules, and what each method is tuned to."""

    data: str
    radius: str  # as written in names
    images: int
    input_scale: float  # mean of 1/std of the normalising layer
    short: Epochs  # for CNN5 at half its width
    published: Epochs  # for CNN7
    alpha: float
    mtl_l1: float
    mtl_attack: InnerAttack
    size: float
    sabr_l1: float
    sabr_eps: Fraction  # the radius that SABR trains for
    short_attack: InnerAttack | None = None  # of MTL-IBP on the short schedule, if another one serves there

    @property
    def eps(self) -> Fraction:
        """The radius wanted."""
        return Fraction(self.radius.replace("-", "/"))


MNIST_SHORT, MNIST_LONG = Epochs(30, 256, 0, 15, (22, 27)), Epochs(70, 256, 0, 20, (50, 60))
CIFAR_SHORT = Epochs(60, 128, 1, 30, (45, 54))
SVHN_SHORT = Epochs(40, 128, 1, 20, (30, 36))
SETTINGS = (
    Tuning(
        "mnist", "0.1", 60_000, 1.0, MNIST_SHORT, MNIST_LONG,
        alpha=0.02, mtl_l1=1e-5, mtl_attack=InnerAttack(steps=10),
        size=0.4, sabr_l1=1e-6, sabr_eps=Fraction(1, 10),
        short_attack=InnerAttack(steps=4),  # ten steps are five sixths of the time
    ),
    Tuning(
        "mnist", "0.3", 60_000, 1.0, MNIST_SHORT, MNIST_LONG,
        alpha=0.5, mtl_l1=1e-6, mtl_attack=InnerAttack(),
        size=0.9, sabr_l1=2e-6, sabr_eps=Fraction(3, 10),
    ),
    Tuning(
        "cifar10", "2-255", 50_000, 4.98, CIFAR_SHORT, Epochs(160, 128, 1, 80, (120, 140)),
        alpha=0.01, mtl_l1=3e-6, mtl_attack=InnerAttack(scale=2.0),
        size=0.1, sabr_l1=1e-6, sabr_eps=Fraction(3, 255),
    ),
    Tuning(
        "cifar10", "8-255", 50_000, 4.98, CIFAR_SHORT, Epochs(240, 128, 1, 120, (200, 220)),
        alpha=0.6, mtl_l1=0.0, mtl_attack=InnerAttack(),
        size=0.9, sabr_l1=0.0, sabr_eps=Fraction(8, 255),
    ),
    Tuning(  # nobody published a tuning: that of CIFAR-10 at 2/255, which is nearly the same radius
        "svhn", "0.01", 73_257, 5.03, SVHN_SHORT, Epochs(160, 128, 1, 80, (120, 140)),
        alpha=0.01, mtl_l1=3e-6, mtl_attack=InnerAttack(scale=2.0),
        size=0.1, sabr_l1=1e-6, sabr_eps=Fraction(15, 1000),
    ),
)  # fmt: skip


def presets() -> Iterator[Config]:
    """Every recipe of this file."""
    for setting in SETTINGS:
        tight = BoundRegulariser(input_scale=setting.input_scale)
        mtl = MTLIBP(alpha=setting.alpha, attack=setting.mtl_attack, regulariser=tight)
        short = replace(mtl, attack=setting.short_attack or setting.mtl_attack)
        sabr = SABR(size=setting.size, attack=InnerAttack(steps=8), regulariser=tight)
        yield from _nets(setting, short, mtl, setting.eps, setting.mtl_l1)
        yield from _nets(setting, sabr, sabr, setting.sabr_eps, setting.sabr_l1)


def _nets(setting: Tuning, short: Method, long: Method, eps_train: Fraction, l1: float) -> Iterator[Config]:
    for net, model, epochs, rate, method in (
        ("cnn5", "cnn5-half", setting.short, 1e-3, short),
        ("cnn7", "cnn7", setting.published, 5e-4, long),
    ):
        plan = epochs.plan(
            setting.images, eps_train=eps_train, shape="smooth", kappa_start=0.0, kappa_final=0.0, learning_rate=rate,
            decay_factor=0.2, clip_norm=10.0, l1=l1,
        )  # fmt: skip
        yield Config(
            name=f"{setting.data}-{net}-{method.name}-{setting.radius}",
            data=DataConfig(setting.data),
            model=ModelConfig(model, batch_norm=True, init="ibp_normal"),
            method=method,
            plan=plan,
            evaluation=Evaluation(radii=(setting.eps,), every=plan.steps // 20, images=1_000, pgd_steps=20),
        )

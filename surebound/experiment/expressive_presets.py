"""Recipes that join an attack with interval bounds, for networks that the complete search proves.

Names as in `presets.py`: DATASET-NET-METHOD-RADIUS. The hyper-parameters are those of De Palma et al. 2024 as two
public re-tunings give them; the schedules are shortened for one or two cores, every duration in proportion.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from surebound.experiment.config import Config, DataConfig, ModelConfig
from surebound.train.evaluate import Evaluation
from surebound.train.methods import MTLIBP, InnerAttack, Method
from surebound.train.plan import Plan
from surebound.train.regularise import BoundRegulariser


@dataclass(frozen=True)
class Schedule:
    """A run in epochs: one of warm-up, a smooth ramp over half of the run, rates dropped at 75 and 90 %."""

    images: int
    epochs: int
    batch: int
    rate: float

    def plan(self, eps_train: Fraction, l1: float) -> Plan:
        """The same in steps."""
        steps = self.epochs * self.images // self.batch
        return Plan(
            steps=steps,
            batch_size=self.batch,
            eps_train=eps_train,
            warmup=steps // self.epochs,
            ramp=steps // 2,
            shape="smooth",
            kappa_start=0.0,
            kappa_final=0.0,
            learning_rate=self.rate,
            decay_steps=(steps * 3 // 4, steps * 9 // 10),
            decay_factor=0.2,
            clip_norm=10.0,
            l1=l1,
        )


CIFAR10 = Schedule(images=50_000, epochs=60, batch=128, rate=1e-3)


def presets() -> Iterator[Config]:
    """Every recipe of this file."""
    yield _config(
        "cifar10-cnn5-mtl-ibp-2-255",
        "cnn5-half",
        MTLIBP(alpha=0.01, attack=InnerAttack(scale=2.0), regulariser=BoundRegulariser(input_scale=4.98)),
        CIFAR10.plan(Fraction(2, 255), l1=3e-6),
    )


def _config(name: str, net: str, method: Method, plan: Plan) -> Config:
    radii = (plan.eps_train,)
    evaluation = Evaluation(radii=radii, every=plan.steps // 20, images=1_000, pgd_steps=20)
    return Config(
        name=name,
        data=DataConfig(name.split("-")[0]),
        model=ModelConfig(net, batch_norm=True, init="ibp_normal"),
        method=method,
        plan=plan,
        evaluation=evaluation,
    )

"""Schedules that other authors published for their methods, as plans for any dataset. Durations are in epochs."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from surebound.train.plan import Plan


@dataclass(frozen=True)
class Epochs:
    """A schedule in epochs of batches of one size."""

    length: int
    batch: int
    warmup: int
    ramp: int
    decays: tuple[int, ...]

    def plan(self, images: int, **settings: object) -> Plan:
        """The same in steps, for a dataset of this many training images."""

        def steps(epochs: int) -> int:
            return epochs * images // self.batch

        return Plan(
            steps=steps(self.length),
            batch_size=self.batch,
            warmup=steps(self.warmup),
            ramp=steps(self.ramp),
            decay_steps=tuple(steps(e) for e in self.decays),
            **settings,  # type: ignore[arg-type]
        )


def short_warmup(images: int) -> Plan:
    """Shi et al. 2021: 70 epochs of batch 256, one of warm-up, twenty of ramp, decays after 50 and 60."""
    return Epochs(70, 256, 1, 20, (50, 60)).plan(
        images,
        shape="smooth",
        kappa_start=0.0,
        kappa_final=0.0,
        learning_rate=5e-4,
        decay_factor=0.2,
        clip_norm=10.0,
    )


def crown_ibp(images: int, *, color: bool) -> Plan:
    """Zhang et al. 2020 (appendix, "Hyperparameters"): kappa from 1 to 0, Adam with 5e-4.

    Grey images: 200 epochs of batch 256, 10 of warm-up, 50 of ramp, decays after 130 and 190. Colour images: 3200
    epochs of batch 1024, 320 of warm-up, a smooth ramp of 1600, decays after 2600 and 3040.
    """
    grey, colour = Epochs(200, 256, 10, 50, (130, 190)), Epochs(3200, 1024, 320, 1600, (2600, 3040))
    return (colour if color else grey).plan(
        images, shape="smooth" if color else "linear", kappa_final=0.0, learning_rate=5e-4
    )


def wong(images: int, *, color: bool) -> Plan:
    """Wong et al. 2018 (section 4 and the runs their authors published): only the robust loss, no warm-up.

    60 epochs of batch 50, Adam with 1e-3 halved every 10 epochs; the radius grows over 20 epochs from 0.01 (grey
    images) or 0.001 (colour).
    """
    return Epochs(60, 50, 0, 20, (10, 20, 30, 40, 50)).plan(
        images,
        kappa_start=0.0,
        kappa_final=0.0,
        decay_factor=0.5,
        eps_start=Fraction(1, 1000) if color else Fraction(1, 100),
    )

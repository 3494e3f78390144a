"""Error rates on held-out data: clean, verified by interval bounds, under a short attack."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor, nn

from surebound.attack import attack
from surebound.attack.methods import PGD
from surebound.bounds.margins import worst_margins
from surebound.errors import ConfigError, nearest
from surebound.graph import forward
from surebound.graph.fit import evaluating
from surebound.numerics import Soundness, exact_fraction
from surebound.region import BALLS, Region
from surebound.spec import check_labels
from surebound.train.distributed import ALONE, Group
from surebound.train.examples import Examples
from surebound.train.losses import misclassified, unproved

Clip = tuple[float, float] | None
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Evaluation:
    """What to measure, how often, and on how many images.

    `radii` are the test radii, kept exactly. `pgd_steps` = 0 leaves the attack out. During training the bounds are
    plain floating point (`soundness` none); the numbers of a finished run are computed with rounding control.
    """

    radii: tuple[Fraction, ...] = ()
    every: int = 0  # training steps between evaluations; 0: only at the end
    images: int | None = None  # of the held-out split, from the first; None: all
    pgd_steps: int = 0
    pgd_restarts: int = 1
    pgd_images: int = 200
    batch_size: int = 250
    norm: str = "linf"  # of the balls of these radii: linf, l2 or l1

    def __post_init__(self) -> None:
        object.__setattr__(self, "radii", tuple(exact_fraction(r, "radii") for r in self.radii))
        if any(r < 0 for r in self.radii):
            raise ConfigError(f"radii must be 0 or more, got {', '.join(map(str, self.radii))}")
        if self.norm not in BALLS:
            raise ConfigError(f"norm = {self.norm!r}{nearest(self.norm, BALLS)}; give one of {', '.join(BALLS)}")
        least = {"every": 0, "images": 1, "pgd_steps": 0, "pgd_restarts": 1, "pgd_images": 1, "batch_size": 1}
        for key, minimum in least.items():
            value = getattr(self, key)
            if value is not None and value < minimum:
                raise ConfigError(f"{key} must be at least {minimum}, got {value}")

    @property
    def pgd(self) -> PGD:
        """The attack of the evaluation."""
        return PGD(steps=self.pgd_steps, restarts=self.pgd_restarts)


@dataclass(frozen=True)
class Errors:
    """Measured error rates, as fractions of the `images` looked at."""

    images: int
    clean: float
    verified: dict[Fraction, float]  # radius -> share not proved by interval bounds
    attacked: dict[Fraction, float]  # radius -> share misclassified under attack, of `attacked_images`
    attacked_images: int
    soundness: str
    norm: str = "linf"

    def record(self) -> dict[str, object]:
        """Plain values for JSON; radii as exact strings. Of other norms they have other keys: nobody mixes them up."""
        of = "" if self.norm == "linf" else f"_{self.norm}"
        return {
            "images": self.images,
            "clean_error": self.clean,
            f"verified_error{of}": {str(r): v for r, v in self.verified.items()},
            f"pgd_error{of}": {str(r): v for r, v in self.attacked.items()},
            "pgd_images": self.attacked_images,
            "soundness": self.soundness,
        }


def measure(
    model: nn.Module,
    split: Examples,
    evaluation: Evaluation,
    *,
    soundness: Soundness = Soundness.DEPLOYED,
    clip: Clip = (0.0, 1.0),
    group: Group = ALONE,
    seed: int = 0,
    progress: Progress | None = None,
) -> Errors:
    """Measure `model`, in evaluation mode, on `split`; the processes of a group share the work.

    `progress` hears how much of the work is done, and of how much, in images times radii.
    """
    count = len(split) if evaluation.images is None else min(evaluation.images, len(split))
    attacked = min(evaluation.pgd_images, count) if evaluation.pgd_steps else 0
    wrong = torch.zeros(1 + 2 * len(evaluation.radii), dtype=torch.float64, device=split.device)
    with evaluating(model):
        for first, x, y in _shared(split, count, evaluation.batch_size, group):
            with torch.no_grad():
                outputs = forward(model, x)  # (B, K)
            check_labels(split.labels[:count], count, outputs.shape[1])
            clean = misclassified(outputs, y)  # (B,)
            wrong[0] += clean.sum()
            for i, radius in enumerate(evaluation.radii):
                balls = BALLS[evaluation.norm](x, radius, clip)
                open_ = clean | _unproved(model, balls, y, soundness)
                wrong[1 + i] += open_.sum()
                k = max(0, min(attacked - first, len(y)))
                if k:
                    found = attack(model, balls[:k], y[:k], evaluation.pgd, proved=~open_[:k], seed=seed + first)
                    wrong[1 + len(evaluation.radii) + i] += (found.success | clean[:k]).sum()
                if progress is not None:
                    radii = len(evaluation.radii)
                    progress(first * radii + (i + 1) * len(y), count * radii)
    clean_errors, *rest = group.sum_(wrong).tolist()
    n = len(evaluation.radii)
    return Errors(
        images=count,
        clean=clean_errors / count,
        verified={r: v / count for r, v in zip(evaluation.radii, rest[:n], strict=True)},
        attacked={r: v / attacked for r, v in zip(evaluation.radii, rest[n:], strict=True) if attacked},
        attacked_images=attacked,
        soundness=soundness.value,
        norm=evaluation.norm,
    )


def _shared(split: Examples, count: int, batch_size: int, group: Group) -> Iterator[tuple[int, Tensor, Tensor]]:
    """This process's batches of the first `count` images, with the index of their first image."""
    for number, first in enumerate(range(0, count, batch_size)):
        if number % group.size == group.rank:
            x, y = split.batch(torch.arange(first, min(first + batch_size, count)))
            yield first, x, y


def _unproved(model: nn.Module, balls: Region, y: Tensor, soundness: Soundness) -> Tensor:
    with torch.no_grad():
        margins = worst_margins(model, balls, y, soundness=soundness)  # (B, K)
    return unproved(margins, y)

"""The radius of each image: the largest at which it is proved, the smallest at which it is broken, by bisection.

Balls around one image lie in each other, so a proof at a radius holds at every smaller one, and a counterexample counts
at every radius that reaches it: a few questions per image settle all radii of a grid, whose numbers are exact
fractions. What the cascade leaves undecided lies between the two, and each side is searched by itself.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from pathlib import Path

from torch import Tensor, nn

from surebound.errors import InputError, RegionError, StoreError, VerificationError
from surebound.pixel_ball import PixelBall
from surebound.region import LinfBall
from surebound.search.cascade import Cascade
from surebound.search.record import Record
from surebound.search.verdicts import Example, Setting, SizedRegion, example_of
from surebound.verdict import Status
from surebound.verify.identity import example_hash
from surebound.verify.pool import Executor
from surebound.verify.run import STORE_NAME, checked, executor_for, identity_of, kind_of, stages_for
from surebound.verify.schedule import UnitSchedule
from surebound.verify.store import Store
from surebound.verify.work import Work


@dataclasses.dataclass(frozen=True)
class ImageRadius:
    """What is known of one image. Between ``proved`` and ``broken`` nothing is."""

    index: int
    label: int
    proved: Fraction | None  # robust up to and including this radius; None: not even at 0
    broken: Fraction | None  # the distance of the closest counterexample that was found; None: none was
    float_sound: bool = True  # whether the proof holds for every float32 execution
    undecided: int = 0  # radii that the cascade left open

    @property
    def misread(self) -> bool:
        """Whether the image is wrong without any change."""
        return self.broken == 0


class RadiusSearch:
    """A bisection for every image at once; ``run`` it, and read ``found`` at any time, also after Ctrl-C.

    ``step`` is the distance of neighbouring radii, ``most`` the largest one. With ``out`` every verdict is kept in a
    results store at once; what is in it already, at whatever radius, is not asked again.
    """

    def __init__(
        self,
        model: nn.Module,
        region: SizedRegion,
        labels: Tensor,  # (N,) integers
        cascade: str | Cascade = "default",
        *,
        step: Fraction,
        timeout: float = math.inf,
        jobs: int | None = None,
        out: str | Path | None = None,
        mix: bool = False,
        seed: int = 0,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Take the balls of the largest radius. ``progress`` hears how many images are done, and of how many."""
        if not isinstance(region, SizedRegion):
            raise RegionError(f"radii are searched for balls, not for {region}")
        if not 0 < step <= region.eps:
            raise InputError(f"the step {step} must be above 0 and at most the largest radius, {region.eps}")
        if isinstance(region, PixelBall) and step.denominator != 1:
            raise InputError(f"the step {step} is no number of pixels; give whole ones")
        self._images, self._clip, self._labels = region.x, region.clip, labels.long()
        self._kind = kind_of(region)
        self._step, self._count = step, int(region.eps // step)
        stages = stages_for(region, cascade)
        stages.check()
        checked(model, stages, self._images, labels, None, timeout, jobs)
        setting = Setting(region.clip, seed, timeout, kind=self._kind)
        self._work = Work(model, stages, setting, tuple(region.x.shape[1:]))
        self._key = f"{stages.key}; timeout {timeout}"
        self._jobs, self._progress = jobs, progress
        self._out, self._mix = None if out is None else Path(out) / STORE_NAME, mix
        self._known = [_Bracket(self._count + 1) for _ in range(len(self._images))]

    @property
    def found(self) -> tuple[ImageRadius, ...]:
        """What is known of every image now."""
        return tuple(self._radius(index, known) for index, known in enumerate(self._known))

    def run(self) -> tuple[ImageRadius, ...]:
        """Ask until no radius of the grid is left that could tell more."""
        if self._out is None:
            with executor_for(self._work, self._jobs, None) as executor:
                self._bisect(executor, lambda records: None)
            return self.found
        identity = identity_of(self._work.model, self._images, self._clip, self._kind)
        with Store.open(self._out, identity, mix=self._mix) as store:
            self._remember(store)
            if any(known.next() is not None for known in self._known):
                with executor_for(self._work, self._jobs, None) as executor:
                    self._bisect(executor, lambda records: store.add(records, self._key))
        return self.found

    def _bisect(self, executor: Executor, keep: Callable[[Sequence[Record]], None]) -> None:
        self._report()
        while asked := self._questions():
            # The smallest radius first: cheap proofs come early, and so does what Ctrl-C leaves behind.
            number, indices = min(asked.items())
            examples = (self._example(index, number * self._step) for index in indices)
            for records in UnitSchedule(self._work.cascade, executor, lambda index: False).run(examples):
                keep(records)
                for record in records:
                    self._learn(record)
                self._report()

    def _questions(self) -> dict[int, list[int]]:
        """Number of a radius -> the images to be asked about there."""
        asked: dict[int, list[int]] = {}
        for index, known in enumerate(self._known):
            number = known.next()
            if number is not None:
                asked.setdefault(number, []).append(index)
        return asked

    def _example(self, index: int, eps: Fraction) -> Example:
        image, label = self._images[index], int(self._labels[index])
        return example_of(index, image, label, eps, example_hash(image, label))

    def _learn(self, record: Record) -> None:
        known, verdict = self._known[record.index], record.verdict
        if verdict.status is Status.ROBUST:
            known.prove(record.eps, self._step, verdict.float_sound)
        elif verdict.witness is not None:
            known.break_at(self._reach(record, verdict.witness), self._step)
        else:
            known.leave_open(round(record.eps / self._step))
        if known.proved is not None and known.broken is not None and known.proved >= known.broken:
            raise VerificationError(
                f"image {record.index} is proved robust at {known.proved} and broken at {known.broken}: one of them is "
                "wrong. Please report this network."
            )

    def _reach(self, record: Record, witness: Tensor) -> Fraction:
        """Return a radius whose ball holds the witness: the smallest, or where the coordinates differ the one asked."""
        scale = self._kind.scale if isinstance(self._kind, LinfBall) else None
        plain = self._kind is None or (scale is not None and bool(((scale == 0) | (scale == 1)).all()))
        return _distance(self._images[record.index], witness) if plain else record.eps

    def _remember(self, store: Store) -> None:
        """Take over what a store holds: decisions at any radius, and what this cascade left open on the grid."""
        open_ones = {
            (eps, index) for eps in store.radii() if eps % self._step == 0 for index in store.done(eps, self._key)
        }
        for record in store.records():
            if not 0 <= record.index < len(self._images):
                continue
            if record.example != example_hash(self._images[record.index], int(self._labels[record.index])):
                raise StoreError(
                    f"{store.path} holds a result for another example {record.index}: the data or their order changed. "
                    "Choose another directory."
                )
            if record.verdict.status.decided or (record.eps, record.index) in open_ones:
                self._learn(record)

    def _radius(self, index: int, known: _Bracket) -> ImageRadius:
        label = int(self._labels[index])
        return ImageRadius(index, label, known.proved, known.broken, known.float_sound, len(known.open))

    def _report(self) -> None:
        if self._progress is not None:
            self._progress(sum(known.next() is None for known in self._known), len(self._known))


class _Bracket:
    """One image's state: numbers of radii on the grid, and the exact fractions that they stand for."""

    def __init__(self, end: int) -> None:
        self._low, self._high = -1, end  # proved at _low, broken at _high, both on the grid or just outside
        self.open: set[int] = set()
        self.proved: Fraction | None = None
        self.broken: Fraction | None = None
        self.float_sound = True

    def prove(self, eps: Fraction, step: Fraction, sound: bool) -> None:
        if self.proved is None or eps > self.proved:
            self.proved, self.float_sound = eps, sound
            self._low = max(self._low, int(eps // step))
            self.open = {number for number in self.open if number > self._low}

    def break_at(self, distance: Fraction, step: Fraction) -> None:
        if self.broken is None or distance < self.broken:
            self.broken = distance
            self._high = min(self._high, math.ceil(distance / step))
            self.open = {number for number in self.open if number < self._high}

    def leave_open(self, number: int) -> None:
        if self._low < number < self._high:
            self.open.add(number)

    def next(self) -> int | None:
        """Number the radius to ask about next: between proofs and the first open one, then after the last."""
        for low, high in (
            (self._low, min(self.open, default=self._high)),
            (max(self.open, default=self._low), self._high),
        ):
            if high - low > 1:
                return (low + high) // 2
        return None


def _distance(image: Tensor, witness: Tensor) -> Fraction:
    """Return the exact largest difference of two tensors: the smallest radius whose ball holds the witness."""
    difference = (image.double() - witness.double()).abs().flatten()
    # The subtraction may round in the last bit of float64: every entry that could be the largest is compared exactly.
    close = (difference >= difference.max() * (1 - 2.0**-40)).nonzero().flatten()
    a, b = image.flatten()[close].tolist(), witness.flatten()[close].tolist()
    return max(abs(Fraction(x) - Fraction(y)) for x, y in zip(a, b, strict=True))


def median(radii: Iterable[Fraction]) -> Fraction | None:
    """Return the middle one, the lower of two; None of none."""
    ordered = sorted(radii)
    return ordered[(len(ordered) - 1) // 2] if ordered else None


def staircase(found: Sequence[ImageRadius]) -> tuple[list[Fraction], list[float], list[float]]:
    """Radii (R,), and between each two of them the shares (R - 1,) that are proved, and that are unbroken.

    An image counts as proved up to the radius where its proof ends, as unbroken before its closest counterexample.
    """
    ends = {end for each in found for end in (each.proved, each.broken) if end is not None}
    radii = sorted({Fraction(0), max(ends, default=Fraction(0)) or Fraction(1), *ends})
    proved = [survivors(found, upper)[0] for upper in radii[1:]]
    alive = [survivors(found, lower)[1] for lower in radii[:-1]]
    return radii, proved, alive


def survivors(found: Sequence[ImageRadius], eps: float | Fraction) -> tuple[float, float]:
    """Shares of the images that are proved at a radius, and that no counterexample reaches within it."""
    total = max(1, len(found))
    proved = sum(each.proved is not None and each.proved >= eps for each in found)
    alive = sum(each.broken is None or each.broken > eps for each in found)
    return proved / total, alive / total

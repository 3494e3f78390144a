"""The cascade as data: which stages, in which order, with which settings."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping

from surebound.errors import ConfigError, nearest
from surebound.search.stages import (
    BranchAndBound,
    Clean,
    CrownBounds,
    IntervalBounds,
    LinearRelaxation,
    MixedInteger,
    MultiTargetedAttack,
    PgdAttack,
    Stage,
)


@dataclasses.dataclass(frozen=True)
class Cascade:
    """Stages that are tried one after the other until one decides; what remains counts as attackable.

    >>> cascade("paper").names
    ('clean', 'interval', 'pgd', 'mip', 'lp')
    """

    name: str
    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        if not self.stages:
            raise ConfigError(f"the cascade {self.name!r} has no stages; give at least one")
        repeated = [name for name in self.names if self.names.count(name) > 1]
        if repeated:
            raise ConfigError(f"the cascade {self.name!r} has the stage {repeated[0]!r} twice; name each once")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the stages, in order."""
        return tuple(stage.name for stage in self.stages)

    @property
    def key(self) -> str:
        """A line that tells this cascade with its settings from any other."""
        return " -> ".join(repr(stage) for stage in self.stages)

    @property
    def segments(self) -> tuple[tuple[Stage, ...], ...]:
        """Runs of stages that want equally many examples at once: the units that work is cut into."""
        return tuple(tuple(run) for _, run in itertools.groupby(self.stages, key=lambda stage: stage.chunk))

    def tightened(self, relus: int) -> Cascade:
        """Return the cascade with so many ReLUs bounded by linear programs before MIP and LP; 0: none.

        >>> cascade("paper").tightened(16).stages[-1].tighten
        16
        """
        programs = (MixedInteger, LinearRelaxation)
        if not any(isinstance(stage, programs) for stage in self.stages):
            raise ConfigError(
                f"the cascade {self.name!r} has neither a MIP nor an LP stage, whose bounds could be tightened; "
                "leave the tightening out, or choose another cascade"
            )
        stages = (
            dataclasses.replace(stage, tighten=relus) if isinstance(stage, programs) else stage for stage in self.stages
        )
        return dataclasses.replace(self, stages=tuple(stages))

    def for_norms(self, *, searched: bool = False) -> Cascade:
        """Return the stages that know balls of the norms l2 and l1, or few pixels, linear bounds at their tightest.

        The exact ones would only look for counterexamples in the box around the ball. ``searched``: branch and bound
        knows these, too: those of l2 and l1.

        >>> cascade("default").for_norms(searched=True).names
        ('clean', 'interval', 'crown', 'pgd', 'multi-targeted', 'branch-and-bound')
        >>> cascade("default").for_norms().names
        ('clean', 'interval', 'crown', 'pgd', 'multi-targeted')
        """
        boxes = (MixedInteger, LinearRelaxation) if searched else (BranchAndBound, MixedInteger, LinearRelaxation)
        kept = (stage for stage in self.stages if not isinstance(stage, boxes))
        tight = (CrownBounds("alpha-crown") if isinstance(stage, CrownBounds) else stage for stage in kept)
        return dataclasses.replace(self, stages=tuple(tight))

    def check(self) -> None:
        """Raise if a stage cannot run here, before hours are spent on the ones before it."""
        for stage in self.stages:
            stage.check()


def _default() -> tuple[Stage, ...]:
    """Return the default stages. CROWN costs one pass here; its own bounds inside, 20 to 80 times as dear, are what
    branch and bound begins with, and most of what intervals leave open falls to PGD."""
    return (
        Clean(),
        IntervalBounds(),
        CrownBounds("crown-ibp"),
        PgdAttack(),
        MultiTargetedAttack(),
        BranchAndBound(),
        MixedInteger(),
        LinearRelaxation(),
    )


def _paper() -> tuple[Stage, ...]:
    """Return the stages of Gowal et al. 2018, section 4: MIP with a limit of ten minutes, then LP, then attackable."""
    return (Clean(), IntervalBounds(), PgdAttack(), MixedInteger(), LinearRelaxation())


def _fast() -> tuple[Stage, ...]:
    return (Clean(), IntervalBounds(), CrownBounds("crown-ibp"), PgdAttack(steps=40, restarts=2))


def _crown() -> tuple[Stage, ...]:
    """Return stages for small radii and networks that intervals say nothing of: most images fall to CROWN with its own
    bounds, for less than what a thorough attack on them costs; solvers decide little that branch and bound leaves."""
    return (
        Clean(), IntervalBounds(), CrownBounds("crown"), PgdAttack(), MultiTargetedAttack(), BranchAndBound(),
    )  # fmt: skip


CASCADES: Mapping[str, Callable[[], tuple[Stage, ...]]] = {
    "default": _default,
    "paper": _paper,
    "fast": _fast,
    "crown": _crown,
}


def cascade(given: str | Cascade) -> Cascade:
    """Return a cascade by its name, or the one given."""
    if isinstance(given, Cascade):
        return given
    if given not in CASCADES:
        hint = nearest(given, CASCADES)
        raise ConfigError(f"cascade {given!r} is not known; choose one of: {', '.join(CASCADES)}{hint}")
    return Cascade(given, CASCADES[given]())

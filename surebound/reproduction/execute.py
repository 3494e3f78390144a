"""Plans: what is there, what has to be done, how long it will take; and doing it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from surebound.reproduction.bench import Bench
from surebound.reproduction.rate import Speeds
from surebound.reproduction.work import Check, Compute, Training, WorkPlan


@dataclass(frozen=True)
class Step:
    """One line of a plan."""

    kind: str  # train, verify, compute
    name: str
    state: str  # "there", "packaged", "reused", "to do", "to continue"
    seconds: float | None  # None: not known
    note: str = ""

    @property
    def done(self) -> bool:
        """Nothing is left to do."""
        return self.state in ("there", "packaged", "reused")


def steps(plan: WorkPlan, bench: Bench, rates: Speeds | None = None) -> list[Step]:
    """Every piece of work with its state; times only if there are `rates` to take them from."""
    return [
        *(_training(t, bench, rates) for t in plan.trainings),
        *(_check(c, bench, rates) for c in plan.checks),
        *(_computation(c, bench) for c in plan.computations),
    ]


def execute(plan: WorkPlan, bench: Bench, say: Callable[[str], None] = lambda text: None) -> bool:
    """Do what is missing; False if a training was asked to stop."""
    for dataset in plan.fake:
        bench.generate(dataset)
    for training in plan.trainings:
        if bench.where(training) is None:
            say(f"training {training.name}")
            if not bench.train(training):
                return False
    for check in plan.checks:
        if not bench.is_checked(check):
            say(f"verifying {check.network.name} ({check.cascade.name})")
            bench.check(check)
    for computation in plan.computations:
        if not bench.computed_path(computation).is_file():
            say(f"computing {computation.name}")
            bench.compute(computation)
    return True


def _training(training: Training, bench: Bench, rates: Speeds | None) -> Step:
    where = bench.where(training)
    if where is not None:
        here = where == str(bench.path(training))
        state = "there" if here else "reused" if "/" in where or "\\" in where else "packaged"
        return Step("train", training.name, state, 0.0, "" if here else where)
    begun = (bench.path(training) / "config.toml").is_file()
    seconds = None if rates is None else rates.seconds(training)
    return Step("train", training.name, "to continue" if begun else "to do", seconds, training.schedule)


def _check(check: Check, bench: Bench, rates: Speeds | None) -> Step:
    images = "all" if check.images is None else f"{check.images:,}"
    radii = f"{len(check.radii)} radii" if len(check.radii) > 1 else f"ε {check.radii[0]}"
    note = f"{images} images, {radii}, cascade {check.cascade.name}"
    if bench.is_checked(check):
        return Step("verify", check.network.name, "there", 0.0, note)
    seconds = None if rates is None else rates.check_seconds(check)
    return Step("verify", check.network.name, "to do", seconds, note)


def _computation(computation: Compute, bench: Bench) -> Step:
    done = bench.computed_path(computation).is_file()
    return Step("compute", computation.name, "there" if done else "to do", 0.0 if done else computation.seconds)

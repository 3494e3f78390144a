"""Where work is done and found again: OUT/runs, OUT/verified, OUT/computed."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from surebound import zoo
from surebound.data import fake
from surebound.errors import RunError, SureboundError
from surebound.experiment import run as runs
from surebound.experiment.codec import decode
from surebound.experiment.config import Config
from surebound.experiment.environment import describe_environment
from surebound.experiment.publish import portable
from surebound.experiment.run import Caller
from surebound.experiment.rundir import RunDirectory
from surebound.experiment.target import Target, load_target
from surebound.experiment.verifications import note_verification
from surebound.region import LinfBall
from surebound.reproduction.work import Check, Compute, Network, Packaged, Training, science
from surebound.train.checkpoint import replace_text
from surebound.train.observe import Observer
from surebound.verify import Progress, Record, Store, verify
from surebound.verify.run import STORE_NAME


def _quiet(name: str) -> Caller:
    return Caller(Observer())


@dataclass(frozen=True, eq=False)
class Bench:
    """A directory of finished and unfinished work, and who does it."""

    out: Path
    data_dir: Path | None = None
    reuse: tuple[Path, ...] = ()  # directories with runs made elsewhere
    caller_for: Callable[[str], Caller] = _quiet
    jobs: int | None = None  # worker processes of a verification; None: this one
    progress: Callable[[Progress], None] | None = None
    threads: int | None = None
    device: str | None = None  # where networks are trained and verified; None: the CPU
    _found: dict[str, str | None] = field(default_factory=dict)

    def with_caller(self, caller_for: Callable[[str], Caller]) -> Bench:
        """The same bench with somebody else to tell."""
        return replace(self, caller_for=caller_for)

    # -- networks --------------------------------------------------------------------------------------------
    def path(self, training: Training) -> Path:
        """Where a run made here is."""
        return self.out / "runs" / training.name

    def where(self, network: Network) -> str | None:
        """A finished network: a run directory, here or to be reused, or a packaged one; None if there is none."""
        if isinstance(network, Packaged):
            return zoo.entry(network.name).name
        path = self.path(network)
        if (path / "results.json").is_file():
            if science(RunDirectory.open(path).config) != science(network.config):
                raise RunError(f"{path} was trained differently; move it away, or choose another --out")
            return str(path)
        if network.name not in self._found:
            self._found[network.name] = self._elsewhere(network)
        return self._found[network.name]

    def _elsewhere(self, training: Training) -> str | None:
        wanted = science(training.config)
        for path, config in self._others:
            if science(config) == wanted:
                return str(path)
        for entry in zoo.entries():
            if entry.config is not None:
                # Through the types: an option that is newer than the record has its default there.
                known: Config = decode(Config, {"name": entry.name, **entry.config})
                if science(known) == wanted:
                    return entry.name
        return None

    @functools.cached_property
    def _others(self) -> list[tuple[Path, Config]]:
        """Finished runs in the directories to be reused; what cannot be read is passed over."""
        found = []
        for root in self.reuse:
            for path in sorted({p.parent for p in root.rglob("config.toml")}):
                if (path / "results.json").is_file() and (path / "final.safetensors").is_file():
                    try:
                        found.append((path, RunDirectory.open(path).config))
                    except SureboundError:
                        continue
        return found

    def load(self, network: Network) -> Target:
        """The network with its data; it has to be finished."""
        return load_target(self._finished(network), data_dir=self.data_dir)

    def _finished(self, network: Network) -> str:
        where = self.where(network)
        if where is None:
            raise RunError(f"the run {network.name} is not finished")
        return where

    def train(self, training: Training) -> bool:
        """Train, or go on where it stopped; False if it was asked to stop."""
        path, caller = self.path(training), self.caller_for(training.name)
        caller = Caller(caller.observer, caller.stop, caller.say, self.data_dir)
        if (path / "config.toml").is_file():
            return runs.resume(path, caller).outcome.finished
        path.parent.mkdir(parents=True, exist_ok=True)
        for leftover in path.glob(".*.partial"):  # killed before the run's first file was complete
            leftover.unlink()
        config = training.config
        if self.device is not None:
            config = replace(config, run=replace(config.run, device=self.device))
        return runs.start(config, path, caller).outcome.finished

    # -- verdicts --------------------------------------------------------------------------------------------
    def store(self, check: Check) -> Path:
        """The directory of a check's results."""
        return self.out / "verified" / check.network.name / check.cascade.name

    def is_checked(self, check: Check) -> bool:
        """Whether the check was carried through."""
        return check.request in _read_list(self.store(check) / "done.json")

    def check(self, check: Check) -> None:
        """Decide the images; what is in the store already is not decided again."""
        place = self.store(check)
        target = load_target(self._finished(check.network), data_dir=self.data_dir, device=self.device)
        jobs = self.jobs if target.device.type == "cpu" else None
        images, labels = target.first(check.images)
        # mix: verdicts of an older version on the same weights count as done; the report names the versions
        verify(
            target.model, [LinfBall(images, eps, clip=(0, 1)) for eps in check.radii], labels, check.cascade,
            timeout=check.timeout, jobs=jobs, out=place, mix=True, progress=self.progress,
        )  # fmt: skip
        note_verification(
            place, network=check.network.name, data=target.data, images=len(images), radii=check.radii,
            cascade=check.cascade, timeout=check.timeout, seed=0,
        )  # fmt: skip
        _write_json(place / "done.json", [*_read_list(place / "done.json"), check.request])

    def records(self, check: Check) -> tuple[Record, ...]:
        """The verdicts of a finished check."""
        limit = float("inf") if check.images is None else check.images
        with Store.read(self.store(check) / STORE_NAME) as store:
            return tuple(r for r in store.records() if r.eps in check.radii and r.index < limit)

    # -- anything else ---------------------------------------------------------------------------------------
    def computed_path(self, computation: Compute) -> Path:
        """The file of a computation."""
        return self.out / "computed" / f"{computation.key}.json"

    def compute(self, computation: Compute) -> None:
        """Compute and keep, with the commit that did it and how long it took."""
        began = time.monotonic()
        values = computation.function(self)
        known = describe_environment()
        origin = {key: known[key] for key in ("commit", "processor", "packages")}
        origin["seconds"] = round(time.monotonic() - began, 1)
        _write_json(self.computed_path(computation), {**values, "origin": origin})

    def values(self, computation: Compute) -> dict[str, Any]:
        """What a finished computation gave."""
        values: dict[str, Any] = json.loads(self.computed_path(computation).read_text(encoding="utf-8"))
        return values

    def generate(self, dataset: str) -> None:
        """Generated images in the published format, if there are none yet."""
        if self.data_dir is not None and not (self.data_dir / dataset).exists():
            fake.WRITERS[dataset](self.data_dir, 60, 20)

    def facts(self, network: Network) -> dict[str, Any]:
        """Seed, steps, commit and command of a finished network, and the errors measured when it was finished."""
        where = self._finished(network)
        if not (Path(where) / "config.toml").is_file():
            entry = zoo.entry(where)
            steps = entry.results.get("step")
            return {
                "network": f"packaged: {entry.name}", "seed": entry.seed, "steps": steps, "commit": entry.commit,
                "command": entry.command, "results": entry.results,
            }  # fmt: skip
        run = RunDirectory.open(Path(where))
        environment, plan = run.read_json("environment.json"), run.config.plan
        return {
            "network": Path(where).name, "seed": plan.seed, "steps": plan.steps,
            "commit": environment.get("commit"), "command": portable(str(environment.get("command", ""))),
            "results": run.read_json("results.json"),
        }  # fmt: skip


def _read_list(path: Path) -> list[Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return values if isinstance(values, list) else []


def _write_json(path: Path, values: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, json.dumps(values))

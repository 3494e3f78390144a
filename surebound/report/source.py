"""What a report is about: training runs and results stores, read from their directories."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from surebound.certificates.checked import checked_files, is_checked
from surebound.certificates.directory import certificate_name
from surebound.certificates.packs import CERTIFICATE, held
from surebound.errors import InputError, RunError
from surebound.experiment.config import Config
from surebound.experiment.metrics import read_metrics
from surebound.experiment.rundir import RunDirectory
from surebound.experiment.verifications import by_image, read_verifications
from surebound.verify import Record, Results, Store, Summary, summarise
from surebound.verify.mistaken import of_another_question
from surebound.verify.run import STORE_NAME


@dataclass(frozen=True, eq=False)
class ReportedRun:
    """One directory: a training run, the results of a verification, or both."""

    path: Path
    name: str
    config: Config | None = None
    environment: dict[str, Any] = field(default_factory=dict)
    metrics: tuple[dict[str, Any], ...] = ()
    results: dict[str, Any] = field(default_factory=dict)  # error rates of the final weights
    records: tuple[Record, ...] = ()
    requests: tuple[dict[str, Any], ...] = ()  # what was asked of `verify`
    codes: tuple[str, ...] = ()  # code versions of the verdicts
    regions: str = ""  # what the verdicts are about if not l-infinity balls of one radius
    threat: str = ""  # the same as `--threat` takes it, if it was asked so
    clip: tuple[float, float] | None = None  # valid pixels of the threat

    @functools.cached_property
    def summaries(self) -> tuple[Summary, ...]:
        """One per radius, in ascending order."""
        radii = sorted({record.eps for record in self.records})
        return tuple(summarise(r for r in self.records if r.eps == radius) for radius in radii)

    @property
    def data(self) -> str | None:
        """The dataset's name, if it is known."""
        if self.requests and self.requests[-1].get("data"):
            return str(self.requests[-1]["data"])
        return self.config.data.name if self.config is not None else None

    @property
    def step(self) -> int:
        """The last training step that is on record."""
        return max((int(m["step"]) for m in self.metrics), default=int(self.results.get("step", 0)))

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The metrics of one kind: `training` or `evaluation`."""
        return [record for record in self.metrics if record.get("kind") == kind]

    def evaluated(self, key: str) -> dict[Fraction, float]:
        """radius -> share, from results.json: `verified_error` or `pgd_error`."""
        return {Fraction(radius): float(v) for radius, v in self.results.get(key, {}).items()}


def read_runs(paths: Sequence[Path]) -> tuple[ReportedRun, ...]:
    """Every run in the given directories, themselves or one level below; names are made different."""
    found: list[Path] = []
    for path in paths:
        places = [path] if _is_run(path) else sorted(p for p in _children(path) if _is_run(p))
        if not places:
            raise InputError(
                f"{path} holds no run: a run directory has a config.toml, a verification a {STORE_NAME}, "
                "and neither is there or one level below"
            )
        found += [place for place in places if place not in found]
    if not found:
        raise InputError("no run was given; name one or more run directories")
    runs = [read_run(path) for path in found]
    names = _distinct(runs)
    return tuple(replace(run, name=name) for run, name in zip(runs, names, strict=True))


def read_run(path: Path) -> ReportedRun:
    """The run at `path`, a directory or a .db file."""
    store = path if path.suffix == ".db" else path / STORE_NAME
    folder = store.parent
    training: dict[str, Any] = {}
    if (folder / "config.toml").is_file():
        directory = RunDirectory.open(folder)
        training = {
            "config": directory.config,
            "environment": directory.read_json("environment.json"),
            "results": directory.read_json("results.json"),
            "metrics": tuple(read_metrics(directory.metrics)) if directory.metrics.is_file() else (),
        }
    records: tuple[Record, ...] = ()
    codes: tuple[str, ...] = ()
    regions = ""
    if store.is_file():
        with Store.read(store) as opened:
            records, codes, regions = tuple(opened.records()), tuple(opened.codes()), opened.regions()
    if not training and not records:
        raise RunError(f"{path} has nothing to report yet: no training run, and a store without results")
    requests = tuple(read_verifications(folder))
    records = tuple(by_image(Results(records), folder))
    name = training["config"].name if training else str(requests[-1]["network"]) if requests else folder.name
    threat, clip = "", None
    if regions:
        request = next((request for request in reversed(requests) if "threat" in request), {"threat": ""})
        threat, ends = str(request["threat"]), request.get("clip", (0.0, 1.0))
        regions, clip = threat or regions, None if ends is None else (float(ends[0]), float(ends[1]))
        name = f"{name}, {regions}"  # no table or chart may take them for l-infinity balls
    return ReportedRun(
        path=folder, name=name, records=records, requests=requests, codes=codes, regions=regions, threat=threat,
        clip=clip, **training,
    )  # fmt: skip


def records_json(runs: Sequence[ReportedRun]) -> str:
    """Every verdict as a compact JSON text for the page's table; with certificates, a link to each and its state."""
    rows, proofs = [], list[list[str] | None]()
    for number, run in enumerate(runs):
        found = certified(run)
        for r in run.records:
            proofs.append(found.get((r.index, r.eps)))
            bound = r.verdict.bound
            shown = float(f"{bound:.4g}") if abs(bound) < 1e300 else None  # infinity and NaN are not JSON
            rows.append(
                [number, r.index, str(r.eps), r.label, r.prediction, r.verdict.status.value, r.verdict.stage,
                 shown, float(f"{r.verdict.seconds:.3g}"), r.verdict.read_as]
            )  # fmt: skip
    if any(proofs):
        rows = [[*row, proof] for row, proof in zip(rows, proofs, strict=True)]
    return json.dumps({"runs": [run.name for run in runs], "rows": rows}, separators=(",", ":")).replace("</", "<\\/")


def certified(run: ReportedRun) -> dict[tuple[int, Fraction], list[str]]:
    """Return the certificates of a run's verdicts, by image and radius: "checked" or "not checked", and the address."""
    found: dict[tuple[int, Fraction], list[str]] = {}
    for place in dict.fromkeys(str(request["certificates"]) for request in run.requests if "certificates" in request):
        directory = Path(place)
        noted, there = checked_files(directory), held(directory) if directory.is_dir() else {}
        for r in run.records:
            lies = there.get(f"{certificate_name(r.index, r.eps)}{CERTIFICATE}")
            if not r.verdict.status.decided or lies is None:
                continue
            content = lies.read_bytes()
            if not of_another_question(content, r):
                state = "checked" if is_checked(lies.name, content, noted) else "not checked"
                found[r.index, r.eps] = [state, lies.uri()]
    return found


def _is_run(path: Path) -> bool:
    if path.suffix == ".db":
        return path.is_file()
    return (path / "config.toml").is_file() or (path / STORE_NAME).is_file()


def _children(path: Path) -> list[Path]:
    return [p for p in path.iterdir() if p.is_dir()] if path.is_dir() else []


def _distinct(runs: Sequence[ReportedRun]) -> list[str]:
    """Names; those that several runs share get their directory's name added."""
    names = [run.name for run in runs]
    longer = [n if names.count(n) == 1 else f"{n} ({r.path.name})" for n, r in zip(names, runs, strict=True)]
    # Two stores of one name.
    return [n if longer.count(n) == 1 else f"{n} #{i + 1}" for i, n in enumerate(longer)]

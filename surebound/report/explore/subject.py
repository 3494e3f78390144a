"""What the explorer is about: one run's verdicts, their images, the network and the certificates."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import torch
from torch import Tensor, nn

from surebound.certificates.directory import certificate_name
from surebound.certificates.packs import CERTIFICATE, Held, held
from surebound.errors import InputError, SureboundError
from surebound.experiment.target import load_target
from surebound.graph import forward
from surebound.report.originals import OTHERS, class_names, find_examples, original_of
from surebound.report.source import ReportedRun, read_run
from surebound.train.examples import Examples
from surebound.verify import Record, Store
from surebound.verify.mistaken import of_another_question
from surebound.verify.run import STORE_NAME, identity_of

#: Steps of the slider from 0 to a quarter beyond the largest radius that was asked about.
STEPS = 15
CERTIFICATES = "certificates"


@dataclass(frozen=True, eq=False)
class Subject:
    """A verified run to look into; ``notes`` say what is missing and how to bring it in."""

    run: ReportedRun
    records: dict[int, dict[Fraction, Record]]  # image -> radius -> record
    images: Examples | None = None
    classes: tuple[str, ...] = ()
    model: nn.Module | None = None  # only if it is the network that the verdicts are about
    clip: tuple[float, float] | None = None
    certificates: Path | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def radii(self) -> tuple[Fraction, ...]:
        """The radii that were asked about, in ascending order."""
        return tuple(sorted({eps for found in self.records.values() for eps in found}))

    @property
    def grid(self) -> tuple[Fraction, ...]:
        """The places of the slider: those radii, and evenly spaced ones."""
        largest = max(self.radii)
        return tuple(sorted({*self.radii, *(largest * k / (STEPS - 3) for k in range(STEPS + 1))}))

    def image(self, index: int) -> Tensor | None:
        """Return the image (C, H, W) that was verified under a number, if it is there."""
        return original_of(next(iter(self.records[index].values())), self.images)

    def outputs(self, index: int) -> Tensor | None:
        """Return the network's outputs (K,) at an image."""
        x = self.image(index)
        if x is None or self.model is None:
            return None
        with torch.no_grad():
            return forward(self.model, x[None])[0]

    @functools.cached_property
    def _held(self) -> dict[str, Held]:
        return {} if self.certificates is None else held(self.certificates)

    def certificate(self, index: int, eps: Fraction) -> Held | None:
        """Return the certificate of a verdict, if there is one, and not another's under its name."""
        record = self.records.get(index, {}).get(eps)
        if record is None:
            return None
        found = self._held.get(f"{certificate_name(index, eps)}{CERTIFICATE}")
        return found if found is not None and not of_another_question(found.read_bytes(), record) else None


def open_subject(
    path: Path,
    *,
    network: str | None = None,
    weights: Path | None = None,
    data: str | None = None,
    data_dir: Path | None = None,
    clip: tuple[float, float] | None = None,
    certificates: Path | None = None,
) -> Subject:
    """Read a run or a results store; ``network`` and ``data`` say what a store does not know itself."""
    run = read_run(path)
    if not run.records:
        raise InputError(f"{path} has no verdicts to explore yet; first: surebound verify {path} --eps ...")
    if run.regions:
        raise InputError(
            f"{path} holds verdicts about {run.regions}; the explorer shows l-infinity balls of one radius, where a "
            f"radius is the largest change of a pixel. surebound report {path} and surebound results {path} show these"
        )
    if certificates is not None and not certificates.is_dir():
        raise InputError(f"--certificates {certificates} is no directory; `surebound verify --certificates` writes one")
    records: dict[int, dict[Fraction, Record]] = {}
    for record in run.records:
        records.setdefault(record.index, {})[record.eps] = record
    images, note = find_examples(data or run.data, data_dir)
    notes = [note] if note else []
    if images is not None and any(original_of(next(iter(r.values())), images) is None for r in records.values()):
        notes.append(OTHERS)
    store = path if path.suffix == ".db" else path / STORE_NAME
    model, held, note = _network(run, store, network, weights, records, images, clip, data, data_dir)
    notes += [note] if note else []
    place = certificates or run.path / CERTIFICATES
    return Subject(run, records, images, class_names(run), model, held, place if place.is_dir() else None, tuple(notes))


def _network(
    run: ReportedRun,
    store: Path,
    network: str | None,
    weights: Path | None,
    records: dict[int, dict[Fraction, Record]],
    images: Examples | None,
    clip: tuple[float, float] | None,
    data: str | None,
    data_dir: Path | None,
) -> tuple[nn.Module | None, tuple[float, float] | None, str]:
    """Load the network that the verdicts are about and its clip range, or say why there is none."""
    if network is None and run.config is None:
        return None, clip, "The network is not known, so no ranges are shown; --network NET brings it in."
    try:
        # The data, too: a file for (H, W, C) was verified behind a change of axes.
        target = load_target(network or run.path, weights=weights, clip=clip, data=data or run.data, data_dir=data_dir)
        known = _first(records, images)
        if known is None:
            return None, target.clip, "Without the images no ranges can be computed."
        with Store.read(store) as opened:
            subject = opened.subject()
        identity = identity_of(target.model, known[None], target.clip)
    except SureboundError as error:
        return None, clip, f"The network could not be loaded, so no ranges are shown ({str(error).splitlines()[0]})."
    if (identity.weights, identity.spec) != subject:
        return None, target.clip, (
            "The network, its weights or its clip range are not those that were verified, so it is not asked anything."
        )  # fmt: skip
    return target.model, target.clip, ""


def _first(records: dict[int, dict[Fraction, Record]], images: Examples | None) -> Tensor | None:
    found = (original_of(next(iter(each.values())), images) for each in records.values())
    return next((x for x in found if x is not None), None)


def hardest_first(subject: Subject) -> Sequence[int]:
    """Return the images, undecided ones first, then those that took longest, then the narrowest verdicts."""

    def hardness(index: int) -> tuple[bool, float, float]:
        found = subject.records[index].values()
        slow = max(record.verdict.seconds for record in found)
        closest = max((-abs(r.verdict.bound) for r in found if r.verdict.bound == r.verdict.bound), default=0.0)
        return all(record.verdict.status.decided for record in found), -slow, -closest

    return sorted(subject.records, key=hardness)

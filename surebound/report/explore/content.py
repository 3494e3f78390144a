"""The explorer's data as JSON: all verdicts in one list; an image, its ranges and its certificates by themselves."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surebound.region import LinfBall
from surebound.report.explore.proofs import certificate_json
from surebound.report.explore.ranges import METHODS, QUICK, output_ranges, short
from surebound.report.explore.subject import Subject
from surebound.report.verdicts import in_words, radius_text
from surebound.search.record import Record

#: Images that are bounded together.
BATCH = 50


def index_json(subject: Subject, images: Iterable[int], *, served: bool) -> dict[str, Any]:
    """Return what the page begins with: names, radii and every verdict on the given images."""
    radii = subject.radii
    rows = []
    for index in images:
        found = subject.records[index]
        first = next(iter(found.values()))
        verdicts = [_verdict(subject, record, radii.index(eps)) for eps, record in sorted(found.items())]
        rows.append({"i": index, "label": first.label, "prediction": first.prediction, "verdicts": verdicts})
    return {
        "name": subject.run.name,
        "classes": list(subject.classes),
        "radii": [str(eps) for eps in radii],
        "grid": [str(eps) for eps in subject.grid],
        "shown": {str(eps): radius_text(eps) for eps in subject.grid},
        "stages": {stage: in_words(stage) for stage in sorted({r.verdict.stage for r in subject.run.records})},
        "methods": list(METHODS if served else QUICK) if subject.model is not None else [],
        "served": served,
        "live": served and subject.model is not None,
        "certificates": subject.certificates is not None,
        "notes": list(subject.notes),
        "total": len(subject.records),
        "images": rows,
    }


def _verdict(subject: Subject, record: Record, radius: int) -> list[Any]:
    """Return one verdict as the page's script reads it: see VERDICT in state.js."""
    verdict = record.verdict
    bound = float(f"{verdict.bound:.5g}") if abs(verdict.bound) < 1e300 else None
    return [
        radius, verdict.status.value, verdict.stage, bound, float(f"{verdict.seconds:.3g}"), verdict.read_as,
        verdict.float_sound, subject.certificate(record.index, record.eps) is not None, verdict.detail,
    ]  # fmt: skip


def image_json(subject: Subject, index: int) -> dict[str, Any]:
    """Return an image, what the network makes of it, its counterexamples and the times of its stages, by radius."""
    x, values = subject.image(index), subject.outputs(index)
    found = subject.records[index]
    shape = next((t.shape for t in (x, *(r.verdict.witness for r in found.values())) if t is not None), ())
    return {
        "shape": list(shape),
        "x": None if x is None else floats(x),
        "values": None if values is None else short(values),
        "witnesses": {str(eps): floats(r.verdict.witness) for eps, r in found.items() if r.verdict.witness is not None},
        "seconds": {str(eps): [[n, float(f"{s:.3g}")] for n, s in r.stage_seconds] for eps, r in found.items()},
    }


def floats(values: Tensor) -> str:
    """Return a tensor's float32 numbers, little-endian, in base64."""
    return base64.b64encode(values.detach().cpu().numpy().astype("<f4").tobytes()).decode("ascii")


def thumbnail(subject: Subject, index: int) -> dict[str, Any] | None:
    """Return an image as bytes, for a list."""
    x = subject.image(index)
    if x is None:
        x = next((r.verdict.witness for r in subject.records[index].values() if r.verdict.witness is not None), None)
    if x is None:
        return None
    pixels = (x.float().clamp(0, 1) * 255).round().numpy().astype(np.uint8)
    return {"shape": list(x.shape), "bytes": base64.b64encode(pixels.tobytes()).decode("ascii")}


def ranges_json(subject: Subject, index: int, eps: Fraction) -> dict[str, Any]:
    """Return the ranges of one image's outputs within a radius, by every method."""
    return ranges_of(subject, [index], eps, METHODS)[index]


def ranges_of(
    subject: Subject, indices: list[int], eps: Fraction, methods: tuple[str, ...]
) -> dict[int, dict[str, Any]]:
    """Return the ranges of several images, those that are there."""
    images = {index: x for index in indices if (x := subject.image(index)) is not None}
    if subject.model is None or not images:
        return {index: {} for index in indices}
    labels = torch.tensor([next(iter(subject.records[index].values())).label for index in images])
    ball = LinfBall(torch.stack(list(images.values())), eps, subject.clip)
    found = output_ranges(subject.model, ball, labels, methods)
    known = {index: {m: r.as_json(n) for m, r in found.items()} for n, index in enumerate(images)}
    return {index: known.get(index, {}) for index in indices}


def details(subject: Subject, images: list[int], progress: Callable[[int, int], None] | None = None) -> dict[str, Any]:
    """Return everything that a page of one file can show of the given images."""
    proofs = [(i, eps) for i in images for eps in subject.records[i] if subject.certificate(i, eps) is not None]
    bounds = [images[n : n + BATCH] for n in range(0, len(images), BATCH)] if subject.model is not None else []
    total, done = len(bounds) * len(subject.grid) * BATCH + len(proofs), 0
    ranges: dict[int, dict[str, Any]] = {index: {} for index in images}
    for batch in bounds:
        for eps in subject.grid:
            for index, found in ranges_of(subject, batch, eps, QUICK).items():
                ranges[index][str(eps)] = found
            done += BATCH
            if progress is not None:
                progress(done, total)
    certificates = {}
    for index, eps in proofs:
        path = subject.certificate(index, eps)
        if path is not None:
            certificates[f"{index} {eps}"] = certificate_json(path, attach=True)
        done += 1
        if progress is not None:
            progress(done, total)
    return {
        "images": {index: image_json(subject, index) for index in images},
        "ranges": ranges,
        "certificates": certificates,
    }

"""The images worth looking at: counterexamples with their perturbations, and the hardest of the rest."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from surebound.report.changed import seen
from surebound.report.originals import OTHERS, class_names, find_examples
from surebound.report.source import ReportedRun
from surebound.report.verdicts import in_words, radius_text
from surebound.train.examples import Examples
from surebound.verdict import Status
from surebound.verify import Record

MOST = 12  # of each kind


@dataclass(frozen=True, eq=False)
class Picture:
    """One image of the gallery: the panels that are known of it, and what to say."""

    original: Tensor | None  # (C, H, W) in [0, 1]
    witness: Tensor | None  # (C, H, W): the counterexample
    title: str
    detail: str
    eps: float  # the largest change of a pixel, or a bound of it
    within: str = ""  # the radius or the threat, in words

    @property
    def perturbation(self) -> Tensor | None:
        """(C, H, W): counterexample minus image."""
        if self.original is None or self.witness is None:
            return None
        return self.witness - self.original


@dataclass(frozen=True, eq=False)
class Gallery:
    """The pictures of one run; `note` says what is missing, if anything is."""

    falsified: tuple[Picture, ...]
    hardest: tuple[Picture, ...]
    note: str = ""


def gallery(run: ReportedRun, data_dir: Path | None = None, most: int = MOST) -> Gallery:
    """Broken images (smallest radius first) and the hardest others: undecided, then slow, then close calls."""
    broken = [r for r in run.records if r.verdict.status is Status.FALSIFIED and r.verdict.stage != "clean"]
    broken = _spread(sorted(broken, key=_brokenness), most)
    rest = [r for r in run.records if r.verdict.status is not Status.FALSIFIED]
    hardest = _first_of_each(sorted(rest, key=_hardness), most)
    images, note = find_examples(run.data, data_dir) if broken or hardest else (None, "")
    pictures = {id(r): _picture(run, r, images, class_names(run)) for r in (*broken, *hardest)}
    if images is not None and any(p.original is None for p in pictures.values()):
        note = OTHERS
    return Gallery(
        tuple(p for r in broken if (p := pictures[id(r)]).witness is not None),
        tuple(p for r in hardest if (p := pictures[id(r)]).original is not None),
        note,
    )


def _brokenness(record: Record) -> tuple[Fraction, float, int]:
    """Smallest radius first; there, what took longest to find."""
    return record.eps, -record.verdict.seconds, record.index


def _hardness(record: Record) -> tuple[bool, float, Fraction, float]:
    """Undecided first; then what took longest, the smaller radius, the narrowest proof."""
    proved, slow = record.verdict.status is Status.ROBUST, record.verdict.seconds if record.verdict.seconds >= 1 else 0
    return proved, -slow, Fraction(0) if proved else record.eps, -record.verdict.bound


def _first_of_each(records: list[Record], most: int) -> list[Record]:
    """Each image once, by the first of its records, in their order."""
    found: dict[int, Record] = {}
    for record in records:
        found.setdefault(record.index, record)
    return list(found.values())[:most]


def _spread(records: list[Record], most: int) -> list[Record]:
    """Each image once, in their order; where there are too many, different labels before the same again."""
    seen: dict[int, int] = {}
    order = []
    for record in _first_of_each(records, len(records)):
        seen[record.label] = seen.get(record.label, 0) + 1
        order.append((seen[record.label], record))
    chosen = [record for _, record in sorted(order, key=lambda pair: pair[0])][:most]
    return sorted(chosen, key=_brokenness)


def _picture(run: ReportedRun, record: Record, images: Examples | None, classes: tuple[str, ...]) -> Picture:
    (original, witness), verdict = seen(run, record, images), record.verdict

    def name(k: int) -> str:
        return classes[k] if k < len(classes) else str(k)

    title = name(record.label)
    within = f"under {run.threat}" if run.threat else f"within {radius_text(record.eps)}"
    place = f"image {record.index}, {within}"
    if verdict.status is Status.FALSIFIED:
        instead = "" if verdict.read_as is None else f" → {name(verdict.read_as)}"
        title, detail = f"{title}{instead}", f"{place}: found by {in_words(verdict.stage)}"
    else:
        margin = f"; margin ≥ {-verdict.bound or 0.0:.2g}".replace("-", "−") if abs(verdict.bound) < 1e30 else ""
        how = f"proved by {in_words(verdict.stage)}"
        if verdict.status is not Status.ROBUST:
            how = f"{_OPEN[verdict.status]} after {in_words(verdict.stage) or 'no stage'}"
        seconds = f", {verdict.seconds:.1f} s" if verdict.seconds >= 0.05 else ""
        detail = f"{place}: {how}{seconds}{margin}"
    change = float(record.eps)
    if run.threat and original is not None and witness is not None:  # a size in degrees is none of pixels
        change = float((witness - original).abs().max())
    return Picture(original, witness, title, detail, change, within)


_OPEN = {Status.UNKNOWN: "undecided", Status.TIMEOUT: "out of time", Status.ERROR: "an error"}


def png(pixels: NDArray[np.uint8]) -> str:
    """An image (H, W, 3) as a data URI."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def image_pixels(image: Tensor) -> NDArray[np.uint8]:
    """(C, H, W) in [0, 1] as bytes (H, W, 3); one channel is shown grey, more than three by their mean."""
    x = image.detach().float().clamp(0, 1)
    if x.dim() != 3:
        x = x.reshape(1, 1, -1)
    if x.shape[0] != 3:
        x = x.mean(0, keepdim=True).expand(3, -1, -1)
    pixels: NDArray[np.uint8] = (x * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous().numpy()
    return pixels


def difference_pixels(change: Tensor, eps: float) -> NDArray[np.uint8]:
    """A perturbation (C, H, W) scaled to ±eps: blue is darker, red is brighter, white is no change."""
    x = change.detach().float()
    if x.dim() != 3:
        x = x.reshape(1, 1, -1)
    s = (x.mean(0) / max(eps, 1e-12)).clamp(-1, 1)  # (H, W)
    up, down = s.clamp(min=0), (-s).clamp(min=0)
    white = torch.ones_like(s)
    # towards (178, 58, 38) for up and (38, 92, 158) for down
    rgb = torch.stack(
        [
            white - up * (1 - 178 / 255) - down * (1 - 38 / 255),
            white - up * (1 - 58 / 255) - down * (1 - 92 / 255),
            white - up * (1 - 38 / 255) - down * (1 - 158 / 255),
        ],
        dim=-1,
    )
    pixels: NDArray[np.uint8] = (rgb * 255).round().to(torch.uint8).numpy()
    return pixels

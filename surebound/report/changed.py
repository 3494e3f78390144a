"""What the points are that verdicts about changes of images keep: the image, and what the network saw instead."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from surebound.report.originals import original_of
from surebound.report.source import ReportedRun
from surebound.threats import Changed, Patched, threat
from surebound.train.examples import Examples
from surebound.verify import Record
from surebound.verify.identity import example_hash


def seen(run: ReportedRun, record: Record, images: Examples | None) -> tuple[Tensor | None, Tensor | None]:
    """Return a record's image (C, H, W) and its counterexample as the network sees it; None of what is not known.

    A counterexample to a rotation is an angle and the image; the picture is what the rotation makes of them.
    """
    witness = record.verdict.witness
    if not run.threat or threat(run.threat).in_pixels:
        return original_of(record, images), witness
    if images is None or record.index >= len(images):
        return None, None
    x, y = images.batch(torch.tensor([record.index]))
    front, region = threat(run.threat).against(nn.Identity(), x, run.clip)
    verified = {example_hash(point, int(y[0])) for point in region.x}
    if not isinstance(front, (Changed, Patched)) or (record.example and record.example not in verified):
        return None, None
    return x[0], None if witness is None else front.image(witness[None])[0].detach()

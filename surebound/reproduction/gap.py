"""Where an attack fails and a complete search does not, and the loss between the two (the paper's figures 1, 8, 9)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from surebound.attack import attack
from surebound.attack.methods import PGD
from surebound.region import LinfBall
from surebound.reproduction.bench import Bench
from surebound.reproduction.work import Check
from surebound.verdict import Status
from surebound.verify import Record

COMPLETE = ("branch-and-bound", "mip")


def missed(records: tuple[Record, ...]) -> list[Record]:
    """Images that the attacks of a cascade could not break and its complete search could, smallest radius first."""
    found = [r for r in records if r.verdict.status is Status.FALSIFIED and r.verdict.stage in COMPLETE]
    return sorted(found, key=lambda r: (r.eps, r.index))


def gap(bench: Bench, check: Check, attack_by: PGD, side: int = 81) -> dict[str, Any]:
    """The first such image with both perturbations and the loss in their plane; without one, only the counts.

    The attack of the cascade ran on the same image with the same seed; it is run again for its best iterate.
    """
    records = bench.records(check)
    broken = [r.verdict.stage for r in records if r.verdict.status is Status.FALSIFIED]
    counts = {
        "images": len({r.index for r in records}),
        "attacked": sum(stage not in ("clean", *COMPLETE) for stage in broken),
        "missed": len(missed(records)),
        "undecided": sum(not r.verdict.status.decided for r in records),
        "network": check.network.name,
        "pgd": f"{attack_by.steps} steps x {attack_by.restarts} restarts",
    }  # fmt: skip
    target = bench.load(check.network)
    for record in missed(records):
        image, label = target.test().batch(torch.tensor([record.index]))
        best = attack(target.model, LinfBall(image, record.eps, clip=(0, 1)), label, attack_by)
        witness = record.verdict.witness
        if bool(best.success) or witness is None:  # another seed does break it: not a case of this kind
            continue
        found = _scene(target.model, image, label, best.adversarial, witness[None], float(record.eps), side)
        return {
            **counts, **found, "found": True, "index": record.index, "eps": str(record.eps),
            "stage": record.verdict.stage,
        }  # fmt: skip
    return {**counts, "found": False}


def _scene(
    model: nn.Module, image: Tensor, label: Tensor, pgd: Tensor, exact: Tensor, eps: float, side: int
) -> dict[str, Any]:
    """Both points and the margin loss on the plane through the image and them: u towards PGD's, v towards the exact."""
    u, v = pgd - image, exact - image
    axis = torch.linspace(-1.35, 1.35, side)
    plane = torch.cartesian_prod(axis, axis)  # (G, 2): u, v
    losses, classes, inside = [], [], []
    with torch.no_grad():
        for chunk in torch.split(plane, 512):
            x = image + chunk[:, :1, None, None] * u + chunk[:, 1:, None, None] * v
            logits = model(x)
            losses.append(_loss(logits, label))
            classes.append(logits.argmax(1))
            # The ball alone, as the paper draws it; valid pixels are a part of it.
            inside.append((x - image).abs().flatten(1).amax(1) <= eps * (1 + 1e-6))
        ends = torch.cat([image, pgd, exact])
        logits = model(ends)
    return {
        "label": int(label),
        "predictions": logits.argmax(1).tolist(),
        "end_losses": _loss(logits, label).tolist(),
        "image": image[0].tolist(),
        "pgd_image": pgd[0].tolist(),
        "exact_image": exact[0].tolist(),
        "axis": axis.tolist(),
        "loss": torch.cat(losses).reshape(side, side).tolist(),  # [u][v]
        "class": torch.cat(classes).reshape(side, side).tolist(),
        "inside": torch.cat(inside).reshape(side, side).tolist(),
    }


def _loss(logits: Tensor, label: Tensor) -> Tensor:
    """The untargeted margin, max_k z_k - z_true over the other classes: (N,). Positive means misclassified."""
    true = logits[:, int(label)]
    others = logits.clone()
    others[:, int(label)] = -float("inf")
    return others.amax(1) - true

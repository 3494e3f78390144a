"""Training steps beside auto_LiRPA's: the same network, loss, data and optimiser, timed in turns in one process.

    python -m benchmarks.peers.training [FOLDER] [--seconds 10] [--threads 2]

auto_LiRPA is no dependency. An installed one is used; else the copy (0.6.0) that neuralsat's environment brings, which
`python -m benchmarks.peers setup FOLDER` makes. Both run on the PyTorch of this process, both with the fused Adam.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

import surebound as sb
from benchmarks import common
from benchmarks.bench_training import SHAPE, loop_for
from surebound.attack.inner import box
from surebound.train.methods import CROWNIBP, IBP, Nominal
from surebound.train.methods.base import Batch, Loss, Method

NETS = {"small": sb.models.small, "medium": sb.models.medium}
LIMIT = 0.75  # of the peer's step


def peer(folder: Path) -> ModuleType:
    """auto_LiRPA, installed or from neuralsat's environment in this folder."""
    # at the end of the path: everything that both environments have is this one's
    sys.path += [str(p) for p in sorted(folder.glob("neuralsat/lib/python*/site-packages"))]
    for name in ("auto_LiRPA", "src.abstractor.auto_LiRPA"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as reason:
            missing = reason
    raise SystemExit(
        f"auto_LiRPA cannot be imported ({missing}). Run `python -m benchmarks.peers setup {folder}`, or install "
        "auto_LiRPA from its repository with `pip install --no-deps`"
    )


@dataclass(frozen=True)
class Peer(Method):
    """kappa CE(z) + (1 - kappa) CE(worst margins), the margins by auto_LiRPA; `batch.model` is its BoundedModule."""

    name: ClassVar[str] = "peer"
    robust: ClassVar[bool] = True

    lirpa: Any
    linear: bool = False  # the margins by CROWN over interval bounds, not by intervals alone

    def loss(self, batch: Batch) -> Loss:
        lower, upper = box(batch.images, batch.epsilon, batch.clip)
        ball = self.lirpa.PerturbationLpNorm(norm=float("inf"), eps=batch.epsilon, x_L=lower, x_U=upper)
        x = self.lirpa.BoundedTensor(batch.images, ball)
        spec = _margins(batch.labels)
        model: Any = batch.model
        clean = model(x)
        bound, _ = model.compute_bounds(x=(x,), IBP=True, C=spec, method=None, bound_upper=False)
        if self.linear:
            bound, _ = model.compute_bounds(IBP=False, C=spec, method="backward", bound_upper=False)
        worst = torch.cat([bound.new_zeros(len(bound), 1), -bound], 1)  # (B, K), the true class first
        robust = F.cross_entropy(worst, torch.zeros_like(batch.labels))
        return Loss(batch.kappa * F.cross_entropy(clean, batch.labels) + (1 - batch.kappa) * robust)


def _margins(labels: torch.Tensor, classes: int = 10) -> torch.Tensor:
    """z_true - z_k for the other classes k: (B, K-1, K)."""
    unit = torch.eye(classes)
    every = unit[labels].unsqueeze(1) - unit  # (B, K, K)
    return every[labels.unsqueeze(1) != torch.arange(classes)].view(len(labels), classes - 1, classes)


def race(name: str, lirpa: ModuleType, batch: int, crown: bool) -> common.Race:
    """The contenders on one network; their first losses are the same number."""
    build = NETS[name]

    def bounded() -> torch.nn.Module:
        model: torch.nn.Module = lirpa.BoundedModule(same(), torch.zeros(2, *SHAPE))
        return model

    def same() -> torch.nn.Module:
        torch.manual_seed(0)
        return build()

    loops = {
        "nominal": loop_for(same(), Nominal(), batch),
        "IBP": loop_for(same(), IBP(), batch),
        "auto_LiRPA IBP": loop_for(bounded(), Peer(lirpa), batch),
    }
    if crown:
        loops["CROWN-IBP"] = loop_for(same(), CROWNIBP(beta_final=1.0, fused=False), batch)
        loops["auto_LiRPA CROWN-IBP"] = loop_for(bounded(), Peer(lirpa, linear=True), batch)
    ours, theirs = (float(loops[who]._add_gradients()["loss"]) for who in ("IBP", "auto_LiRPA IBP"))
    if abs(ours - theirs) > 1e-3 * abs(ours):
        raise SystemExit(f"{name}: the losses differ, {ours} and {theirs}: this would compare two different steps")
    steps = {who: loop.advance for who, loop in loops.items()}
    return common.Race(f"{name}, batch {batch}", steps, {"IBP / auto_LiRPA IBP": LIMIT})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs/peers"), help="environments")
    parser.add_argument("--seconds", type=float, default=10.0, help="per network")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--net", choices=tuple(NETS), action="append", help="default: all")
    parser.add_argument("--crown", action="store_true", help="CROWN-IBP, too")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    lirpa = peer(given.folder)
    print(f"{lirpa.__name__} {lirpa.__version__}, PyTorch {torch.__version__}, {given.threads} threads")
    for name in given.net or NETS:
        for record in race(name, lirpa, given.batch, given.crown).measure(common.Budget(given.seconds)):
            print(f"{record.name}: {record.value:.2f} ± {record.spread:.2f} {record.unit}", flush=True)


if __name__ == "__main__":
    main()

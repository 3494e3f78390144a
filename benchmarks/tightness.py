"""Tightness and cost of every bound on a nominal, an adversarial and an IBP-trained network: docs/linear-bounds.md.

    surebound train mnist-small-nominal --steps 2000 --seed 0 --out runs/nominal
    surebound train mnist-small-adversarial-0.2 --steps 3000 --warmup 100 --ramp 1500 --seed 0 --out runs/adversarial
    python -m benchmarks.tightness nominal=runs/nominal adversarial=runs/adversarial IBP=mnist-small-ibp-0.4 \
        --eps 1/100 1/50 1/10

Margins are of test images that the network classifies correctly, sound for every float32 execution; the forward
domains, which take seconds per image, see only the first ``--few``. CPU time on one thread, per image; the cost of a
forward pass is that of a batch of the same images.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import surebound as sb
from surebound import data as datasets
from surebound.bounds.margins import METHODS
from surebound.experiment.target import load_target


def timed(work: Callable[[], Tensor], repeats: int) -> tuple[Tensor, float]:
    """The result and the median CPU time."""
    spent = []
    for _ in range(repeats):
        start = time.process_time()
        found = work()
        spent.append(time.process_time() - start)
    return found, statistics.median(spent)


#: Methods that carry a matrix of the inputs forwards, whatever the specification.
FORWARD = ("zonotope", "symbolic")


def measure(net: nn.Module, x: Tensor, labels: Tensor, eps: str, few: int, repeats: int) -> list[list[str]]:
    """One line per method: images proved, the median of the worst margins, ms per image, forward passes."""
    sb.worst_margins(net, sb.LinfBall(x, eps, clip=(0, 1)), labels)  # traced once
    with torch.no_grad():
        _, forward = timed(lambda: net(x), 5 * repeats)
    lines = []
    for name in METHODS:
        count = min(few, len(x)) if name in FORWARD else len(x)
        worst, spent = worst_of(net, x[:count], labels[:count], eps, name, repeats)
        each, proved = spent / count, int((worst <= 0).sum())
        lines.append(
            [name, f"{proved} of {count}", f"{float(worst.median()):.3g}", f"{1e3 * each:.1f}",
             f"{each * len(x) / forward:.0f}"]
        )  # fmt: skip
    return lines


def worst_of(net: nn.Module, x: Tensor, labels: Tensor, eps: str, method: str, repeats: int) -> tuple[Tensor, float]:
    """The largest margin (B,) of every image, and the time of all."""
    region = sb.LinfBall(x, eps, clip=(0, 1))
    margins, spent = timed(lambda: sb.worst_margins(net, region, labels, method=method), repeats)
    return margins.detach().scatter(1, labels.unsqueeze(1), -torch.inf).amax(1), spent


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="+", help="TITLE=TARGET: a run directory or a packaged network")
    parser.add_argument("--eps", nargs="+", required=True, help="a radius for each network")
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--few", type=int, default=8, help="images of the forward domains (default: 8)")
    parser.add_argument("--data-dir", type=Path, help="where MNIST is (default: the user's cache)")
    parser.add_argument("--repeats", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(1)
    images, labels = datasets.load("mnist", given.data_dir).test.batch(torch.arange(2 * given.images))
    out = [
        "| network | eps | bounds | proved | median worst margin | ms per image | forward passes |",
        "|" + " --- |" * 7,
    ]
    for each, eps in zip(given.networks, given.eps, strict=True):
        title, _, target = each.partition("=")
        net = load_target(target).model.eval().requires_grad_(False)
        right = (net(images).argmax(1) == labels).nonzero()[: given.images, 0]
        for line in measure(net, images[right], labels[right], eps, given.few, given.repeats):
            out.append("| " + " | ".join([title, eps, *line]) + " |")
            sys.stderr.write(out[-1] + "\n")  # it takes minutes
    sys.stdout.write("\n".join(out) + "\n")


if __name__ == "__main__":
    main()

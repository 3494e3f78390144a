"""Which questions are asked: images that interval bounds cannot prove and PGD cannot break, as ONNX and VNN-LIB."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path

import torch

import surebound as sb
from surebound.experiment.target import load_target
from surebound.region import LinfBall
from surebound.search.stages import Clean, IntervalBounds, PgdAttack
from surebound.verify import Cascade, verify

LIST = Path(__file__).parent / "instances.json"
#: How many of each network and radius; the smallest indices that are hard.
WANTED = (
    ("mnist-small-ibp-0.2", "0.1", 14),
    ("mnist-small-ibp-0.4", "0.1", 4),
    ("mnist-small-bn-ibp-0.4", "0.1", 3),
    ("mnist-small-ibp-0.4", "0.3", 11),
    ("mnist-small-bn-ibp-0.4", "0.3", 10),
)
_AT_ONCE = 32


@dataclass(frozen=True)
class Instance:
    """One question: does the label of a test image stay within the radius?"""

    net: str
    eps: str
    index: int
    label: int

    @property
    def name(self) -> str:
        return f"{self.net}-{self.index}-{self.eps}"

    def onnx(self, folder: Path) -> Path:
        return folder / f"{self.net}.onnx"

    def vnnlib(self, folder: Path) -> Path:
        return folder / self.net / self.eps / f"{self.index}_{self.eps}.vnnlib"


def read_list() -> list[Instance]:
    """The committed list."""
    return [Instance(**entry) for entry in json.loads(LIST.read_text(encoding="utf-8"))["instances"]]


def pick(data_dir: Path | None) -> None:
    """Find the instances again and write the list; needed only when a packaged network changes."""
    found = [instance for net, eps, count in WANTED for instance in _hard(net, eps, count, data_dir)]
    entries = ",\n".join("  " + json.dumps(asdict(instance)) for instance in found)
    LIST.write_text(f'{{"instances": [\n{entries}\n]}}\n', encoding="utf-8")


def _hard(net: str, eps: str, count: int, data_dir: Path | None) -> list[Instance]:
    target = load_target(net, data="mnist", data_dir=data_dir)
    split = target.test()
    images, labels = split.batch(torch.arange(len(split)))
    stages = Cascade("hard", (Clean(), IntervalBounds(), PgdAttack()))
    found: list[Instance] = []
    unproved = list(_unproved(target.model, images, labels, eps))
    for start in range(0, len(unproved), _AT_ONCE):
        if len(found) >= count:
            break
        chosen = unproved[start : start + _AT_ONCE]
        results = verify(target.model, LinfBall(images, eps, clip=(0, 1)), labels, stages, indices=chosen)
        found += [Instance(net, eps, r.index, r.label) for r in results if r.verdict.status.value == "unknown"]
        print(f"{net} {eps}: {len(found)} among {start + len(chosen)} of {len(unproved)} unproved", flush=True)
    return found[:count]


def _unproved(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor, eps: str) -> Iterator[int]:
    """Indices that are predicted right and not proved by intervals."""
    for start in range(0, len(images), 500):
        x, y = images[start : start + 500], labels[start : start + 500]
        with torch.no_grad():
            proved = (sb.worst_margins(model, sb.LinfBall(x, Fraction(eps), clip=(0, 1)), y) <= 0).all(1)
            right = model(x).argmax(1) == y
        yield from (start + torch.nonzero(right & ~proved).flatten()).tolist()


def export(folder: Path, data_dir: Path | None) -> None:
    """Write the networks and queries of the list by `surebound export`."""
    instances = read_list()
    for net, eps in sorted({(each.net, each.eps) for each in instances}):
        mine = [each for each in instances if (each.net, each.eps) == (net, eps)]
        command = [
            sys.executable, "-m", "surebound", "export", net, "--data", "mnist", "--eps", eps,
            "--onnx", str(mine[0].onnx(folder)), "--vnnlib-dir", str(mine[0].vnnlib(folder).parent),
            "--vnnlib-version", "1.0",
        ]  # fmt: skip
        if data_dir is not None:
            command += ["--data-dir", str(data_dir)]
        for each in mine:
            command += ["--index", str(each.index)]
        subprocess.run(command, check=True)

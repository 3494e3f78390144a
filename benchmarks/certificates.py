"""What certificates cost: writing them, their sizes, and checking them, on MNIST test images of packaged networks.

python -m benchmarks.certificates results/certificates mnist-small-ibp-0.4:1/10 mnist-small-ibp-0.2:1/10 --images 1000
python -m benchmarks.certificates results/certificates

Seconds are of this process by the CPU's clock, one thread. "Writing" compares two verifications of the same images,
with and without certificates; the second form prints the table of docs/certificates.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import surebound as sb
from surebound.certificates.archive import entries
from surebound.certificates.directory import missing
from surebound.certificates.files import opened
from surebound.checker import Rejected, check
from surebound.experiment.environment import describe_environment


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of this process that some work takes, and what it gives."""
    began = time.process_time()
    found = work()
    return time.process_time() - began, found


def rejects(certificate: bytes, network: bytes) -> bool:
    """Does the checker reject a certificate?"""
    try:
        check(certificate, network)
    except Rejected:
        return True
    return False


def measure(name: str, eps: str, count: int, timeout: float, folder: Path) -> dict[str, Any]:
    """Verify, certify and check the first test images of one network at one radius."""
    net, data = sb.load(name), sb.data.load("mnist")
    first = torch.arange(count)
    images, labels = sb.data.to_unit(data.test.images[first]), data.test.labels[first]
    region = sb.LinfBall(images, eps=eps, clip=(0, 1))
    sb.verify(net, region[:20], labels[:20])  # what the first call compiles and traces
    plain, _ = seconds(lambda: sb.verify(net, region, labels, timeout=timeout))
    with_them, results = seconds(lambda: sb.verify(net, region, labels, timeout=timeout, certificates=folder))
    found = entries(folder)
    sizes, kinds, rejected, checking = list[int](), dict[str, int](), 0, 0.0
    for entry in found:
        certificate, network = entry.read()
        sizes.append(len(certificate))
        header = opened(certificate)[0]
        by = "+".join(sorted({proof["by"] for proof in header.get("proofs", ())})) or "counterexample"
        kinds[by] = kinds.get(by, 0) + 1
        spent, refused = seconds(partial(rejects, certificate, network))
        rejected, checking = rejected + refused, checking + spent
    return {
        "network": name, "eps": eps, "images": count, "decided": sum(r.verdict.status.decided for r in results),
        "certificates": len(found), "rejected": rejected, "without": len(missing(folder)),
        "kinds": kinds, "median_bytes": statistics.median(sizes), "largest_bytes": max(sizes), "bytes": sum(sizes),
        "verifying_s": round(plain, 2), "verifying_and_writing_s": round(with_them, 2),
        "checking_s": round(checking, 2),
    }  # fmt: skip


def table(folder: Path) -> str:
    """The rows of all files, as Markdown."""
    heads = ("network", "eps", "images", "certificates", "rejected", "without", "median", "largest", "all", "verifying",
             "writing adds", "checking")  # fmt: skip
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for path in sorted(folder.glob("*.json")):
        row = json.loads(path.read_text())
        added = row["verifying_and_writing_s"] / row["verifying_s"] - 1
        cells = (
            row["network"], row["eps"], f"{row['images']:,}", f"{row['certificates']:,}",
            row["rejected"], row["without"], f"{row['median_bytes'] / 1e3:.1f} KB",
            f"{row['largest_bytes'] / 1e3:.1f} KB", f"{row['bytes'] / 1e6:.1f} MB",
            f"{row['verifying_s']:.0f} s", f"{100 * added:.0f} %", f"{row['checking_s']:.0f} s",
        )  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("asked", nargs="*", metavar="NETWORK:EPS")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--timeout", type=float, default=10, help="seconds per image and stage")
    parser.add_argument("--keep", type=Path, help="keep the certificates in KEEP/NETWORK-EPS")
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    for each in given.asked:
        name, eps = each.split(":")
        stem = f"{name}-{eps.replace('/', '-')}"
        with tempfile.TemporaryDirectory() as scratch:
            row = measure(name, eps, given.images, given.timeout, (given.keep or Path(scratch)) / stem)
        command = f"python -m benchmarks.certificates results/certificates {each} --images {given.images}"
        record = {**describe_environment(), "command": command, **row}
        (given.out / f"{stem}.json").write_text(json.dumps(record, indent=1) + "\n")
        print(each, row, flush=True)
    print(table(given.out))


if __name__ == "__main__":
    main()

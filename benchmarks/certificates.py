"""What certificates cost: writing them, their sizes, and checking them, on MNIST test images of packaged networks.

python -m benchmarks.certificates results/certificates mnist-small-ibp-0.4:1/10 mnist-small-ibp-0.2:1/10 --images 1000
python -m benchmarks.certificates results/certificates

Seconds are of this process by the CPU's clock, one thread. "Writing" is the time in which certificates are made and
written, of the rest. With --compare the images are verified without certificates, too, part by part in turn, because
other processes change how fast a core is: what solvers proved is proved again for a certificate. The second form prints
the table of docs/certificates.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import surebound as sb
from surebound.certificates.archive import entries, pack_archive
from surebound.certificates.directory import missing
from surebound.certificates.files import opened
from surebound.checker import Rejected, check
from surebound.experiment.environment import describe_environment
from surebound.verify.run import _Verification

#: Images that are verified without certificates, then with them (or first with them), before the next.
PART = 2500


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


@contextlib.contextmanager
def writing() -> Iterator[list[float]]:
    """Time what makes and writes certificates, while a verification runs."""
    spent, write = [0.0], _Verification._certify

    def timed(*given: Any) -> None:
        took, _ = seconds(lambda: write(*given))
        spent[0] += took

    with mock.patch.object(_Verification, "_certify", timed):
        yield spent


def measure(name: str, eps: str, count: int, timeout: float, folder: Path, compare: bool) -> dict[str, Any]:
    """Verify, certify and check the first test images of one network at one radius."""
    net, data = sb.load(name), sb.data.load("mnist")
    first = torch.arange(count)
    images, labels = sb.data.to_unit(data.test.images[first]), data.test.labels[first]
    region = sb.LinfBall(images, eps=eps, clip=(0, 1))
    sb.verify(net, region[:300], labels[:300], timeout=timeout)  # what the first call compiles and traces
    spent, wrote, decided = [0.0, 0.0], 0.0, 0
    for number, at in enumerate(range(0, count, PART)):
        part = region[at : at + PART], labels[at : at + PART]
        for certify in (number % 2 == 1, number % 2 == 0) if compare else (True,):
            place = folder / f"{at:05d}" if certify else None
            with writing() as written:
                took, results = seconds(partial(sb.verify, net, *part, timeout=timeout, certificates=place))
            spent[certify] += took
            wrote += written[0]
            decided += sum(r.verdict.status.decided for r in results) if certify else 0
    found = entries(folder)
    sizes, kinds, rejected, checking = list[int](), dict[str, int](), 0, 0.0
    for entry in found:
        certificate, network = entry.read()
        sizes.append(len(certificate))
        header = opened(certificate)[0]
        by = "+".join(sorted({proof["by"] for proof in header.get("proofs", ())})) or "counterexample"
        kinds[by] = kinds.get(by, 0) + 1
        took, refused = seconds(partial(rejects, certificate, network))
        rejected, checking = rejected + refused, checking + took
    archive = folder.with_suffix(".zip")
    pack_archive(folder, archive)
    why = Counter(why for place in folder.iterdir() if place.is_dir() for why in missing(place).values())
    return {
        "network": name, "eps": eps, "images": count, "seconds_per_image_and_stage": timeout, "decided": decided,
        "certificates": len(found), "rejected": rejected, "without": why.total(), "why_without": dict(why),
        "kinds": kinds, "median_bytes": statistics.median(sizes), "largest_bytes": max(sizes), "bytes": sum(sizes),
        "archive_bytes": archive.stat().st_size,
        "without_certificates_s": round(spent[False], 2) if compare else None,
        "verifying_s": round(spent[True] - wrote, 2), "writing_s": round(wrote, 2),
        "checking_s": round(checking, 2),
    }  # fmt: skip


def table(folder: Path) -> str:
    """The rows of all files, as Markdown."""
    heads = (
        "network", "eps", "images", "certificates", "rejected", "without", "median", "largest", "archive",
        "verifying", "writing", "checking",
    )  # fmt: skip
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for path in sorted(folder.glob("*.json")):
        row = json.loads(path.read_text())
        cells = (
            row["network"], row["eps"], f"{row['images']:,}", f"{row['certificates']:,}",
            row["rejected"], row["without"], f"{row['median_bytes'] / 1e3:.1f} KB",
            f"{row['largest_bytes'] / 1e3:.1f} KB", f"{row['archive_bytes'] / 1e6:.1f} MB",
            f"{row['verifying_s']:.1f} s", f"{100 * row['writing_s'] / row['verifying_s']:.1f} %",
            f"{row['checking_s']:.1f} s",
        )  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("asked", nargs="*", metavar="NETWORK:EPS")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--timeout", type=float, default=10, help="seconds per image and stage")
    parser.add_argument("--compare", action="store_true", help="verify without certificates, too")
    parser.add_argument("--keep", type=Path, help="keep the certificates in KEEP/NETWORK-EPS")
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    for each in given.asked:
        name, eps = each.split(":")
        stem = f"{name}-{eps.replace('/', '-')}"
        with tempfile.TemporaryDirectory() as scratch:
            row = measure(name, eps, given.images, given.timeout, (given.keep or Path(scratch)) / stem, given.compare)
        options = f"--images {given.images} --timeout {given.timeout:g}" + " --compare" * given.compare
        command = f"python -m benchmarks.certificates results/certificates {each} {options}"
        record = {**describe_environment(), "command": command, **row}
        (given.out / f"{stem}.json").write_text(json.dumps(record, indent=1) + "\n")
        print(each, row, flush=True)
    print(table(given.out))


if __name__ == "__main__":
    main()

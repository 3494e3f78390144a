"""Summaries of verification runs as small JSON files and as the table of docs/verification.md.

python -m benchmarks.verification_results results/verification STORE... --commit COMMIT --command "surebound verify ..."
python -m benchmarks.verification_results results/verification
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from surebound.verdict import Status
from surebound.verify import Results, Store

PACKAGES = ("surebound", "torch", "numpy", "scipy", "highspy")
COLUMNS = (
    "network", "eps", "clean", "PGD", "falsified", "exact (verified)", "float-sound", "CROWN", "IBP", "open", "s",
)  # fmt: skip


def row(results: Results) -> dict[str, Any]:
    """What one radius came to. Errors are shares of all examples; what is not proved counts as an error."""
    summary = results.summary()
    robust = Counter(r.verdict.stage for r in results if r.verdict.status is Status.ROBUST)
    by_interval, by_crown = robust["interval"], robust["interval"] + robust["crown"]
    open_ones = sum(n for status, n in summary.statuses if status in ("unknown", "timeout", "error"))
    found: dict[str, Any] = {
        "eps": str(summary.eps),
        "images": summary.total,
        "clean_error": summary.clean_error,
        "pgd_error": summary.pgd_error,
        "falsified_error": summary.falsified_error,
        "verified_error": summary.verified_error,
        "float_sound_verified_error": summary.float_sound_error,
        "crown_verified_error": (summary.total - by_crown) / summary.total,
        "ibp_verified_error": (summary.total - by_interval) / summary.total,
        "open": open_ones,
        "statuses": dict(summary.statuses),
        "stages": [list(each) for each in summary.stages],
        "stage_seconds": {stage: round(spent, 1) for stage, spent in summary.stage_seconds},
        "seconds": round(summary.seconds, 1),
    }
    if not found["pgd_error"] <= found["verified_error"] <= found["ibp_verified_error"]:
        raise SystemExit(f"{results.path}: the errors are not in order: {found}")
    return found


def write(store: Path, out: Path, command: str, commit: str) -> None:
    """One JSON file per radius of a store."""
    with Store.read(store / "results.db" if store.is_dir() else store) as reader:
        codes, results = reader.codes(), Results(tuple(reader.records()), store)
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    for radius in results.radii:
        found = row(results.at(radius))
        head = {"command": command, "commit": commit, "code": ", ".join(codes), "versions": versions}
        machine = {"python": platform.python_version(), "machine": platform.machine()}
        path = out / f"{store.name}.json"
        out.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**head, **machine, **found}, indent=1) + "\n")


def table(out: Path) -> str:
    """The table of all files, as Markdown."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
    for path in sorted(out.glob("*.json")):
        found = json.loads(path.read_text())
        name = path.stem.rsplit("-", 1)[0]
        errors = (
            "clean",
            "pgd",
            "falsified",
            "verified",
            "float_sound_verified",
            "crown_verified",
            "ibp_verified",
        )
        cells = [f"{100 * found[f'{each}_error']:.2f} %" for each in errors]
        lines.append("| " + " | ".join([name, found["eps"], *cells, str(found["open"]), str(found["seconds"])]) + " |")
    return "\n".join(lines)


def main() -> None:
    """Write files for stores, if any are given; print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("stores", type=Path, nargs="*")
    parser.add_argument("--command", default="")
    parser.add_argument("--commit", default="")
    given = parser.parse_args()
    for store in given.stores:
        write(store, given.out, given.command, given.commit)
    sys.stdout.write(table(given.out) + "\n")


if __name__ == "__main__":
    main()

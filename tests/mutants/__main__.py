"""Put small faults into a copy of the code, one at a time, and count how many the tests notice.

    python -m tests.mutants --jobs 2
    python -m tests.mutants --only kernels --out mutants.json --resume

A fault is noticed if the tests that are named with it fail, or do not end. Exit code 1 if fewer than 97 % are. It is
unclear whether it is where they fail without it, too.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import queue
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.mutants.asked import answer
from tests.mutants.fault import ROOT, Mutant
from tests.mutants.table import MUTANTS

WANTED = 0.97
SECONDS = 900.0  # for the tests of one fault
COPIED = ("surebound", "tests", "benchmarks", "docs", "examples", "pyproject.toml", "README.md", "CHANGELOG.md")


def copy(folder: Path) -> Path:
    """Copy what tests need."""
    for name in COPIED:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif path.exists():
            shutil.copy(path, folder / name)
    return folder


def outcome(mutant: Mutant, folder: Path, seconds: float) -> tuple[str, float]:
    """Run the tests of one fault: "caught", "survived", "late" or "unclear", and how long it took.

    The test that noticed it is run again without the fault: one that fails then too would notice anything.
    """
    path, began = folder / "surebound" / mutant.file, time.monotonic()
    path.write_text(mutant.applied(), encoding="utf-8")
    try:
        what, test = answer(folder, mutant.tests, seconds)
    finally:
        shutil.copy(ROOT / "surebound" / mutant.file, path)
    if test:
        again, _ = answer(folder, (test,), seconds)
        if again != "passed":
            print(f"without the fault, {test} {again} too", flush=True)
            what = "unclear"
    return {"passed": "survived", "failed": "caught"}.get(what, what), time.monotonic() - began


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only faults whose file or text contains this")
    parser.add_argument("--jobs", type=int, default=1, help="faults at a time, each in a copy of its own")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time for the tests of one fault")
    parser.add_argument("--out", type=Path, help="write what happened to each as JSON")
    parser.add_argument("--resume", action="store_true", help="pass over the faults that are in --out already")
    given = parser.parse_args()
    results: dict[str, str] = {}
    if given.resume and given.out is not None and given.out.is_file():
        results = json.loads(given.out.read_text())
    named = [each for each in MUTANTS if given.only in f"{each.file} {each.old}"]
    chosen = [each for each in named if each.name not in results]
    of = len(results) + len(chosen)
    with tempfile.TemporaryDirectory() as name, concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        folders: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for job in range(given.jobs):
            folders.put(copy(Path(name) / str(job)))

        def run(mutant: Mutant) -> tuple[Mutant, str, float]:
            folder = folders.get()
            try:
                return mutant, *outcome(mutant, folder, given.seconds)
            finally:
                folders.put(folder)

        for future in concurrent.futures.as_completed([pool.submit(run, each) for each in chosen]):
            mutant, what, seconds = future.result()
            results[mutant.name] = what
            print(f"{len(results)}/{of} {what:8} {seconds:5.0f} s  {mutant.name}", flush=True)
            if given.out is not None:
                given.out.write_text(json.dumps(results, indent=1))
    noticed = sum(what in ("caught", "late") for what in results.values())
    print(f"{noticed} of {len(results)} noticed ({noticed / max(1, len(results)):.1%}; {WANTED:.0%} are wanted)")
    for each, what in results.items():
        if what != "caught":
            print(f"  {what}: {each}")
    return 0 if noticed >= WANTED * len(results) else 1


if __name__ == "__main__":
    sys.exit(main())

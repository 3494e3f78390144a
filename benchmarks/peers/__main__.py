"""`python -m benchmarks.peers setup|pick|export|run|table`; see PERFORMANCE.md."""

from __future__ import annotations

import argparse
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("command", choices=("setup", "pick", "export", "run", "table"))
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs/peers"), help="environments and files")
    parser.add_argument("--data-dir", type=Path, help="where datasets are kept (default: SUREBOUND_DATA)")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds per question, after start-up")
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: for a machine that is busy with other work",
    )
    parser.add_argument("--part", default="0/1", help="K/N: every N-th question from the K-th, for N runs at once")
    parser.add_argument("--results", type=Path, default=Path("results/peers/results.jsonl"))
    given = parser.parse_args()
    from benchmarks.peers import environments, instances, race, table

    if given.command == "setup":
        environments.setup(given.folder)
    elif given.command == "pick":
        instances.pick(given.data_dir)
    elif given.command == "export":
        instances.export(given.folder / "instances", given.data_dir)
    elif given.command == "run":
        race.run(given.folder, given.results, given.timeout, given.clock, given.part)
    else:
        print(table.table(given.results))


if __name__ == "__main__":
    main()

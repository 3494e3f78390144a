"""Compare two files written by `make bench`. `python -m benchmarks.compare old.json new.json`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.common import Record


@dataclass(frozen=True)
class Change:
    """One number in both files."""

    old: Record
    new: Record

    @property
    def percent(self) -> float:
        """How much larger the new value is; every unit of ours is better when smaller."""
        return 100 * (self.new.value / self.old.value - 1) if self.old.value else float("inf")

    @property
    def clear(self) -> bool:
        """Is the difference larger than both spreads together?"""
        return abs(self.new.value - self.old.value) > self.old.spread + self.new.spread


def read(path: Path) -> dict[str, Record]:
    """The records of a file, by name."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        return {row["name"]: Record(**row) for row in rows}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise SystemExit(f"{path} is not a file written by `make bench --out`: {error}") from None


def changes(old: dict[str, Record], new: dict[str, Record]) -> list[Change]:
    """What both files measured, in the old file's order."""
    return [Change(old[name], new[name]) for name in old if name in new]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--fail-above", type=float, metavar="PERCENT", help="exit code 1 if a ratio got clearly worse")
    options = parser.parse_args(arguments)
    old, new = read(options.old), read(options.new)

    shown = Table(box=None, pad_edge=False)
    for column in ("benchmark", "old", "new", "", "change", ""):
        shown.add_column(column, justify="left" if column in ("benchmark", "") else "right", no_wrap=True)
    both = changes(old, new)
    for change in both:
        verdict = ("[red]worse[/red]" if change.percent > 0 else "[green]better[/green]") if change.clear else ""
        shown.add_row(
            change.old.name, f"{change.old.value:.4g}", f"{change.new.value:.4g}", change.old.unit,
            f"{change.percent:+.1f} %", verdict,
        )  # fmt: skip
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(shown)
    for names, where in ((old.keys() - new.keys(), options.old), (new.keys() - old.keys(), options.new)):
        if names:
            console.print(f"only in {where}: {', '.join(sorted(names))}", soft_wrap=True)
    if options.fail_above is None:
        return 0
    # Times depend on the machine's other work; ratios and sizes do not.
    return int(any(c.clear and c.percent > options.fail_above and c.old.unit != "ms" for c in both))


if __name__ == "__main__":
    sys.exit(main())

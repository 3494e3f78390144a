"""Run the benchmark files, print one table, write JSON. `python -m benchmarks.run bounds --seconds 2`."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.common import Benchmark, Budget, Record, versions

HERE = Path(__file__).parent


def available() -> list[str]:
    """The names of the benchmark files: `bench_bounds.py` is `bounds`."""
    return sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))


def load(name: str) -> list[Benchmark]:
    """The benchmarks of one file."""
    return list(importlib.import_module(f"benchmarks.bench_{name}").benchmarks())


def row(record: Record) -> tuple[str, str, str, str, str]:
    """Name, value, unit, spread and limit as text."""
    limit = "" if record.limit is None else f"<= {record.limit:g}"
    limit += "  [red]over[/red]" if record.over else ""
    return record.name, f"{record.value:.4g}", record.unit, f"± {record.spread:.2g}", limit


def table(records: Sequence[Record], title: str) -> Table:
    """All results in one table."""
    shown = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in ("benchmark", "value", "", "spread", "limit"):
        shown.add_column(column, justify="right" if column in ("value", "spread") else "left", no_wrap=True)
    for record in records:
        shown.add_row(*row(record))
    return shown


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"which files: {', '.join(available())} (default: all)")
    parser.add_argument("--out", type=Path, help="write the records to this JSON file")
    parser.add_argument("--threads", type=int, default=2, help="threads PyTorch may use (default: 2)")
    parser.add_argument("--seconds", type=float, default=4.0, help="time per race (default: 4)")
    parser.add_argument("--strict", action="store_true", help="exit code 1 when a number is over its limit")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.names) - set(available()))
    if unknown:
        parser.error(f"no benchmark file for {', '.join(unknown)}; there are: {', '.join(available())}")

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    console = Console(stderr=True)
    facts = versions(options.threads)
    records: list[Record] = []
    for name in options.names or available():
        for benchmark in load(name):
            with console.status(f"{name}: {getattr(benchmark, 'name', '')}"):
                found = benchmark.measure(Budget(seconds=options.seconds))
                records += [replace(record, versions=facts) for record in found]
    title = "torch {torch}, {threads} threads, {processor}, commit {commit}".format_map(facts)
    Console(width=None if sys.stdout.isatty() else 200).print(table(records, title))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps([r.as_json() for r in records], indent=1) + "\n", encoding="utf-8")
        console.print(f"written: {options.out}")
    return int(options.strict and any(record.over for record in records))


if __name__ == "__main__":
    sys.exit(main())

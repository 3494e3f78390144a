"""The table of PERFORMANCE.md, from the lines of a run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.race import TRIVIAL, Line, read

_LIMIT = 60.0


def table(results: Path) -> str:
    """Per radius and tool: decided, wrong, and seconds without and with start-up; undecided ones count the limit."""
    lines = [line for line in read(results) if line.net != TRIVIAL]
    broken = {(x.net, x.eps, x.index) for x in lines if x.check == "confirmed"}
    rows = [
        "| eps | tool | questions | decided | wrong | median s | total s | total s with start-up |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    everybody = list(dict.fromkeys((line.tool, line.version) for line in lines))
    asked = [{(x.net, x.eps, x.index) for x in lines if x.tool == tool} for tool, _ in everybody]
    common = set.intersection(*asked) if asked else set()
    for eps in sorted({line.eps for line in lines}):
        for tool, version in sorted(everybody):
            mine = [
                x for x in lines if (x.tool, x.version, x.eps) == (tool, version, eps)
                and (x.net, x.eps, x.index) in common
            ]  # fmt: skip
            if mine:
                rows.append(_row(eps, f"{tool} {version}", mine, broken))
    return "\n".join(rows)


def _row(eps: str, tool: str, lines: Sequence[Line], broken: set[tuple[str, str, int]]) -> str:
    decided = [line for line in lines if line.verdict in ("sat", "unsat")]
    wrong = sum(
        line.check.startswith("wrong") or (line.verdict == "unsat" and (line.net, line.eps, line.index) in broken)
        for line in decided
    )
    # Start-up is measured apart: an answer at once can come out faster than it.
    net = [max(0.0, line.seconds - line.startup) if line in decided else _LIMIT for line in lines]
    start = sum(line.startup for line in lines)
    return (
        f"| {eps} | {tool} | {len(lines)} | {len(decided)} | {wrong} | {statistics.median(net):.1f} "
        f"| {sum(net):.0f} | {sum(net) + start:.0f} |"
    )

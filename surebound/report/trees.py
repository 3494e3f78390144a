"""Trees of proofs as pictures: splits on the way down, proved leaves at the bottom."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from surebound.certificates.explain import ProofTree
from surebound.errors import InputError
from surebound.report.figure import INK, MUTED, PNG_DPI, PROVED

#: Trees with more leaves are drawn without names.
NAMED = 48

Point = tuple[float, float]


def layout(walk: Sequence[int]) -> tuple[list[tuple[Point, int]], list[tuple[Point, Point, int]]]:
    """Place a tree: nodes (x, depth) with their numbers in the order of the walk, and edges with the side, -1 or 1.

    Leaves stand side by side, a split above the middle of its halves.

    >>> layout([4, -1, -1])[0]
    [((0.5, 0.0), 4), ((0.0, 1.0), -1), ((1.0, 1.0), -1)]
    """
    nodes = [((0.0, 0.0), number) for number in walk]
    halves: dict[int, list[int]] = {}
    open_ones, leaves = list[tuple[int, int]](), 0  # splits that lack a half: (place, depth)
    for place, number in enumerate(walk):
        depth = 0
        if open_ones:
            above, over = open_ones[-1]
            depth = over + 1
            halves[above].append(place)
            if len(halves[above]) == 2:
                open_ones.pop()
        nodes[place] = ((float(leaves), float(depth)), number)
        if number == -1:
            leaves += 1
        else:
            halves[place] = []
            open_ones.append((place, depth))
    edges = []
    for place in sorted(halves, reverse=True):  # halves stand behind their split in the walk
        low, high = halves[place]
        middle = (nodes[low][0][0] + nodes[high][0][0]) / 2
        nodes[place] = ((middle, nodes[place][0][1]), nodes[place][1])
        edges += [(place, low, -1), (place, high, 1)]
    return nodes, [(nodes[a][0], nodes[b][0], side) for a, b, side in edges]


def draw_trees(found: Sequence[ProofTree], path: Path) -> None:
    """Draw the trees of a certificate below each other, to a file whose name says the format."""
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    formats = Canvas().canvas.get_supported_filetypes()
    if path.suffix[1:] not in formats:
        raise InputError(f"{path}: a picture is written as .svg, .png or .pdf; name one of these")
    placed = [layout(tree.walk) for tree in found]
    deepest = [max(at[1] for at, _ in nodes) + 1.5 for nodes, _ in placed]
    widest = max(sum(number == -1 for _, number in nodes) for nodes, _ in placed)
    with matplotlib.rc_context({"svg.hashsalt": "surebound", "svg.fonttype": "none"}):
        canvas = Canvas(figsize=(min(40.0, max(5.0, 0.7 * widest)), min(60.0, 0.6 * sum(deepest) + 0.5)))
        panels = canvas.subplots(len(found), 1, squeeze=False, height_ratios=deepest)
        for axes, tree, (nodes, edges) in zip(panels[:, 0], found, placed, strict=True):
            axes.set_axis_off()
            axes.invert_yaxis()
            leaves = sum(number == -1 for _, number in nodes)
            axes.set_title(f"{tree.title}: {leaves} leaves", loc="left", fontsize=9, color=INK)
            for (x, y), (u, v), side in edges:
                axes.plot([x, u], [y, v], color=MUTED, lw=0.8, ls="-" if side > 0 else "--", zorder=1)
            for (x, y), number in nodes:
                axes.plot(x, y, "o", ms=4, color=PROVED if number == -1 else INK, zorder=2)
                if number >= 0 and leaves <= NAMED:
                    axes.annotate(tree.names[number], (x, y), (4, 3), textcoords="offset points", fontsize=7, color=INK)
        canvas.text(0.01, 0.005, "dashed: <= 0, or below the cut; solid: >= 0, or above", fontsize=7, color=MUTED)
        metadata = {"Date": None} if path.suffix == ".svg" else {}
        canvas.savefig(path, dpi=PNG_DPI, metadata=metadata, bbox_inches="tight")

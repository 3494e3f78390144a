"""A certificate in words: its claim, its proofs, how close they are, and the tree of splits as a drawing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from surebound.certificates.files import opened
from surebound.checker import Rejected, check

#: Trees with more leaves are not drawn.
MOST_LEAVES = 64

_BY = {
    "interval": "interval bounds, the last layers merged with the rows",
    "crown-ibp": "linear bounds of the outputs, interval bounds inside",
    "crown": "linear bounds of the outputs and of every ReLU input without a sign",
    "splits": "branch and bound on the signs of ReLU inputs",
    "boxes": "branch and bound on the input box",
}
_MODES = {
    "deployed": "every float32 execution, whatever the order of summation",
    "real": "the network over the real numbers",
}


@dataclass(frozen=True)
class ProofTree:
    """One case's tree, as a walk: a number is a split, the lower half first; -1 is a leaf."""

    title: str
    walk: tuple[int, ...]
    names: tuple[str, ...]  # of what is split, by number


def trees(certificate: bytes) -> list[ProofTree]:
    """Return the trees of a certificate's proofs, of splits of ReLU inputs or of the input box."""
    header, arrays = opened(certificate)
    found = []
    for proof in header.get("proofs", ()):
        if "tree" in proof:
            walk = tuple(arrays[proof["tree"]].tolist())
            case = proof["cases"][0]
            title = f"class {case + (case >= header['label'])}" if "label" in header else f"case {case}"
            if proof["by"] == "splits":
                names = tuple(f"ReLU {layer}:{entry}" for layer, entry in arrays[proof["units"]].tolist())
            else:
                names = tuple(f"input {axis}" for axis in range(max(walk) + 1))
            found.append(ProofTree(title, walk, names))
    return found


def kinds(certificate: bytes) -> str:
    """Return what a certificate claims and by which kinds of proof."""
    header, _ = opened(certificate)
    return " ".join([str(header["claim"]), *sorted({str(proof["by"]) for proof in header.get("proofs", ())})])


def explained(certificate: bytes, network: bytes) -> Iterator[str]:
    """Yield lines about a certificate; whether it is valid comes last, from the checker itself."""
    header, arrays = opened(certificate)
    region = header["region"]
    shape = "x".join(str(n) for n in arrays["center" if region["kind"] == "ball" else "lower"].shape)
    clip = f", cut to [{', '.join(region['clip'])}]" if region.get("clip") else ""
    where = f"within {region['eps']} of an image {shape}{clip}" if region["kind"] == "ball" else f"of a box {shape}"
    asked = (
        f"the label {header['label']}"
        if "label" in header
        else _counted(len(arrays["c"]), "case of rows", "cases of rows")
    )
    if header["claim"] == "falsified":
        yield f"Claim: {asked} does not hold for every input {where}: there is a counterexample."
    else:
        holds = "stays the largest output" if "label" in header else "cannot hold"
        yield f"Claim: {asked} {holds} for every input {where}."
        yield f"It is about {_MODES.get(header['mode'], header['mode'])}."
        for proof in header["proofs"]:
            yield from _proof(proof, arrays, header)
    try:
        _, worst, leaves = check(certificate, network)
    except Rejected as error:
        yield f"The checker rejects it: {error}"
        return
    closeness = f"the worst bound is {worst:.4g}" if header["claim"] == "robust" else f"by up to {worst:.4g}"
    yield f"The checker confirms it: {closeness}" + (
        f", {_counted(leaves, 'bound', 'bounds')} in all." if leaves else "."
    )


def _proof(proof: dict[str, Any], arrays: dict[str, Any], header: dict[str, Any]) -> Iterator[str]:
    cases = [case + ("label" in header and case >= header["label"]) for case in proof["cases"]]
    what = "class" if "label" in header else "case"
    yield f"  {what} {', '.join(map(str, cases))}: {_BY.get(proof['by'], proof['by'])}"
    if proof["by"] == "boxes":
        yield f"    {_counted(arrays[proof['tree']].tolist().count(-1), 'box', 'boxes')}"
    if proof["by"] != "splits":
        return
    tree, units = arrays[proof["tree"]].tolist(), arrays[proof["units"]].tolist()
    leaves = tree.count(-1)
    split = Counter(unit for unit in tree if unit >= 0)
    signless = _counted(len(units), "ReLU input", "ReLU inputs")
    yield f"    {_counted(leaves, 'leaf', 'leaves')}, {signless} without a sign, {len(split)} of them split"
    if 1 < leaves <= MOST_LEAVES:
        yield from _drawn(iter(tree), units, "    ", "", "")


def _counted(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def _drawn(tree: Iterator[int], units: list[list[int]], indent: str, mark: str, sign: str) -> Iterator[str]:
    """Draw a tree in the order of its walk: negative halves first."""
    unit = next(tree)
    where = "proved" if unit == -1 else f"split ReLU {units[unit][0]}, entry {units[unit][1]}"
    yield f"{indent}{mark}{sign}{where}"
    if unit == -1:
        return
    deeper = indent + {"": "", "├─ ": "│  ", "└─ ": "   "}[mark]
    yield from _drawn(tree, units, deeper, "├─ ", "<= 0: ")
    yield from _drawn(tree, units, deeper, "└─ ", ">= 0: ")

"""A certificate for the page: what it claims, whether the checker confirms it, and its trees of sub-problems."""

from __future__ import annotations

import base64
from collections import Counter
from pathlib import Path
from typing import Any

from surebound.certificates.directory import NETWORK
from surebound.certificates.files import opened
from surebound.certificates.packs import Held
from surebound.checker import Rejected, check
from surebound.errors import InputError

#: Nodes of a tree that are drawn: more would be slivers.
MOST_NODES = 4001
#: Bytes of a certificate that a page of one file carries.
MOST_BYTES = 65_536
MOST_NEURONS = 12


def certificate_json(held: Held, *, attach: bool = False) -> dict[str, Any]:
    """Return what a certificate says, for the page; ``attach``: with the file itself, if it is small."""
    content, network = held.read_bytes(), held.file.parent / NETWORK
    found: dict[str, Any] = {"file": held.name, "bytes": len(content), **_state(content, network)}
    try:
        header, arrays = opened(content)
        found |= {"claim": header["claim"], "mode": header["mode"]}
        label = header.get("label")
        found["proofs"] = [_proof(proof, arrays, label) for proof in header.get("proofs", ())]
    except (InputError, KeyError, ValueError, TypeError):  # of a kind that this page does not know: the checker's word
        found["proofs"] = []
    if attach and len(content) <= MOST_BYTES:
        found["content"] = base64.b64encode(content).decode("ascii")
    return found


def _state(content: bytes, network: Path) -> dict[str, Any]:
    """Ask the checker."""
    if not network.is_file():
        return {"state": "unchecked", "said": f"{NETWORK}, the network it is about, is missing"}
    try:
        _, worst, leaves = check(content, network.read_bytes())
    except Rejected as error:
        return {"state": "rejected", "said": str(error)}
    return {"state": "valid", "worst": float(f"{worst:.4g}"), "leaves": leaves}


def _proof(proof: dict[str, Any], arrays: dict[str, Any], label: int | None) -> dict[str, Any]:
    """Return one proof: the classes that it keeps from winning, how, and its tree as a walk (-1 is a leaf)."""
    classes = [case + (label is not None and case >= label) for case in proof["cases"]]
    found: dict[str, Any] = {"by": proof["by"], "classes": classes}
    if proof["by"] not in ("splits", "boxes"):
        return found
    walk = arrays[proof["tree"]].tolist()
    units = arrays[proof["units"]].tolist() if proof["by"] == "splits" else None
    split = Counter(unit for unit in walk if unit >= 0)
    named = [[*(units[unit] if units is not None else [unit]), count] for unit, count in split.most_common()]
    found |= {"leaves": walk.count(-1), "neurons": named[:MOST_NEURONS], "split": len(split)}
    if units is not None:
        found["unstable"] = len(units)
    if len(walk) <= MOST_NODES:
        found["tree"] = walk
        found["units"] = [units[unit] if units is not None else [unit] for unit in range(max(walk) + 1)]
    return found

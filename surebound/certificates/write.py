"""Certificates from what searches kept: one file for each question, beside the network that it is about."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surebound.certificates.evidence import Evidences, Leaves, Parts
from surebound.certificates.files import pack, pack_network
from surebound.certificates.trees import box_tree, split_tree
from surebound.checker import Rejected, check
from surebound.errors import BoundError
from surebound.graph import Program
from surebound.graph.flat import Flat, flatten

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Claims:
    """Writes certificates about one network."""

    flat: Flat
    network: bytes

    @classmethod
    def about(cls, program: Program) -> Claims:
        """Prepare certificates about a program; GraphError if the checker does not know one of its operators."""
        flat = flatten(program)
        return cls(flat, pack_network(flat))

    @property
    def digest(self) -> str:
        """The name by which certificates know the network."""
        return hashlib.sha256(self.network).hexdigest()

    def robust(
        self, question: Mapping[str, Any], arrays: Arrays, mode: str, evidence: Evidences, whole: tuple[Any, Any]
    ) -> bytes | None:
        """Return the certificate of a proof, or None if what it rests on is not for a checker.

        ``mode``: "deployed" or "real"; ``question``: its region and the label, if one is asked about, as the format has
        them, and ``arrays`` theirs; ``whole``: the ends (inputs,) of the box that searches by boxes began with.
        """
        if any(not each.by for _, each in evidence):
            return None
        header = self._header(question, "robust", mode)
        for slopes in ("|u1", "<f8"):
            known = dict(arrays)
            try:
                proofs = self._proofs(evidence, known, whole, np.dtype(slopes))
                found = pack({**header, "proofs": proofs}, known)
                if not any(each.leaves for _, each in evidence):
                    return found
                check(found, self.network)  # a search took far longer than this
            except (BoundError, Rejected):
                continue
            return found
        return None

    def falsified(self, question: Mapping[str, Any], arrays: Arrays, witness: NDArray[np.float32]) -> bytes:
        """Return the certificate of a counterexample."""
        return pack(self._header(question, "falsified", "deployed"), {**arrays, "witness": witness})

    def _header(self, question: Mapping[str, Any], claim: str, mode: str) -> dict[str, Any]:
        return {"claim": claim, "network": self.digest, "mode": mode, **question}

    def _proofs(
        self, evidence: Evidences, arrays: Arrays, whole: tuple[Any, Any], slopes: np.dtype[Any]
    ) -> list[dict[str, Any]]:
        alike: dict[str, list[int]] = {}
        proofs = []
        for case, each in evidence:
            if each.leaves is not None:
                proofs.append(self._splits(case, each.leaves, arrays, slopes))
            elif each.parts is not None:
                proofs.append(self._boxes(case, each.parts, arrays, whole))
            else:
                alike.setdefault(each.by, []).append(case)
        return [*({"by": by, "cases": cases} for by, cases in alike.items()), *proofs]

    def _splits(self, case: int, leaves: Leaves, arrays: Arrays, dtype: np.dtype[Any]) -> dict[str, Any]:
        walk, order = split_tree(leaves.signs)
        relu = {name: i for i, name in enumerate(self.flat.relus)}
        units = [np.stack([np.full(len(place), relu[name]), place], 1) for name, place in leaves.layers]
        slopes, signs = leaves.slopes[order], leaves.signs[order]
        slopes = np.where(signs != 0, 0.0, slopes)
        path = _along(walk)  # the splits of each leaf, from the root
        betas = [leaves.betas[order[i], unit].clip(min=0) for i, units_ in enumerate(path) for unit in units_]
        given = leaves.through[order]
        by_program = np.flatnonzero(~np.isnan(given).all(1)) if given.size else np.zeros(0, int)
        named = {
            "units": np.concatenate(units).astype("<i4") if units else np.zeros((0, 2), "<i4"),
            "tree": np.array(walk, "<i4"),
            "slopes": np.round(255 * slopes).astype("|u1") if dtype.kind == "u" else slopes.astype("<f8"),
            "betas": np.array(betas, "<f4" if dtype.kind == "u" else "<f8"),
        }
        if len(by_program):
            named |= {"leaves": by_program.astype("<i4"), "through": given[by_program].astype("<f8")}
        if leaves.weights.shape[1] > 1:
            named["weights"] = leaves.weights[order].astype("<f8")
        return {"by": "splits", "cases": [case], **_stored(case, named, arrays)}

    def _boxes(self, case: int, parts: Parts, arrays: Arrays, whole: tuple[Any, Any]) -> dict[str, Any]:
        walk, cuts, order = box_tree(parts.lower, parts.upper, whole)
        named: Arrays = {"tree": np.array(walk, "<i4"), "cuts": np.array(cuts, "<f8")}
        if parts.weights.shape[1] > 1:
            named["weights"] = parts.weights[order].astype("<f8")
        return {"by": "boxes", "cases": [case], **_stored(case, named, arrays)}


def _stored(case: int, named: Arrays, arrays: Arrays) -> dict[str, str]:
    """Store the arrays of one case's proof, and return how the proof names them."""
    names = {name: f"{name}{case}" for name in named}
    arrays.update({names[name]: value for name, value in named.items()})
    return names


def _along(walk: list[int]) -> list[list[int]]:
    """Return the units that are split above every leaf of a walk, from the root."""
    found, stack = list[list[int]](), [list[int]()]
    for unit in walk:
        path = stack.pop()
        if unit == -1:
            found.append(path)
        else:
            stack += [[*path, unit], [*path, unit]]
    return found

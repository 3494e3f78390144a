"""Certificates from what searches kept: one file for each question, beside the network that it is about."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surebound.certificates.evidence import Evidences, InnerSlopes, Leaves, Parts
from surebound.certificates.files import network_digest, pack, pack_network
from surebound.certificates.points import point_bounds, readable
from surebound.certificates.trees import box_tree, split_tree
from surebound.checker import Rejected, check
from surebound.errors import BoundError, GraphError
from surebound.graph import Program
from surebound.graph.flat import Flat, flatten

Arrays = dict[str, NDArray[Any]]
Outputs = tuple[NDArray[np.float64], NDArray[np.float64]]  # from below and above, (K,)
Ends = Callable[[], tuple[NDArray[np.float64], NDArray[np.float64]]]


class Uncertified(Exception):
    """A verdict has no certificate; the message says why, in the same words for the same reason."""


@dataclass(frozen=True, eq=False)
class Claims:
    """Writes certificates about one network."""

    flat: Flat
    network: bytes

    @classmethod
    def about(cls, program: Program) -> Claims:
        """Prepare certificates about a program; GraphError if the checker does not know one of its operators."""
        flat = flatten(program)
        network = pack_network(flat)
        try:
            readable(network)  # before a search: nobody could check what it finds
        except Rejected as error:
            raise GraphError(f"the checker refuses the network: {error}") from None
        return cls(flat, network)

    @functools.cached_property
    def digest(self) -> str:
        """The name by which certificates know the network."""
        return network_digest(self.network)

    def robust(self, question: Mapping[str, Any], arrays: Arrays, mode: str, evidence: Evidences, whole: Ends) -> bytes:
        """Return the certificate of a proof; Uncertified if what it rests on is not for a checker.

        ``mode``: "deployed" or "real"; ``question``: its region and the label, if one is asked about, as the format has
        them, and ``arrays`` theirs; ``whole``: gives the ends (inputs,) of the box that searches by boxes began with.
        """
        for _, each in evidence:
            if not each.by:
                raise Uncertified(each.why or "what the search kept of it is not a proof")
        failed = ""
        header = self._header(question, "robust", mode)
        for slopes in ("|u1", "<f8"):
            known = dict(arrays)
            try:
                proofs = self._proofs(evidence, known, whole, np.dtype(slopes))
                found = pack({**header, "proofs": proofs}, known)
                if any(each.leaves or each.parts for _, each in evidence):
                    check(found, self.network)  # multipliers are rounded: is it still a proof?
                return found
            except BoundError as error:
                raise Uncertified(str(error)) from None
            except Rejected as error:
                failed = str(error)
        kinds = ", ".join(sorted({each.by for _, each in evidence}))
        reason = "the checker's bounds are not below 0" if "not below 0" in failed else failed
        raise Uncertified(f"proved by {kinds}, but {reason}")

    def outputs(self, points: NDArray[np.float32]) -> list[Outputs]:
        """Return what the outputs (K,) are between, in every float32 execution, at each of the points (N, ...)."""
        return list(zip(*point_bounds(self.network, points), strict=True)) if len(points) else []

    def falsified(
        self, question: Mapping[str, Any], arrays: Arrays, witness: NDArray[np.float32], outputs: Outputs
    ) -> bytes:
        """Return the certificate of a counterexample; Uncertified if it is one for some executions only."""
        found = pack(self._header(question, "falsified", "deployed"), {**arrays, "witness": witness})
        low, high = outputs
        if "label" in question:
            gap = np.delete(low, question["label"]).max() - high[question["label"]]
            # By more than float64 could lose, which is less than 2^-22 of float32: the check would say so too.
            if gap > 2.0**-20 * (high - low).max():
                return found
        try:
            check(found, self.network)
        except Rejected:
            raise Uncertified("the counterexample is one within rounding only") from None
        return found

    def _header(self, question: Mapping[str, Any], claim: str, mode: str) -> dict[str, Any]:
        return {"claim": claim, "network": self.digest, "mode": mode, **question}

    def _proofs(self, evidence: Evidences, arrays: Arrays, whole: Ends, slopes: np.dtype[Any]) -> list[dict[str, Any]]:
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
        proof = {"by": "splits", "cases": [case], **_stored(case, named, arrays)}
        return {**proof, "inner": self._inner(leaves, dtype, arrays)} if leaves.inner else proof

    def _inner(self, leaves: Leaves, dtype: np.dtype[Any], arrays: Arrays) -> list[list[Any]]:
        """Store slopes of bounds inside the network: by the ReLU that reads the value, over the units of the leaves."""
        column = {
            (name, int(at)): i
            for i, (name, at) in enumerate((name, at) for name, place in leaves.layers for at in place)
        }
        found = list[list[Any]]()
        for value in dict.fromkeys(each.value for each in leaves.inner):
            relu = self.flat.readers.get(self.flat.values.get(value, -1))
            if relu is None:
                continue
            parts = [each for each in leaves.inner if each.value == value]
            names = [f"{kind}{relu}of{len(column)}" for kind in ("entries", "inner")]
            if names[0] not in arrays:
                wide = np.concatenate([_spread(each, column) for each in parts], 1)
                arrays[names[0]] = np.concatenate([each.place for each in parts]).astype("<i4")
                arrays[names[1]] = np.round(255 * wide).astype("|u1") if dtype.kind == "u" else wide.astype("<f8")
            found.append([relu, *names])
        return found

    def _boxes(self, case: int, parts: Parts, arrays: Arrays, whole: Ends) -> dict[str, Any]:
        walk, cuts, order = box_tree(parts.lower, parts.upper, whole())
        named: Arrays = {"tree": np.array(walk, "<i4"), "cuts": np.array(cuts, "<f8")}
        if parts.weights.shape[1] > 1:
            named["weights"] = parts.weights[order].astype("<f8")
        return {"by": "boxes", "cases": [case], **_stored(case, named, arrays)}


def _spread(given: InnerSlopes, column: dict[tuple[str, int], int]) -> NDArray[np.float64]:
    """Return slopes (2, e, U) over all units that have a column; of others the rows read nothing."""
    found: NDArray[np.float64] = np.zeros((*given.slopes.shape[:2], len(column)))
    units = [(name, int(at)) for name, place in given.layers for at in place]
    for i, unit in enumerate(units):
        if unit in column:
            found[:, :, column[unit]] = given.slopes[:, :, i]
    return found


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

"""What `surebound supports` answers: one function per capability that the standard names."""

from __future__ import annotations

from collections.abc import Callable

from surebound.graph.onnx.file import NEWEST_OPSET, OLDEST_OPSET


def _operators() -> list[str]:
    from surebound.graph.onnx.importer import operators

    return operators()


CAPABILITIES: dict[str, Callable[[], list[str]]] = {
    "onnx-opset-versions": lambda: [str(OLDEST_OPSET), str(NEWEST_OPSET)],
    "onnx-element-types": lambda: ["float32", "real"],
    "onnx-operators": _operators,
    "onnx-operators-unsat-proofs": list,
    "vnnlib-versions": lambda: ["1.0", "2.0"],
    "hidden-node-theories": lambda: ["NH", "H"],
    "multiple-input-output-theories": lambda: ["SIO", "MIO"],
    "multiple-network-theories": lambda: ["SNET", "MENET", "MINET", "MNET"],
    "multiple-node-comparison-theories": lambda: ["SNC", "MNC"],
    "arithmetic-complexity-theories": lambda: ["BND", "OUTC", "LIN", "POLY"],
    "optimised-disjunctive-reasoning": lambda: ["true"],
    "serialise-assignments": lambda: ["true"],
    "unsat-proofs": lambda: ["false"],
}
"""Capability -> the lines of its answer."""

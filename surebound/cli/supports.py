"""`surebound supports`: what queries and networks can be decided, in the words of the VNN-LIB standard."""

from __future__ import annotations

from typing import Annotated

import typer

from surebound.errors import InputError

HELP = {
    "onnx-opset-versions": "The oldest and the newest ONNX operator set that networks may use.",
    "onnx-element-types": "Element types of variables: float32 (as executed) and real (exact).",
    "onnx-operators": "ONNX operators that networks may use.",
    "onnx-operators-unsat-proofs": "ONNX operators for which proof files are written (none).",
    "vnnlib-versions": "Versions of VNN-LIB that queries may be written in.",
    "hidden-node-theories": "Whether queries may be about hidden nodes.",
    "multiple-input-output-theories": "Whether networks may have several inputs and outputs.",
    "multiple-network-theories": "Whether queries may be about several networks, and how these may be related.",
    "multiple-node-comparison-theories": "Whether one comparison may hold variables of several nodes.",
    "arithmetic-complexity-theories": "What assertions may compute, from plain bounds to polynomials.",
    "optimised-disjunctive-reasoning": "Whether disjunctions are decided better than case by case.",
    "serialise-assignments": "Whether counterexamples can be written to a file.",
    "unsat-proofs": "Whether proofs can be written to a file.",
}


def _flag(name: str, *other: str) -> object:
    return typer.Option(f"--{name}", *other, help=HELP[name])


def register(app: typer.Typer) -> None:
    app.command("supports")(supports)


def supports(
    onnx_opset_versions: Annotated[bool, _flag("onnx-opset-versions")] = False,
    onnx_element_types: Annotated[bool, _flag("onnx-element-types")] = False,
    onnx_operators: Annotated[bool, _flag("onnx-operators")] = False,
    onnx_operators_unsat_proofs: Annotated[bool, _flag("onnx-operators-unsat-proofs")] = False,
    vnnlib_versions: Annotated[bool, _flag("vnnlib-versions")] = False,
    hidden_node_theories: Annotated[bool, _flag("hidden-node-theories")] = False,
    multiple_input_output_theories: Annotated[
        bool, _flag("multiple-input-output-theories", "--multiple-inputs-output-theories")
    ] = False,
    multiple_network_theories: Annotated[bool, _flag("multiple-network-theories")] = False,
    multiple_node_comparison_theories: Annotated[bool, _flag("multiple-node-comparison-theories")] = False,
    arithmetic_complexity_theories: Annotated[bool, _flag("arithmetic-complexity-theories")] = False,
    optimised_disjunctive_reasoning: Annotated[bool, _flag("optimised-disjunctive-reasoning")] = False,
    serialise_assignments: Annotated[bool, _flag("serialise-assignments")] = False,
    unsat_proofs: Annotated[bool, _flag("unsat-proofs")] = False,
) -> None:
    """Say what can be verified: exactly one capability, one item per line.

    Examples:

      surebound supports --onnx-operators

      surebound supports --onnx-element-types
    """
    asked = dict(locals())
    from surebound.vnnlib.capabilities import CAPABILITIES

    wanted = [name for name in CAPABILITIES if asked[name.replace("-", "_")]]
    if len(wanted) != 1:
        known = ", ".join(f"--{name}" for name in CAPABILITIES)
        raise InputError(f"{len(wanted)} capabilities were asked for; name one of: {known}")
    for line in CAPABILITIES[wanted[0]]():
        typer.echo(line)

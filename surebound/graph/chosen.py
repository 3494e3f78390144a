"""One of several outputs, and networks that no tracer can read: said before anything else is tried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from surebound.errors import GraphError, InputError


class Chosen(nn.Module):
    """A network of which one output is asked about: an entry of a dict, a place in a tuple, or an attribute."""

    def __init__(self, net: nn.Module, output: str | int) -> None:
        super().__init__()
        self.net, self.output = net, output
        self.training = net.training  # not ``train``, which would switch parts of the network that are set apart

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = _part(self.net(x), self.output)
        return found


def choose(net: nn.Module, output: str | int) -> nn.Module:
    """Return the network whose result is one output of ``net``: a dict's entry, a tuple's place, or an attribute.

    >>> class Two(nn.Module):
    ...     def forward(self, x):
    ...         return {"logits": x.flatten(1), "features": x}
    >>> choose(Two(), "logits")(torch.zeros(2, 3, 4)).shape
    torch.Size([2, 12])
    """
    if not isinstance(net, nn.Module):
        raise InputError(f"the network is a {type(net).__name__}; give a torch.nn.Module")
    if not isinstance(output, (str, int)):
        raise InputError(f"an output is chosen by its name or place; {type(output).__name__} is neither")
    return Chosen(net, output)


def _part(result: Any, output: str | int) -> Any:
    if isinstance(result, Mapping):
        if output not in result:
            raise InputError(f"there is no output {output!r}; the network returns {_names(result)}")
        return result[output]
    if isinstance(output, str) and not output.lstrip("-").isdecimal():
        if isinstance(result, Tensor) or not hasattr(result, output):
            raise InputError(f"there is no output {output!r}; the network returns a {_kind(result)}")
        return getattr(result, output)
    if not isinstance(result, (tuple, list)):
        raise InputError(f"there is no output {output!r}; the network returns a {_kind(result)}")
    if not -len(result) <= int(output) < len(result):
        raise InputError(f"there is no output {output!r}; the network returns {len(result)}: 0 to {len(result) - 1}")
    return result[int(output)]


def _names(result: Mapping[Any, Any]) -> str:
    return ", ".join(repr(key) for key in result) or "nothing"


def _kind(result: Any) -> str:
    return "tensor" if isinstance(result, Tensor) else type(result).__name__


#: What to do about integers that cannot be traced.
INSTEAD = (
    "take the float operators between calls that quantise (torchao's convert_pt2e, or "
    "_convert_to_reference_decomposed_fx of torch.ao.quantization.quantize_fx), or quantise an ONNX export "
    "(onnxruntime.quantization.quantize_static, QDQ format) and load the file: sb.load('net.onnx')"
)
_OBSERVING = ("quantization.observer", "quantization.fake_quantize", "pt2e.observer", "pt2e.fake_quantize")


def refuse_unreadable(model: nn.Module) -> None:
    """Raise an error that says what to do about TorchScript, packed integers and unfinished quantisation."""
    for name, module in model.named_modules():
        at = f" (at {name})" if name else ""
        if isinstance(module, torch.jit.ScriptModule):
            raise GraphError(
                f"the network is TorchScript{at}, whose Python code is gone; give the nn.Module that it was made from, "
                "or export it to ONNX and load the file: torch.onnx.export(script, (x,), 'net.onnx', dynamo=False) and "
                "sb.load('net.onnx')"
            )
        home = type(module).__module__
        if home.startswith("torch.ao.nn.quantized.reference"):
            continue  # of float operators, between calls that quantise
        if home.startswith(("torch.ao.nn.quantized", "torch.nn.quantized", "torch.ao.nn.intrinsic.quantized")):
            raise GraphError(
                f"the network computes with PyTorch's packed integers{at}: {type(module).__name__}. They cannot be "
                f"traced; {INSTEAD}"
            )
        if home.endswith(_OBSERVING) and home.startswith(("torch.ao.", "torchao.")):
            raise GraphError(
                f"the network is prepared for quantisation, not converted{at}: {type(module).__name__} takes notes as "
                f"it runs. Convert it first; then {INSTEAD}"
            )

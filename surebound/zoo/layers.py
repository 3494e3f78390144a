"""A user's network as a few plain values: the layers of an nn.Sequential, or a class that can be imported."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from surebound.errors import ConfigError
from surebound.models import layers as own

_NOT_STORED = ("device", "dtype")


def describe(model: nn.Module) -> dict[str, Any]:
    """Describe a network so that it can be built again: by its layers, by its class, or, failing both, by name only.

    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(4, 2, bias=False))
    >>> describe(net)["layers"][1]
    ['1', 'Linear', {'in_features': 4, 'out_features': 2, 'bias': False}]
    """
    found = _layers(model) if type(model) is nn.Sequential else None
    if found is not None and _same(model, lambda: build({"layers": found})):
        return {"layers": found}
    kind = type(model)
    name = f"{kind.__module__}:{kind.__qualname__}"
    if kind.__module__ != "__main__" and "<" not in name and not _required(kind) and _same(model, kind):
        return {"factory": name}
    return {"own": name}


def build(record: Mapping[str, Any]) -> nn.Module:
    """Build the network that `describe` described by its layers, with weights still to be filled in."""
    layers = [(name, _layer(kind, given)) for name, kind, given in record["layers"]]
    made = nn.Sequential()
    for name, layer in layers:
        made.add_module(name, layer)
    return made


def _layers(model: nn.Sequential) -> list[list[Any]] | None:
    """List [name, class, arguments] of every layer; None where a layer is not one of PyTorch's or of ours."""
    found: list[list[Any]] = []
    for name, layer in model.named_children():
        if type(layer) is nn.Sequential:
            inner = _layers(layer)
            given: dict[str, Any] | None = None if inner is None else {"layers": inner}
        else:
            given = _arguments(layer)
        if given is None:
            return None
        found.append([name, type(layer).__name__, given])
    return found


def _layer(kind: str, given: Mapping[str, Any]) -> nn.Module:
    if kind == "Sequential":
        return build(given)
    made = getattr(own, kind, None) or getattr(nn, kind, None)
    if not (isinstance(made, type) and issubclass(made, nn.Module)):
        raise ConfigError(f"{kind!r} is no layer of torch.nn; the run was written by another version")
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    layer: nn.Module = made(**values)
    return layer


def _arguments(layer: nn.Module) -> dict[str, Any] | None:
    """Return the constructor's arguments that are not the defaults, read from the attributes of the same names."""
    kind = type(layer)
    ours = getattr(own, kind.__name__, None) is kind
    if (not ours and getattr(nn, kind.__name__, None) is not kind) or list(layer.children()):
        return None
    given: dict[str, Any] = {}
    for name, parameter in inspect.signature(kind).parameters.items():
        if name in _NOT_STORED:
            continue
        if not hasattr(layer, name):
            return None
        value = getattr(layer, name)
        if isinstance(value, Tensor) or name == "bias":
            value = value is not None if name == "bias" else value.flatten().tolist()
        if isinstance(value, tuple):
            value = list(value)
        if value != parameter.default:
            given[name] = value
    return given if _plain(given) else None


def _plain(value: object) -> bool:
    """Say whether a value is the same after a journey through JSON."""
    if isinstance(value, dict):
        return all(map(_plain, value.values()))
    if isinstance(value, list):
        return all(map(_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _required(kind: type) -> list[str]:
    parameters = inspect.signature(kind).parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def _same(model: nn.Module, make: Any) -> bool:
    """Say whether `make()` gives a network that prints the same and has weights of the same names and shapes."""
    with torch.random.fork_rng(devices=[]):
        try:
            other = make()
        except Exception:  # a user's constructor: anything may be raised, and then it is not the way to build it
            return False
    shapes = [{name: tuple(value.shape) for name, value in net.state_dict().items()} for net in (model, other)]
    return isinstance(other, nn.Module) and repr(other) == repr(model) and shapes[0] == shapes[1]

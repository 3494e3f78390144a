"""Has anything changed that tracing could see? Compared at every call, so it must cost less than a small bound."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as _globals

#: Entries of a module that say nothing about its forward pass, or are looked into separately. Networks are
#: traced with every ``training`` flag off, whatever it was.
_BESIDE = frozenset(
    {
        "training", "_modules", "_parameters", "_buffers", "_non_persistent_buffers_set", "_backward_pre_hooks",
        "_backward_hooks", "_is_full_backward_hook", "_state_dict_hooks", "_state_dict_pre_hooks",
        "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
    }
)  # fmt: skip
#: Types whose values are equal only if they are the same.
_PLAIN = frozenset({int, bool, str, bytes, type(None), torch.dtype, torch.device})
#: How far objects inside objects are followed; what lies deeper is known by its identity.
_DEPTH = 4


class Fingerprint:
    """What tracing a module could see, flat; equal only if nothing of it has changed.

    Parameters and buffers count by shape, dtype and who shares them: a Program reads them by name at every call.
    Leaves that count by their identity are held, so that no other one can get their number; modules and methods are
    not, because of a parent held here the cache could never let go.
    """

    __slots__ = ("_held", "_seen")

    def __init__(self, model: nn.Module) -> None:
        self._held: list[Any] = []
        self._seen: list[Any] = [torch.get_default_dtype()]
        self._add(_globals._global_forward_hooks, 0)
        self._add(_globals._global_forward_pre_hooks, 0)
        self._add_modules(model)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fingerprint) and self._seen == other._seen

    __hash__ = None  # type: ignore[assignment]

    def _add_modules(self, model: nn.Module) -> None:
        seen, stack, known = self._seen, [model], dict[int, int]()
        while stack:
            module = stack.pop()
            if id(module) in known:  # shared: which one it is, is part of the structure
                seen.append(known[id(module)])
                continue
            known[id(module)] = len(known)
            kind, entries = type(module), module.__dict__
            seen += (kind, id(kind.forward))
            for own in _own_classes(kind):  # type: ignore[arg-type]
                values = list(vars(own).values())
                self._held.append(values)
                seen += map(id, values)
            for name, value in entries.items():
                # Most are empty tables of hooks; these lines run for every entry of every module.
                if name in _BESIDE or (type(value) is OrderedDict and not value):
                    continue
                seen.append(name)
                if type(value) in _PLAIN:
                    seen += (type(value), value)
                else:
                    self._add(value, 0)
            for group in (entries["_parameters"], entries["_buffers"]):
                for name, value in group.items():
                    seen.append(name)
                    if value is not None:
                        seen += (known.setdefault(id(value), len(known)), value.shape, value.dtype)
            children = entries["_modules"]
            if children:
                seen += children
                stack += [child for child in children.values() if child is not None]

    def _add(self, value: Any, depth: int) -> None:
        kind, seen = type(value), self._seen
        seen.append(kind)
        if kind in _PLAIN:
            seen.append(value)
        elif kind in (float, complex):
            seen.append(repr(value))  # 0.0 == -0.0, and NaN is not itself
        elif isinstance(value, Tensor):
            self._held.append(value)
            seen += (id(value), 0 if value.is_inference() else value._version)
            seen.append(value.data_ptr() if value.layout == torch.strided else 0)
        elif hasattr(value, "tobytes"):  # an array of NumPy
            seen.append(value.tobytes())
        elif kind is FunctionType:
            self._held.append(value.__code__)
            seen.append(id(value.__code__))
            for cell in value.__closure__ or ():
                with suppress(ValueError):  # an empty one
                    self._add(cell.cell_contents, depth + 1)
        else:
            seen.append(id(value))
            if depth < _DEPTH and not isinstance(value, (nn.Module, type)):
                self._add_inside(value, depth + 1)

    def _add_inside(self, value: Any, depth: int) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                self._add(key, depth)
                self._add(item, depth)
        elif isinstance(value, (list, tuple)):
            self._seen.append(len(value))
            for item in value:
                self._add(item, depth)
        elif isinstance(value, (set, frozenset)):
            self._seen.append(frozenset(map(id, value)))
        else:
            for name, item in getattr(value, "__dict__", {}).items():
                self._seen.append(name)
                self._add(item, depth)


@cache
def _own_classes(kind: type) -> tuple[type, ...]:
    """Return the classes of a class of modules that are not PyTorch's own: their attributes may be set."""
    return tuple(
        each for each in kind.__mro__ if each is not object and not each.__module__.startswith("torch.")
    )

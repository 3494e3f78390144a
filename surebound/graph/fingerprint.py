"""Has anything changed that tracing could see? Compared at every call, so it must cost less than a small bound."""

from __future__ import annotations

import operator
import sys
import weakref
from collections import OrderedDict, deque
from contextlib import suppress
from functools import cache, partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as _globals

#: Of a module's own entries: what says nothing about its forward pass, or is looked into separately. Networks are
#: traced with every ``training`` flag off, whatever it was.
_BESIDE = frozenset(
    {
        "training", "_modules", "_parameters", "_buffers", "_non_persistent_buffers_set", "_backward_pre_hooks",
        "_backward_hooks", "_is_full_backward_hook", "_state_dict_hooks", "_state_dict_pre_hooks",
        "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
    }
)  # fmt: skip
#: Types whose values are equal only if they are the same.
_PLAIN = frozenset({int, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size, range})
#: Entries of a class that say nothing about what its instances compute.
_OF_CLASSES = frozenset({"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__qualname__"})


class Fingerprint:
    """What tracing a module could see, flat; equal only if nothing of it has changed.

    Parameters and buffers count by shape, dtype, order in memory (which decides what is a view of what) and who shares
    them: a Program reads them by name at every call.
    Leaves that count by their identity are held, so that no other one can get their number; modules are not, because
    of a parent held here the cache could never let go. An object that cannot be looked into makes the fingerprint
    differ from every other one: better to trace too often than to prove something of another network.
    """

    __slots__ = ("_alive", "_held", "_known", "_opaque", "_seen", "_stack")

    def __init__(self, model: nn.Module) -> None:
        self._held: list[Any] = []
        self._alive: list[Any] = []  # what was looked into, so that no identity occurs twice
        self._known: dict[int, int] = {}  # objects that were looked into, by their identity
        self._stack: list[nn.Module] = [model]  # modules to look into
        self._opaque = False
        self._seen: list[Any] = [torch.get_default_dtype()]
        self._add(_globals._global_forward_hooks)
        self._add(_globals._global_forward_pre_hooks)
        while self._stack:
            self._add_module(self._stack.pop())
        self._alive.clear()
        self._known.clear()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Fingerprint) or self._opaque or other._opaque:
            return False
        return self._seen == other._seen

    __hash__ = None  # type: ignore[assignment]

    def _again(self, value: Any) -> bool:
        """Note an object; say whether it was looked into before: which one it is, is part of the structure."""
        number = self._known.setdefault(id(value), len(self._known))
        self._seen.append(number)
        return number < len(self._known) - 1

    def _add_module(self, module: nn.Module) -> None:
        if self._again(module):
            return
        seen, kind, entries = self._seen, type(module), module.__dict__
        seen.append(kind)
        self._add_classes(kind)
        for name, value in entries.items():
            # Most are empty tables of hooks; these lines run for every entry of every module.
            if name in _BESIDE or (type(value) is OrderedDict and not value) or _lists_weights(module, name, value):
                continue
            seen.append(name)
            if type(value) in _PLAIN:
                seen += (type(value), value)
            else:
                self._add(value)
        for group in (entries["_parameters"], entries["_buffers"]):
            for name, value in group.items():
                seen.append(name)
                if value is not None:
                    self._again(value)
                    seen += (value.shape, value.dtype, value.stride() if value.layout == torch.strided else ())
        children = entries["_modules"]
        if children:
            seen += children
            self._stack += [child for child in children.values() if child is not None]

    def _add_classes(self, kind: type) -> None:
        for own in _own_classes(kind):
            if not self._again(own):
                for name, value in list(vars(own).items()):
                    if name not in _OF_CLASSES:
                        self._seen.append(name)
                        self._add(value)

    def _add(self, value: Any) -> None:
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
        elif kind is weakref.ReferenceType:
            self._add(value())
        elif isinstance(value, nn.Module):
            seen.append(self._known.get(id(value), -1))
            self._stack.append(value)
        elif hasattr(value, "tobytes"):  # an array of NumPy
            seen.append(value.tobytes())
        elif kind is BuiltinFunctionType or isinstance(value, type) or kind.__module__.partition(".")[0] == "torch":
            self._held.append(value)
            seen.append(id(value))
        elif not self._again(value):
            self._alive.append(value)
            self._add_inside(value)

    def _add_inside(self, value: Any) -> None:
        if isinstance(value, dict):
            for key, item in list(value.items()):
                self._add(key)
                self._add(item)
        elif isinstance(value, (list, tuple, deque)):
            self._seen.append(len(value))
            for item in list(value):
                self._add(item)
        elif isinstance(value, FunctionType):
            self._held.append(value.__code__)
            self._seen.append(id(value.__code__))
            for item in (value.__defaults__, value.__kwdefaults__, value.__dict__ or None):
                self._add(item)
            for cell in value.__closure__ or ():
                with suppress(ValueError):  # an empty one
                    self._add(cell.cell_contents)
        elif isinstance(value, MethodType):
            self._add(value.__func__)
            self._add(value.__self__)
        elif isinstance(value, partial):
            for item in (value.func, value.args, value.keywords):
                self._add(item)
        elif isinstance(value, (staticmethod, classmethod)):
            self._add(value.__func__)
        elif isinstance(value, property):
            for item in (value.fget, value.fset, value.fdel):
                self._add(item)
        else:
            self._add_object(value)

    def _add_object(self, value: Any) -> None:
        """Look into an object by its attributes; by what it is made of if it has none that can be seen."""
        self._add_classes(type(value))
        slots = [name for kind in type(value).__mro__ for name in _slots(kind) if hasattr(value, name)]
        entries = getattr(value, "__dict__", None)
        if entries is not None or slots:
            for name in slots:
                self._seen.append(name)
                self._add(getattr(value, name))
            for name, item in list((entries or {}).items()):
                self._seen.append(name)
                self._add(item)
            if type(value).__module__ == "builtins":  # an attribute or two are not all of it
                self._opaque = True
            return
        try:
            parts = value.__reduce_ex__(4)
        except Exception:  # whatever it raises: it cannot be looked into
            self._opaque = True
            return
        for part in parts if isinstance(parts, tuple) else (parts,):
            self._add(list(part) if hasattr(part, "__next__") else part)


def _lists_weights(module: nn.Module, name: str, value: Any) -> bool:
    """Is this entry of a recurrent layer the list of its own parameters, as it keeps it to call its kernels?

    The layer renews it when a parameter is replaced; a program reads the parameters by name.
    """
    if not isinstance(module, nn.RNNBase):
        return False
    if name == "_flat_weight_refs":
        return True  # by these the layer knows when to renew the list
    own = [module._parameters.get(each) for each in module._flat_weights_names]
    return name == "_flat_weights" and len(value) == len(own) and all(map(operator.is_, value, own))


@cache
def _slots(kind: type) -> tuple[str, ...]:
    """Return the names that a class keeps in slots."""
    found = kind.__dict__.get("__slots__", ())
    names = (found,) if isinstance(found, str) else tuple(found)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


@cache
def _own_classes(kind: type) -> tuple[type, ...]:
    """Return the bases of a class that are a user's: somebody may set an attribute of theirs."""
    others = ("surebound", "torch", *sys.stdlib_module_names)
    return tuple(
        each
        for each in kind.__mro__
        if each.__module__ == "__main__" or each.__module__.partition(".")[0] not in others
    )

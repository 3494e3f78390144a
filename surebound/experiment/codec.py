"""Frozen dataclasses <-> plain tables (TOML): typed, exact, and strict about what is written in them."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from fractions import Fraction
from typing import Any

from surebound.errors import ConfigError, InputError, nearest
from surebound.numerics import exact_fraction
from surebound.train.methods import METHODS, Method


def encode(value: Any) -> Any:
    """Plain values for TOML. Fractions become strings, absent options are left out, methods carry their name."""
    if is_dataclass(value) and not isinstance(value, type):
        head = {"name": value.name} if isinstance(value, Method) else {}
        items = {f.name: getattr(value, f.name) for f in fields(value)}
        return head | {key: encode(item) for key, item in items.items() if item is not None}
    if isinstance(value, Fraction):
        return str(value)
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    return value


def decode(kind: type, table: Mapping[str, Any], where: str = "") -> Any:
    """An instance of the dataclass `kind` from a plain table; unknown and missing keys are named with their path."""
    if kind is Method:
        kind, table = _method(table, where)
    hints = typing.get_type_hints(kind)
    known = {f.name: f for f in fields(kind)}
    for key in table:
        if key not in known:
            raise ConfigError(
                f"unknown key {_path(where, key)!r}{nearest(key, known)} Known keys here: {', '.join(known)}"
            )
    values = {key: _value(hints[key], item, _path(where, key)) for key, item in table.items()}
    missing = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
    for key in missing:
        if key not in values:
            raise ConfigError(f"the key {_path(where, key)!r} is missing")
    try:
        return kind(**values)
    except InputError as error:
        raise ConfigError(f"{where or 'configuration'}: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}" if where else str(error)) from error


def _method(table: Mapping[str, Any], where: str) -> tuple[type, Mapping[str, Any]]:
    name = table.get("name")
    if name not in METHODS:
        hint = nearest(str(name), METHODS)
        raise ConfigError(f"{_path(where, 'name')} = {name!r} is no training method{hint} Known: {', '.join(METHODS)}")
    return METHODS[name], {key: value for key, value in table.items() if key != "name"}


def _path(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _value(kind: Any, value: Any, where: str) -> Any:
    """`value` as the type `kind`: numbers, strings, fractions, tuples, nested tables, and `... | None`."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        (kind,) = [a for a in arguments if a is not types.NoneType]
        return _value(kind, value, where)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{where} must be a list, got {value!r}")
        kinds = [arguments[0]] * len(value) if arguments[1:] == (...,) else list(arguments)
        if len(kinds) != len(value):
            raise ConfigError(f"{where} must have {len(kinds)} entries, got {len(value)}")
        return tuple(_value(k, v, f"{where}[{i}]") for i, (k, v) in enumerate(zip(kinds, value, strict=True)))
    if isinstance(kind, type) and (is_dataclass(kind) or kind is Method):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where} must be a table, got {value!r}")
        return decode(kind, value, where)
    return _scalar(kind, value, where)


def _scalar(kind: Any, value: Any, where: str) -> Any:
    if kind is Fraction:
        try:
            return exact_fraction(value, where)
        except InputError as error:
            raise ConfigError(str(error)) from error
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        raise ConfigError(f"{where} must be of type {kind.__name__}, got {value!r}")
    return value

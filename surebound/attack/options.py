"""Look-up of named options, with an error that lists the names there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from surebound.errors import ConfigError

T = TypeVar("T")


def pick(table: Mapping[str, T], name: str, what: str) -> T:
    """The option called ``name``.

    >>> pick({"margin": 1}, "hinge", "loss")
    Traceback (most recent call last):
    ...
    surebound.errors.ConfigError: loss='hinge' is not known; use 'margin'
    """
    try:
        return table[name]
    except (KeyError, TypeError):
        known = ", ".join(repr(key) for key in table)
        raise ConfigError(f"{what}={name!r} is not known; use {known}") from None

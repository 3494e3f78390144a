"""Options of attacks: their checks, and the look-up of named ones with an error that lists the names there are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeVar

from surebound.errors import ConfigError

T = TypeVar("T")


def check_type(owner: object, name: str, kind: type) -> None:
    """Refuse an option of another type than ``kind``, one of surebound's own classes."""
    value = getattr(owner, name)
    if not isinstance(value, kind):
        raise ConfigError(
            f"{type(owner).__name__}({name}={value!r}): {name} must be a {kind.__name__}, e.g. {name}={_EXAMPLES[name]}"
        )


_EXAMPLES = {
    "rule": "Adam(0.1) or Sign(0.25)",
    "decay": "StepDecay(), or StepDecay(at=()) for a constant step",
}


def is_count(value: object) -> bool:
    """Is it a whole number of at least 1?"""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def is_positive(value: object) -> bool:
    """Is it a positive, finite number?"""
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0 and math.isfinite(value)


def pick(table: Mapping[str, T], name: str, what: str) -> T:
    """Return the option called ``name``.

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

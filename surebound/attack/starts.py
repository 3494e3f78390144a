"""Where a trial starts: somewhere in the box, in one of its corners, or at the example itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from surebound.attack.rows import AttackRows


def uniform(rows: AttackRows) -> Tensor:
    """Draw a point uniformly from the box."""
    return torch.lerp(rows.lower, rows.upper, rows.uniform())


def corner(rows: AttackRows) -> Tensor:
    """Draw a corner of the box, each coordinate's side at random."""
    return torch.where(rows.signs() > 0, rows.upper, rows.lower)


def mixed(rows: AttackRows) -> Tensor:
    """Draw a uniform point for every other trial, a corner for the rest."""
    odd = (rows.trial % 2 == 1).view(-1, *[1] * (rows.x.dim() - 1))
    return torch.where(odd, corner(rows), uniform(rows))


def center(rows: AttackRows) -> Tensor:
    """Return the example itself."""
    return rows.x


STARTS: Mapping[str, Callable[[AttackRows], Tensor]] = MappingProxyType(
    {"uniform": uniform, "corner": corner, "mixed": mixed, "center": center}
)
"""Starts by name; each gives points (R, ...) of the box."""

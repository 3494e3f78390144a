"""Numbers that are near a bound but are none: training may minimise them, nothing may be concluded from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from surebound.errors import BoundError


@dataclass(frozen=True)
class Projections:
    """How many random projections, drawn from where, and how many bytes they may take at a time."""

    count: int
    generator: torch.Generator
    memory: int = 1 << 29


@dataclass(frozen=True, eq=False)
class Estimate:
    """Estimated margins (B, K). Not a tensor: comparing it, as a proof would, raises BoundError.

    >>> import torch
    >>> Estimate(torch.zeros(1, 2)) <= 0
    Traceback (most recent call last):
    ...
    surebound.errors.BoundError: these are estimated margins, not bounds: they prove nothing. ...
    """

    for_training: Tensor  # (B, K), with gradients

    def _refuse(self, other: Any = None) -> NoReturn:
        raise BoundError(
            "these are estimated margins, not bounds: they prove nothing. "
            "Use worst_margins(..., method='wong') for the exact dual bound"
        )

    __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __eq__ = __ne__ = _refuse
    __hash__ = object.__hash__

    def __bool__(self) -> NoReturn:
        self._refuse()

    def __float__(self) -> NoReturn:
        self._refuse()

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> NoReturn:
        raise BoundError("estimated margins are not a tensor: they are for the loss of a training step alone")

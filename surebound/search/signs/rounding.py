"""When a search goes on over rows in float64: where its bounds lack nothing but rounding, which no cut lowers.

A large network is reduced in its own dtype, whose roundings in the backward passes can cost more than a bound is away
from 0 (a detector on 52 x 52 pixels: 0.048 of a margin of -0.04). With coefficients in float64 only the network's own
rounding is left to pay. Where the network is reduced again for another reason and rounding is an eighth of an open
bound or more, that is done at once.
"""

from __future__ import annotations

import torch

from surebound.bounds.reduced.network import Reduced
from surebound.numerics import Soundness
from surebound.search.branch_and_bound import Bounded, Tree

#: Rounds in a row that left nothing but rounding.
_ROUNDS = 2

#: What is left of the time, in reductions like the one before; in float64 one takes twice as long.
_ROOM = 2.0

#: Where the network is reduced again anyhow, rounding that is this part of an open bound is reason enough.
_PART = 1 / 8


class RoundingInTheWay:
    """The rounds of one search, whose network took ``seconds`` to reduce."""

    def __init__(self, reduced: Reduced, mode: Soundness, tree: Tree, seconds: float) -> None:
        self._any = mode is not Soundness.NONE and reduced.lower.dtype != torch.float64 and not reduced.wide
        self._tree, self._seconds, self._rounds = tree, seconds, 0

    def pays(self, pool: Bounded) -> bool:
        """Say, before each round, whether rows in float64 are worth their cost."""
        if not self._any or self._tree.left < _ROOM * self._seconds:
            return False
        rounding = bool((pool.upper.isfinite() & (pool.upper <= pool.rounding)).all())
        self._rounds = self._rounds + 1 if rounding else 0
        return self._rounds >= _ROUNDS

    def matters(self, pool: Bounded) -> bool:
        """Say whether a network that is reduced again is better reduced to rows in float64."""
        if not self._any or self._tree.left < 2 * _ROOM * self._seconds:
            return False
        return bool((pool.upper.isfinite() & (pool.rounding >= _PART * pool.upper)).any())

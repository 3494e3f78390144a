"""A problem to decide: one network, a box of inputs, and a formula about its outputs and inputs."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import torch
from numpy.typing import NDArray

from surebound.graph import ImportedNetwork
from surebound.interval import Interval
from surebound.norm_ball import Ball, NormBall
from surebound.numerics import Soundness, outer_float32
from surebound.region import Box, Region
from surebound.spec.formula import Formula


@dataclass(frozen=True, eq=False)
class Problem:
    """Is there an input of the box for which the formula holds of one network (B, *input) -> (B, K)?"""

    network: ImportedNetwork
    inputs: Mapping[int, int]  # input element -> place in the flattened input
    columns: Mapping[int, int]  # element of the formula -> output column
    lower: tuple[Fraction, ...]  # by place: the box
    upper: tuple[Fraction, ...]
    formula: Formula  # what else must hold
    soundness: Soundness  # which executions a proof must cover
    ball: NormBall | None = field(
        default=None, kw_only=True
    )  # of one example, around which the box lies: nothing else is asked about

    def box(self, lower: Sequence[Fraction], upper: Sequence[Fraction]) -> Interval:
        """Return a box of float32 numbers (1, *input) that contains the exact one, rounded to nearest or not."""
        shape = [int(n or 1) for n in self.network.graph.input_shape[1:]]
        ends = outer_float32(lower, upper)
        return Interval(*(torch.from_numpy(end).reshape(1, *shape) for end in ends))

    @functools.cached_property
    def whole(self) -> Interval:
        """Return the box of float32 numbers (1, *input) that contains all inputs asked about; of a ball, with that."""
        box = self.box(self.lower, self.upper)
        ball = None if self.ball is None else self.ball.interval(self.soundness)
        return ball.within(box) if isinstance(ball, Ball) else box

    @property
    def region(self) -> Region:
        """Return all inputs asked about as a region of one example."""
        return Box(self.whole.lower, self.whole.upper) if self.ball is None else self.ball

    @property
    def outputs(self) -> int:
        """How many outputs the network has."""
        shape = self.network.graph.by_name[self.network.graph.output].shape or (1, 1)
        return int(shape[1] or 1)

    @property
    def empty(self) -> bool:
        """Is there no input at all?"""
        return any(low > high for low, high in zip(self.lower, self.upper, strict=True))


def inner_box(lower: Sequence[Fraction], upper: Sequence[Fraction]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return float32 ends (N,) of the largest box inside; where no float32 number is inside, the closest one."""
    high, low = outer_float32(upper, lower)  # the other way round: both ends go inwards
    middle = np.array([float((a + b) / 2) for a, b in zip(lower, upper, strict=True)]).astype(np.float32)
    empty = low > high
    return np.where(empty, middle, low), np.where(empty, middle, high)

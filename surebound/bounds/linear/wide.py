"""Backward passes in float64 over a network that computes in float32: our own roundings then cost next to nothing.

Steps are made for the network's dtype. For coefficients in float64, affine steps are made of the same weights in
float64 (``AffineStep.of``), all others are converted: a line that holds of what the network computes holds whatever its
slopes are multiplied with (docs/soundness.md, Lemma 4).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from surebound.interval import Interval
from surebound.numerics import abs_dot, add_up, slightly_up, unit_roundoff
from surebound.rules.relax.lines import Index, Pulled, Relaxation


def widened(step: Relaxation) -> Relaxation:
    """Return the relaxation for coefficients in float64: the same numbers, in tensors of that dtype.

    What its intercepts pay for roundings of narrower coefficients is more than those of wider ones cost; what it owes
    is a number of roundings, now of float64.
    """
    known: dict[int, Any] = {}

    def wide(value: Tensor) -> Any:
        return known.setdefault(id(value), to_float64(value))  # slopes that are one object stay one

    parts = {f.name: _mapped(getattr(step, f.name), wide) for f in dataclasses.fields(step)}  # type: ignore[arg-type]
    if step.owes:
        parts["owes"] = step.owes * (unit_roundoff(torch.float64) / unit_roundoff(torch.float32))
    return dataclasses.replace(step, **parts)  # type: ignore[type-var]


def to_float64(value: Tensor) -> Tensor:
    """Return a tensor of floating-point numbers in float64, any other as it is."""
    return value.double() if value.is_floating_point() else value


def wide_arguments(
    given: tuple[tuple[Any, ...], dict[str, Any]], wide: Callable[[Tensor], Tensor]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Apply ``wide`` to every tensor among a call's arguments."""
    rest, kwargs = _mapped(given, wide)
    return rest, kwargs


def names_dtype(given: tuple[tuple[Any, ...], dict[str, Any]]) -> bool:
    """Say whether a call's arguments name a dtype: it would round coefficients in float64."""
    return any(isinstance(value, torch.dtype) for value in _leaves(given))


def rounds_numbers(given: tuple[tuple[Any, ...], dict[str, Any]], dtype: torch.dtype) -> bool:
    """Say whether a number among a call's arguments is one that the network's dtype cannot hold, and so rounds."""
    return any(_rounded(value, dtype) for value in _leaves(given))


def _rounded(value: Any, dtype: torch.dtype) -> bool:
    if isinstance(value, Tensor):
        return value.is_floating_point() and value.dtype.itemsize > dtype.itemsize
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return bool(torch.tensor(float(value), dtype=dtype).double() != value)


def _mapped(value: Any, fn: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return fn(value)
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return type(value)([_mapped(item, fn) for item in value])
    if isinstance(value, dict):
        return {key: _mapped(item, fn) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: _mapped(getattr(value, f.name), fn) for f in dataclasses.fields(value)}
        return dataclasses.replace(value, **parts)
    return value


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, dict):
        yield from _leaves(tuple(value.values()))
    else:
        yield value


@dataclass(frozen=True)
class Narrowed:
    """A step in the network's dtype among others in float64: coefficients are rounded on the way in, and that is paid.

    a.y <= fl(a).y + |a - fl(a)|.max|y|
    """

    step: Relaxation
    value: Interval  # bounds of y, (B, *out)

    @property
    def owes(self) -> float:
        return self.step.owes

    @property
    def loose(self) -> Tensor | bool:
        return self.step.loose

    def pull(self, a: Tensor, slope: Tensor | None = None) -> Pulled:
        narrow = a.to(self.value.dtype)
        lost = a - narrow.double()  # exact but for overflow, which makes the bound NaN or infinite
        pulled = self.step.pull(narrow, slope)
        paid = slightly_up(abs_dot(lost, self.value.magnitude.double()))
        return Pulled(tuple(c.double() for c in pulled.coefficients), add_up(pulled.offset, paid))

    def select(self, index: Index) -> Narrowed:
        return Narrowed(self.step.select(index), self.value.select(lambda v: v[index]))

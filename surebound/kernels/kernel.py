"""The one mechanism of compiled passes: a ``@kernel`` ties a C function to the PyTorch function that computes the same.

Calling one always answers: compiled where a compiler was found, the tensors lie in memory as declared and there are
enough of their numbers; by its reference elsewhere. So no caller asks which.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

from surebound.kernels.build import Entry, library

P = ParamSpec("P")
R = TypeVar("R")


class Declined(Exception):
    """Raised by a compiled pass that cannot answer (no memory, numbers it does not treat): its reference does."""


class Kernel(Generic[P, R]):
    """A pass over memory with a compiled body and a reference."""

    def __init__(
        self,
        body: Callable[Concatenate[Entry, P], R],
        reference: Callable[P, R],
        plain: str,
        alike: str,
        fits: Callable[..., bool] | None,
        worth: int,
    ) -> None:
        self.body, self.reference, self.fits, self.worth = body, reference, fits, worth
        self.name, self.__doc__ = body.__name__, body.__doc__
        names = list(inspect.signature(reference).parameters)
        self._plain, self._alike = ([(names.index(n), n) for n in which.split()] for which in (plain, alike))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        entries = library() if self.applies(*args, **kwargs) else None
        if entries is None:
            return self.reference(*args, **kwargs)
        try:
            return self.body(entries[self.name], *args, **kwargs)
        except Declined:
            return self.reference(*args, **kwargs)

    def applies(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Do these arguments lie in memory as declared, want no gradients, and are they worth compiling for?"""
        for declared, lie in ((self._alike, _lie_alike), (self._plain, _lie_plain)):
            if declared:
                values: list[Any] = [args[i] if i < len(args) else kwargs.get(n) for i, n in declared]
                if values[0].numel() < self.worth or not lie(values):  # the cheaper question first
                    return False
        return self.fits is None or self.fits(*args, **kwargs)


def kernel(
    *,
    reference: Callable[P, R],
    plain: str = "",
    alike: str = "",
    fits: Callable[..., bool] | None = None,
    worth: int = 1,
) -> Callable[[Callable[Concatenate[Entry, P], R]], Kernel[P, R]]:
    """Declare a compiled pass; the function gets the C function ``surebound_NAME`` before its arguments.

    reference: the same pass in PyTorch, on any device and dtype, with the same parameters.
    plain: names of arguments that must be float32, contiguous, in main memory, or None.
    alike: names of those that must be float32 in main memory, of one shape and in one order without gaps.
    fits: any further condition. worth: the fewest numbers, of the first argument declared, to compile for.
    """

    def declare(body: Callable[Concatenate[Entry, P], R]) -> Kernel[P, R]:
        return Kernel(body, reference, plain, alike, fits, worth)

    return declare


def is_float32(*values: Tensor | None) -> bool:
    """Are all of these float32 in main memory, or None, and are no gradients of them wanted?"""
    trains = torch.is_grad_enabled()
    for v in values:
        if v is not None and (v.dtype != torch.float32 or not v.is_cpu or (trains and v.requires_grad)):
            return False
    return True


def is_dense(value: Tensor) -> bool:
    """Are there no gaps between the numbers of (B, *value) or images (B, C, H, W), channels innermost or not?"""
    return value.is_contiguous() or (value.dim() == 4 and value.movedim(1, -1).is_contiguous())


def _lie_plain(values: list[Any]) -> bool:
    return is_float32(*values) and all(v is None or v.is_contiguous() for v in values)


def _lie_alike(values: list[Any]) -> bool:
    first = values[0]
    alike = all(v.shape == first.shape and v.stride() == first.stride() for v in values[1:])
    return alike and first.dim() > 0 and is_dense(first) and is_float32(*values)

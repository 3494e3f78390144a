"""Kernels compiled for few numbers too, or switched off."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from surebound.kernels import (
    ascent,
    balance,
    blocks,
    build,
    ends,
    kernel,
    matrices,
    medians,
    products,
    rounding,
    rows,
    scaling,
    sparse,
)

MODULES = (ascent, balance, blocks, ends, matrices, medians, products, rounding, rows, scaling, sparse)
KERNELS = {
    each.name: each
    for module in MODULES
    for each in vars(module).values()
    if isinstance(each, kernel.Kernel) and each.body.__module__ == module.__name__
}


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are compiled however few the numbers."""
    if build.library() is None:
        pytest.skip("no C compiler here")
    for each in KERNELS.values():
        monkeypatch.setattr(each, "worth", 1)
    for module in (ascent, rows, rounding):
        monkeypatch.setattr(module, "WORTH", 1)


@pytest.fixture
def switch(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Turn compiled kernels on or off for the rest of a test."""

    def turn(on: bool) -> None:
        monkeypatch.setattr(kernel, "library", build.library if on else lambda: None)

    return turn

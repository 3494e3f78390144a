"""What the data tests share: an ordinary user's rights, even when the tests run as root."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

NOBODY = 65534


@contextmanager
def _ordinary_rights() -> Iterator[None]:
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def ordinary_rights() -> Callable[[], AbstractContextManager[None]]:
    """`with ordinary_rights():` file permissions count, as they do not for root."""
    return _ordinary_rights


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A temporary directory that everybody may enter (pytest's own are private)."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)

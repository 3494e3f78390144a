"""PyTorch's own state while we compute, whatever the caller has set.

Threads share the settings of the process (``_Flags``); autocast and inference mode belong to each thread.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import threading
import warnings
from collections.abc import Iterator

import torch

from surebound.errors import AutocastWarning, InputError


class _Flags:
    """PyTorch's settings that ``exact_kernels`` needs, and how many threads want them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.found: tuple[str, str, bool, bool, torch.dtype, int] | None = None  # what they were before the first user

    def forbid(self) -> None:
        """Apply the settings, whatever they are now; every call pairs with one of ``allow``."""
        with self.lock:
            before = (
                _matmul("highest"), _convolutions("ieee"), _nnpack(False), _cudnn(False),
                _default_dtype(torch.float32), _deterministic(0),
            )  # fmt: skip
            self.found = self.found or before
            self.users += 1

    def allow(self) -> None:
        """Put the settings back once the last user has gone."""
        with self.lock:
            self.users -= 1
            if self.users or self.found is None:
                return
            matmul, convolutions, nnpack, cudnn, dtype, deterministic = self.found
            self.found = None
            _deterministic(deterministic), _default_dtype(dtype)
            _nnpack(nnpack), _cudnn(cudnn), _convolutions(convolutions), _matmul(matmul)


def _matmul(precision: str) -> str:
    try:
        before = torch.get_float32_matmul_precision()
    except RuntimeError as error:  # it knows no name for what newer settings say
        raise InputError(
            "PyTorch may compute float32 products in bfloat16 or TF32, of which no sound bound is known: set "
            "torch.backends.mkldnn.matmul.fp32_precision (or what you have set) to 'ieee' or 'none'"
        ) from error
    if before != precision:
        torch.set_float32_matmul_precision(precision)
    return before


def _convolutions(precision: str) -> str:
    settings = getattr(torch.backends.mkldnn, "conv", None)
    before = str(getattr(settings, "fp32_precision", "none"))
    if before not in ("none", precision):
        settings.fp32_precision = precision  # type: ignore[union-attr]
    return before


def _nnpack(on: bool) -> bool:
    return bool(torch.backends.nnpack.set_flags(on)[0])  # type: ignore[no-untyped-call]


def _cudnn(on: bool) -> bool:
    before = bool(torch.backends.cudnn.enabled)
    torch.backends.cudnn.enabled = on
    return before


def _default_dtype(dtype: torch.dtype) -> torch.dtype:
    before = torch.get_default_dtype()
    if before != dtype:
        torch.set_default_dtype(dtype)
    return before


def _deterministic(mode: int) -> int:
    """Set whether operators without a deterministic form raise (on a CPU all of ours have one); return what it was."""
    before = torch.get_deterministic_debug_mode()
    if before != mode:
        torch.set_deterministic_debug_mode(mode)
    return before


_flags = _Flags()

#: Devices whose autocast can be on in a thread that asks us something.
_DEVICES = ("cpu", "cuda")


@contextlib.contextmanager
def own_state() -> Iterator[None]:
    """Leave the caller's autocast inside, and go back to it after.

    What is proved is the network in its own dtype: autocast executes another one, so a warning says so.
    """
    cast = [device for device in _DEVICES if torch.is_autocast_enabled(device)]
    if not cast:  # almost always, and this is on the way of every small bound
        yield
        return
    warnings.warn(
        f"autocast is on ({', '.join(cast)}): what is computed here is about the network in its own dtype, not about "
        "its execution under autocast; leave autocast, or convert the network to the dtype that it shall run in",
        AutocastWarning,
        stacklevel=_users_frame(),
    )
    try:
        for device in cast:
            torch.set_autocast_enabled(device, False)
        yield
    finally:
        for device in cast:
            torch.set_autocast_enabled(device, True)


@contextlib.contextmanager
def kept_state() -> Iterator[None]:
    """Enter ``own_state`` for what is remembered: not in inference mode, whose tensors have no gradients later."""
    with own_state(), torch.inference_mode(False), torch.no_grad():
        yield


def _users_frame() -> int:
    """Count how far up the first caller outside of this package is, as ``warnings.warn`` counts."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in (
        "surebound",
        "contextlib",
    ):
        frame, level = frame.f_back, level + 1
    return level


@contextlib.contextmanager
def exact_kernels() -> Iterator[None]:
    """Forbid kernels that gamma_n does not cover: Winograd (NNPACK, cuDNN), TF32 and bfloat16 products, autocast.

    Not by PyTorch's own contexts, which take as long as a small layer. Threads may overlap.
    """
    with own_state():
        _flags.forbid()
        try:
            yield
        finally:
            _flags.allow()


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Make a million small objects inside of this, as long queries do: collections would look at them over and over.

    A query about 150,528 inputs is read in 1.0 instead of 2.3 s.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()

"""How PyTorch may compute products while sound bounds are computed: settings of the process, which threads share."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch

from surebound.errors import InputError


class _Flags:
    """Those settings, and how many want them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.found: tuple[str, str, bool, bool] | None = None  # what they were before the first user

    def forbid(self) -> None:
        """Set them, whatever they are now; every call pairs with one of ``allow``."""
        with self.lock:
            before = _matmul("highest"), _convolutions("ieee"), _nnpack(False), _cudnn(False)
            self.found = self.found or before
            self.users += 1

    def allow(self) -> None:
        """The last user puts them back."""
        with self.lock:
            self.users -= 1
            if self.users or self.found is None:
                return
            matmul, convolutions, nnpack, cudnn = self.found
            self.found = None
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


_flags = _Flags()


@contextlib.contextmanager
def exact_kernels() -> Iterator[None]:
    """Forbid kernels that gamma_n does not cover: Winograd (NNPACK, cuDNN), TF32 and bfloat16 products.

    Not by PyTorch's own contexts, which take as long as a small layer. Threads may overlap.
    """
    _flags.forbid()
    try:
        yield
    finally:
        _flags.allow()

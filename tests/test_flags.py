"""While sound bounds are computed PyTorch uses no products that their rounding bounds do not cover."""

import threading

import pytest
import torch

from surebound.errors import InputError
from surebound.flags import exact_kernels


def test_exact_kernels_restore_the_users_settings():
    torch.set_float32_matmul_precision("high")
    try:
        with exact_kernels():
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


def exact() -> bool:
    """Is all forbidden that exact_kernels forbids?"""
    nnpack = torch.backends.nnpack.set_flags(False)[0]
    torch.backends.nnpack.set_flags(nnpack)
    precise = torch.get_float32_matmul_precision() == "highest"
    whole = torch.backends.mkldnn.conv.fp32_precision in ("none", "ieee")
    return precise and whole and not nnpack and not torch.backends.cudnn.enabled


@pytest.fixture
def loose():
    """Settings of a user who prefers speed."""
    torch.set_float32_matmul_precision("medium")
    torch.backends.mkldnn.conv.fp32_precision = "bf16"
    yield
    torch.backends.mkldnn.conv.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")


def test_kernels_are_exact_inside_and_as_before_outside(loose):
    for _ in range(2):
        with exact_kernels():
            assert exact()
            with exact_kernels():
                assert exact()
            assert exact()
        assert torch.get_float32_matmul_precision() == "medium"
        assert torch.backends.mkldnn.conv.fp32_precision == "bf16"
        assert torch.backends.cudnn.enabled


def test_kernels_stay_exact_when_another_thread_leaves_first(loose):
    entered, left = threading.Event(), threading.Event()

    def other() -> None:
        with exact_kernels():
            entered.set()
            left.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    assert entered.wait(10)
    with exact_kernels():
        left.set()
        thread.join()
        assert exact()
    assert torch.get_float32_matmul_precision() == "medium"


def test_settings_that_cannot_be_put_back_are_refused_every_time():
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    try:
        for _ in range(2):
            with pytest.raises(InputError, match="to 'ieee' or 'none'"), exact_kernels():
                pass
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = "none"
    with exact_kernels():
        assert exact()

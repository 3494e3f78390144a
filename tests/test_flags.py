"""While sound bounds are computed PyTorch uses no products that their rounding bounds do not cover."""

import threading
import warnings

import pytest
import torch
from torch import nn

import surebound as sb
from surebound.errors import AutocastWarning, InputError
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


def test_default_dtype_and_deterministic_algorithms_are_ours_inside():
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True)
    try:
        with exact_kernels():
            assert torch.get_default_dtype() == torch.float32
            assert not torch.are_deterministic_algorithms_enabled()
        assert torch.get_default_dtype() == torch.float64
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_default_dtype(torch.float32)


def test_autocast_is_off_inside_and_on_again_after_an_error():
    def fail() -> None:
        with exact_kernels():
            assert not torch.is_autocast_enabled("cpu")
            raise ZeroDivisionError

    with torch.autocast("cpu", dtype=torch.bfloat16):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with pytest.raises(ZeroDivisionError):
                fail()
        assert torch.is_autocast_enabled("cpu")
    assert told[0].category is AutocastWarning and told[0].filename == __file__
    assert "about the network in its own dtype" in str(told[0].message)


@pytest.fixture
def close_call():
    """A network whose two weights are one number in bfloat16, and an input of which it says class 1."""
    net = nn.Linear(1, 2, bias=False).requires_grad_(False)
    net.weight.copy_(torch.tensor([[1.0], [1.001]]))
    return net, torch.tensor([[0.9]])


METHODS = ("interval", "zonotope", "symbolic", "crown-ibp", "crown", "wong", "alpha-crown")


@pytest.mark.parametrize("first", [True, False])
def test_verdicts_under_autocast_are_those_of_the_network(close_call, first):
    net, x = close_call
    region = sb.LinfBall(x, "1e-6")
    if not first:
        sb.interval_bounds(net, region)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with pytest.warns(AutocastWarning):
            (verdict,) = sb.decide(net, region, sb.Spec.label(0))
        with pytest.warns(AutocastWarning):
            (record,) = sb.verify(net, sb.LinfBall(x, "1e-6", clip=(0, 1)), torch.tensor([0]))
        with pytest.warns(AutocastWarning):
            attacked = sb.attack(net, region, torch.tensor([0]))
    assert verdict.status.value == record.verdict.status.value == "falsified"
    assert bool(attacked.success.all())


@pytest.mark.parametrize("method", METHODS)
def test_bounds_under_autocast_are_those_without(method):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)).requires_grad_(False)
    region, labels = sb.LinfBall(torch.rand(3, 4), "1/50"), torch.tensor([0, 1, 2])
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.warns(AutocastWarning):
        found = sb.worst_margins(net, region, labels, method=method)
    torch.testing.assert_close(found, sb.worst_margins(net, region, labels, method=method), rtol=0, atol=0)

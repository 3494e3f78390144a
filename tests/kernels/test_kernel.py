"""The mechanism: every compiled function has a reference of the same parameters, and calls always answer."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from surebound.kernels import build, ends, kernel
from surebound.kernels.build import Entry
from surebound.kernels.kernel import Declined
from tests.kernels.conftest import KERNELS

CALLERS = """
import torch, surebound as sb
from surebound.kernels import build
from surebound.train.methods import CROWNIBP, IBP, Wong
from benchmarks.bench_training import loop_for
assert build.library() is None
net, x = sb.models.small((1, 28, 28)).eval(), torch.rand(3, 1, 28, 28)
region = sb.LinfBall(x, "1/100", clip=(0, 1))
box = sb.interval_bounds(net, region)
labels = net(x).argmax(1)
linear = sb.worst_margins(net, region, labels, method="crown")
assert bool((net(x) - net(x).gather(1, labels[:, None]) <= linear + 1e-5).all())
assert bool((box.lower <= net(x)).all() and (net(x) <= box.upper).all())
for method in (IBP(), CROWNIBP(beta_final=1.0, fused=False), Wong(projections=4)):
    loop_for(sb.models.small(batch_norm=True), method, 4).advance()
"""


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_a_kernel_and_its_reference_have_the_same_parameters(name: str) -> None:
    each = KERNELS[name]
    _, *mine = inspect.signature(each.body).parameters.values()
    theirs = inspect.signature(each.reference).parameters.values()
    assert [(p.name, p.default, p.kind) for p in mine] == [(p.name, p.default, p.kind) for p in theirs]
    assert each.__doc__


def test_every_compiled_function_belongs_to_a_kernel() -> None:
    assert set(build.prototypes(build.SOURCE)) == {*KERNELS, "products_pay", "matrices_pay"}
    assert all(arguments[-1].split() == ["int64_t", "threads"] for _, arguments in _prototypes())


def _prototypes() -> list[tuple[str, list[str]]]:
    return list(build.prototypes(build.SOURCE).values())


def test_arguments_are_declared_as_the_source_says() -> None:
    source = "int64_t surebound_f(const double *const *x, float y,\\n  double z, int64_t threads) {".replace(
        "\\n", "\n"
    )
    (found,) = build.prototypes(source).items()
    assert found[0] == "f"
    assert found[1][0] == "int64_t"
    assert [a.split()[0] for a in found[1][1]] == ["const", "float", "double", "int64_t"]


def _double(x: Tensor, y: Tensor | None = None) -> Tensor:
    return x * 2


def _declared(**declared: object) -> kernel.Kernel[..., Tensor]:
    def body(run: Entry, x: Tensor, y: Tensor | None = None) -> Tensor:
        if y is not None and float(y.flatten()[0]) < 0:
            raise Declined
        return torch.full_like(x, 7.0)

    body.__name__ = "paid"  # any function of the library
    return kernel.kernel(reference=_double, **declared)(body)  # type: ignore[arg-type,return-value]


def test_what_does_not_lie_as_declared_goes_to_the_reference() -> None:
    if build.library() is None:
        pytest.skip("no C compiler here")
    plain, alike = _declared(plain="x y"), _declared(alike="x y")
    x = torch.ones(2, 3, 4, 5)
    innermost = x.contiguous(memory_format=torch.channels_last)
    assert bool((plain(x) == 7).all() and (plain(x, y=x) == 7).all() and (alike(innermost, innermost) == 7).all())
    for made, args in (
        (plain, (x.double(),)),
        (plain, (x.mT,)),
        (plain, (x, innermost)),
        (plain, (x.clone().requires_grad_(),)),
        (plain, (x, -x)),  # declined
        (alike, (x, innermost)),
        (alike, (x[:, :, ::2], x[:, :, ::2])),
        (alike, (x, x[0])),
        (_declared(plain="x", worth=121), (x,)),
        (_declared(plain="x", fits=lambda x, y=None: False), (x,)),
    ):
        assert torch.equal(made(*args), args[0] * 2)


def test_tensors_of_other_devices_go_to_the_reference() -> None:
    assert _declared(plain="x")(torch.ones(2, device="meta")).is_meta
    assert not _declared(plain="x").applies(torch.ones(2, device="meta"))


def test_gradients_are_left_to_the_reference_unless_switched_off() -> None:
    if build.library() is None:
        pytest.skip("no C compiler here")
    x = torch.rand(ends.WORTH).reshape(1, -1).requires_grad_()
    low, _ = ends.ball(x, 0.1, 0.0, 1.0)
    assert low.requires_grad
    with torch.no_grad():
        assert not ends.ball(x, 0.1, 0.0, 1.0)[0].requires_grad


def test_everything_works_with_the_library_switched_off() -> None:
    """In a process of its own, by the variable that users set."""
    done = subprocess.run(
        [sys.executable, "-c", CALLERS],
        cwd=Path(__file__).parents[2],
        env={**os.environ, build.SWITCH: "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr

"""Nothing names a device: bounds, attacks and training run where the network is.

There need be no other device: ``Elsewhere`` is a tensor that says it is on one, computes here, and refuses what CUDA
refuses, an operand with axes from the main memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import surebound as sb
from surebound.attack.methods import BY_NAME
from surebound.bounds import training_pass
from surebound.bounds.margins import METHODS
from surebound.graph import Graph, Program, program_of
from surebound.region import LinfBall

DEVICE = torch.device("meta")  # any other than the default; nothing is computed on it
#: What CUDA tensors may do with tensors of the main memory: be indexed by them, and be copied to or from them.
ACROSS = {"aten.index.Tensor", "aten.index_put_.default", "aten.copy_.default", "aten._to_copy.default"}


class Elsewhere(Tensor):
    """Numbers of the main memory that pretend to be on another device."""

    here: Tensor

    @staticmethod
    def __new__(cls, here: Tensor) -> Elsewhere:
        strides, offset = here.stride(), here.storage_offset()
        made: Elsewhere = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, here.shape, strides, offset, dtype=here.dtype, device=DEVICE
        )
        made.here = here
        return made

    def tolist(self) -> Any:
        return self.here.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


class Numbers(TorchFunctionMode):
    """So that tensors are made of Python's numbers elsewhere when that is said: no operator is dispatched for it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.new_tensor and isinstance(args[0], Elsewhere):
            return Elsewhere(args[0].here.new_tensor(*args[1:], **kwargs))
        if func is torch.tensor and kwargs.get("device") == DEVICE:
            return Elsewhere(torch.tensor(*args, **{**kwargs, "device": None}))
        return func(*args, **kwargs)


class Operators(TorchDispatchMode):
    """So that factories make tensors elsewhere when they are told to."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


def run(func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operator here on what is elsewhere; fail on a mix."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    away = any(isinstance(value, Elsewhere) for value in tensors)
    stray = [value for value in tensors if not isinstance(value, Elsewhere) and value.dim()]
    if away and stray and str(func) not in ACROSS:
        raise AssertionError(f"{func}: an operand of shape {tuple(stray[0].shape)} is not on the device")
    device = kwargs.get("device")
    inside = {**kwargs, "device": torch.device("cpu")} if device is not None else kwargs
    args_here, kwargs_here = tree_map(lambda v: v.here if isinstance(v, Elsewhere) else v, (args, inside))
    out = func(*args_here, **kwargs_here)
    written = [
        value
        for argument, value in zip(func._schema.arguments, args, strict=False)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    written += [kwargs[a.name] for a in func._schema.arguments if a.is_out and a.name in kwargs]
    if written:
        return written[0] if len(written) == 1 else tuple(written)
    if (away and device is None) or device == DEVICE:
        return tree_map(lambda v: Elsewhere(v) if isinstance(v, Tensor) else v, out)
    return out


def moved(net: nn.Module) -> nn.Module:
    """The network with its parameters and buffers elsewhere."""
    for module in net.modules():
        for name, value in module._parameters.items():
            if value is not None:
                module._parameters[name] = nn.Parameter(Elsewhere(value.detach()))
        for name, value in module._buffers.items():
            if value is not None:
                module._buffers[name] = Elsewhere(value)
    return net


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 12),
        nn.Sigmoid(), nn.Linear(12, 4),
    ).eval()  # fmt: skip


@pytest.fixture(scope="module")
def graph() -> Graph:
    return program_of(network(), torch.rand(3, 1, 8, 8)).graph


@pytest.fixture
def case(graph: Graph) -> Iterator[tuple[Program, Program, Tensor, Tensor]]:
    """The network here and elsewhere, with images and labels here."""
    x, labels = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 2, 3])
    here, away = Program(graph, network()), Program(graph, moved(network()))
    with Numbers(), Operators():
        yield here, away, x, labels


def same(found: Tensor, expected: Tensor) -> None:
    assert isinstance(found, Elsewhere)
    torch.testing.assert_close(found.here.detach(), expected.detach(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("mode", ["none", "real", "deployed"])
def test_interval_bounds(case, mode):
    here, away, x, _ = case
    expected = sb.interval_bounds(here, LinfBall(x, "1/50", clip=(0, 1)), mode)
    found = sb.interval_bounds(away, LinfBall(Elsewhere(x), "1/50", clip=(0, 1)), mode)
    same(found.lower, expected.lower)
    same(found.upper, expected.upper)


@pytest.mark.parametrize("method", [name for name in METHODS if name != "raghunathan"])  # for one hidden layer
def test_margins_by_every_method(case, method):
    here, away, x, labels = case
    expected = sb.worst_margins(here, LinfBall(x, "1/50", clip=(0, 1)), labels, method=method)
    region = LinfBall(Elsewhere(x), "1/50", clip=(0, 1))
    same(sb.worst_margins(away, region, Elsewhere(labels), method=method), expected)


@pytest.mark.parametrize("statistics", [False, True])
@pytest.mark.parametrize("fast", [False, True])
def test_a_training_step(case, fast, statistics):
    here, away, x, labels = case
    gradients = []
    for net, images, truth in ((here, x, labels), (away, Elsewhere(x), Elsewhere(labels))):
        done = training_pass(net, images, truth, 0.02, batch_statistics=statistics, record=True, fast=fast)
        (nn.functional.cross_entropy(done.margins, truth) + done.logits.square().mean()).backward()
        gradients.append([p.grad for p in net.module.parameters()])
    for found, expected in zip(gradients[1], gradients[0], strict=True):
        same(found, expected)


@pytest.mark.parametrize("method", [sb.training.MTLIBP(), sb.training.SABR(), sb.training.TAPS(steps=2)])
def test_a_step_of_the_methods_with_an_attack_inside(case, method):
    here, away, x, labels = case
    losses = []
    for net, images, truth in ((here, x, labels), (away, Elsewhere(x), Elsewhere(labels))):
        draws = torch.Generator().manual_seed(0)
        batch = sb.training.Batch(net.module, images, truth, 0.02, 0.04, 0.0, 0, draws, traced=net)
        losses.append(method.loss(batch).value)
    same(losses[1], losses[0])


@pytest.mark.parametrize("name", BY_NAME)
def test_attacks(case, name):
    here, away, x, labels = case
    ball, other = sb.LinfBall(x, "1/10", clip=(0, 1)), sb.LinfBall(Elsewhere(x), "1/10", clip=(0, 1))
    expected = sb.attack(here.module, ball, labels, BY_NAME[name](), seed=1)
    found = sb.attack(away.module, other, Elsewhere(labels), BY_NAME[name](), seed=1)
    assert isinstance(found.success, Elsewhere)
    assert torch.equal(found.success.here, expected.success)


def test_the_pretence_catches_a_tensor_that_was_made_here(case, monkeypatch):
    """As margins.py once made it: the classes that are not the label."""
    _, away, x, labels = case

    def careless(truth: Tensor, outputs: int) -> Tensor:
        first = torch.arange(outputs - 1)
        return (first + (first >= truth.unsqueeze(1))).to(truth)

    from surebound.bounds import margins

    monkeypatch.setattr(margins, "other_classes", careless)
    with pytest.raises(AssertionError, match=r"an operand of shape \(3,\) is not on the device"):
        sb.worst_margins(away, LinfBall(Elsewhere(x), "1/50"), Elsewhere(labels), method="crown-ibp")

"""Tracing: nothing of the network is lost, the module is left alone, and refusals say why."""

from __future__ import annotations

import logging
import types

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import surebound as sb
from surebound.errors import (
    DataDependentError,
    GraphError,
    InputError,
    TraceMismatchError,
    UnsupportedOperatorError,
)
from surebound.graph import forget, program_of, trace


class InPlaceView(nn.Module):
    """Half of the activations are rectified through a view: lost by tracers that do not functionalise."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        v = h[:, :2]
        v.relu_()
        return h


class Shared(nn.Module):
    """One submodule used twice, one tensor used three times, buffers, constants, concatenation, padding."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.register_buffer("shift", torch.tensor([0.1, 0.2, 0.3]))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.fc(x + self.shift))
        h = self.fc(h) - h * 0.5
        h = torch.cat([h, F.pad(x, (0, 1))[:, 1:]], 1)
        return h.reshape(x.shape[0], 2, 3).permute(0, 2, 1).flatten(1) + torch.tensor(0.25)


def _contains_samples(net: nn.Module, x: Tensor, eps: str = "1/10") -> None:
    bounds = sb.interval_bounds(net, sb.LinfBall(x, eps))
    generator = torch.Generator().manual_seed(1)
    for _ in range(100):
        point = x + (torch.rand(x.shape, generator=generator) * 2 - 1) / 10
        assert bool(bounds.contains(net(point)).all())


@pytest.mark.parametrize("build", [InPlaceView, Shared])
def test_program_equals_module_and_bounds_hold(build):
    torch.manual_seed(0)
    net = build()
    x = torch.randn(5, net.fc.in_features)
    program = trace(net, x)
    assert torch.equal(program(x), net(x))
    assert torch.equal(program(x[:1]), net(x[:1]))
    _contains_samples(net, x)


def test_mutation_through_a_view_is_seen_by_the_bounds():
    net = InPlaceView()
    bounds = sb.interval_bounds(net, sb.LinfBall(torch.randn(8, 4), 1), "none")
    assert bool((bounds.lower[:, :2] >= 0).all()) and bool((bounds.lower[:, 2:] < 0).any())


def test_parameters_are_live_and_gradients_reach_them():
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    region = sb.LinfBall(torch.randn(3, 2), "1/4")
    before = sb.interval_bounds(net, region, "none").upper
    before.sum().backward()
    assert net[0].weight.grad is not None and bool(net[2].weight.grad.any())
    with torch.no_grad():
        net[2].bias += 1
    torch.testing.assert_close(sb.interval_bounds(net, region, "none").upper, before + 1)
    net[2] = nn.Linear(2, 1)
    net[2].weight.data.zero_()
    assert bool((sb.interval_bounds(net, region, "none").upper == net[2].bias).all())


def test_the_users_modes_are_restored_and_eval_is_traced():
    net = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.ReLU())
    net.train()
    net[1].eval()
    trace(net, torch.zeros(4, 2))
    assert net.training and not net[1].training and net[2].training
    assert net[2].num_batches_tracked == 0


def test_traced_once_per_shape_and_forgotten_with_the_module():
    net = nn.Linear(2, 2)
    first = program_of(net, torch.zeros(1, 2)).graph
    assert program_of(net, torch.zeros(7, 2)).graph is first
    assert program_of(net.double(), torch.zeros(1, 2, dtype=torch.float64)).graph is not first
    forget(net)
    assert program_of(net.float(), torch.zeros(1, 2)).graph is not first


def test_network_that_fixes_its_batch_size():
    class Fixed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(x.view(4, 2, 3).sum(1))

    x = torch.randn(4, 6)
    assert trace(Fixed(), x).graph.input_shape == (4, 6)
    _contains_samples(Fixed(), x)


def test_float64_networks():
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    bounds = sb.interval_bounds(net, sb.LinfBall(torch.randn(2, 3, dtype=torch.float64), "1/10"))
    assert bounds.lower.dtype == torch.float64


def test_data_dependent_control_flow_is_named(capfd):
    class Branch(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(DataDependentError, match="torch.where, torch.maximum, clamp"):
        trace(Branch(), torch.zeros(2, 3))
    assert capfd.readouterr() == ("", "")  # PyTorch prints graphs


def test_inputs_that_do_not_fit_the_network(capfd, caplog):
    net = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(8, 2))
    disabled = logging.getLogger("torch._subclasses.fake_tensor").disabled
    with pytest.raises(InputError, match=r"the network does not take inputs of shape \(1, 4, 4\) \(.* channels"):
        trace(net, torch.zeros(2, 1, 4, 4))
    wide = sb.LinfBall(torch.zeros(2, 3, 4, 4).double(), "1/10")
    for unfit in (net, net[1:]):  # a convolution fails when traced, a dense layer when run
        region = wide if unfit is net else sb.LinfBall(torch.zeros(2, 8).double(), "1/10")
        with pytest.raises(InputError, match="the inputs are float64, the network float32: convert one"):
            sb.worst_margins(unfit, region, torch.zeros(2).long())
    assert capfd.readouterr() == ("", "") and not caplog.records
    assert logging.getLogger("torch._subclasses.fake_tensor").disabled == disabled


def test_random_networks_are_refused():
    class Noisy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.rand_like(x)

    with pytest.raises(TraceMismatchError, match="Make it a function of its input"):
        trace(Noisy(), torch.zeros(2, 3))


def test_every_unsupported_operator_is_listed_with_its_place():
    class Exotic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(3, 3))

        def forward(self, x: Tensor) -> Tensor:
            h = torch.special.bessel_j0(self.inner(x))
            return torch.digamma(h)

    with pytest.raises(UnsupportedOperatorError) as caught:
        sb.interval_bounds(Exotic(), sb.LinfBall(torch.zeros(1, 3), 1))
    message = str(caught.value)
    assert "2 operator call(s)" in message
    assert "aten.special_bessel_j0.default" in message and "aten.digamma.default" in message
    assert "test_trace.py" in message and "torch.digamma(h)" in message
    assert "surebound ops" in message and "CONTRIBUTING" in message


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (lambda x: (x, x), r"returns a tuple of 2; .*sb.choose\(net, 0\)"),
        (lambda x: {"a": x, "b": x}, r"returns a dict with 'a', 'b'; .*sb.choose\(net, 'a'\)"),
    ],
)
def test_networks_with_several_outputs_are_refused(forward, message):
    class Many(nn.Module):
        def forward(self, x: Tensor):
            return forward(x)

    with pytest.raises(InputError, match=message):
        trace(Many(), torch.zeros(2, 3))


class Several(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer, self.kind = nn.Linear(3, 2), kind

    def forward(self, x: Tensor):
        z = self.layer(x)
        made = {"dict": {"logits": z, "x": x}, "tuple": (x, z), "object": types.SimpleNamespace(logits=z), "tensor": z}
        return made[self.kind]


@pytest.mark.parametrize(("kind", "output"), [("dict", "logits"), ("tuple", 1), ("tuple", "-1"), ("object", "logits")])
def test_one_of_several_outputs_is_chosen(kind, output):
    net, x = Several(kind), torch.rand(2, 3)
    region = sb.LinfBall(x, "1/10")
    for made in (sb.interval_bounds(sb.choose(net, output), region), sb.interval_bounds(net.layer, region)):
        assert torch.equal(made.upper, sb.interval_bounds(net.layer, region).upper)


@pytest.mark.parametrize(
    ("kind", "output", "message"),
    [
        ("dict", "z", "no output 'z'; the network returns 'logits', 'x'"),
        ("tuple", 2, "no output 2; the network returns 2: 0 to 1"),
        ("tuple", "logits", "no output 'logits'; the network returns a tuple"),
        ("tensor", 0, "no output 0; the network returns a tensor"),
        ("object", 0, "no output 0; the network returns a SimpleNamespace"),
    ],
)
def test_an_output_that_is_not_there(kind, output, message):
    with pytest.raises(InputError, match=message):
        sb.choose(Several(kind), output)(torch.zeros(1, 3))
    with pytest.raises(InputError, match="by its name or place; float is neither"):
        sb.choose(Several(kind), 0.5)


@pytest.mark.filterwarnings("ignore")  # PyTorch's, about both
def test_what_no_tracer_reads_says_what_to_do():
    net, region = nn.Sequential(nn.Linear(3, 2)), sb.LinfBall(torch.zeros(1, 3), 1)
    script = torch.jit.trace(net, torch.zeros(1, 3))
    for each in (script, nn.Sequential(script)):
        with pytest.raises(GraphError, match=r"TorchScript[\s\S]*give the nn.Module that it was made from"):
            sb.interval_bounds(each, region)
    packed = torch.ao.quantization.quantize_dynamic(net, {nn.Linear})
    with pytest.raises(GraphError, match=r"packed integers \(at 0\)[\s\S]*quantise an ONNX export"):
        sb.interval_bounds(packed, region)


def test_wrong_inputs_are_refused():
    program = trace(nn.Linear(3, 2), torch.zeros(1, 3))
    with pytest.raises(InputError, match=r"traced for \(B, 3\)"):
        program(torch.zeros(1, 4))
    with pytest.raises(InputError, match="convert it with x.to"):
        program(torch.zeros(1, 3, dtype=torch.float64))
    with pytest.raises(InputError, match="give a torch.nn.Module"):
        trace(lambda x: x, torch.zeros(1, 3))  # type: ignore[arg-type]


def test_a_network_that_ignores_its_input_is_a_point():
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.value = nn.Parameter(torch.ones(1, 2))

        def forward(self, x: Tensor) -> Tensor:
            return self.value * 2

    bounds = sb.interval_bounds(Constant(), sb.LinfBall(torch.zeros(1, 3), 1))
    assert bounds.lower.tolist() == [[2.0, 2.0]] and bounds.upper.tolist() == [[2.0, 2.0]]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_named(value):
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    net[2].weight.data[1, 0] = value
    with pytest.raises(GraphError, match=r"^2\.weight of the network hold\(s\) NaN or infinite values"):
        trace(net, torch.zeros(1, 3))


def test_outputs_that_are_not_finite_are_explained():
    class Root(nn.Module):
        def forward(self, x):
            return torch.sqrt(x - 2)

    with pytest.raises(
        GraphError,
        match=r"NaN or infinite on random inputs.*first NaN in .*torch.sqrt\(x - 2\); look.*negative numbers",
    ):
        trace(Root(), torch.zeros(1, 3))

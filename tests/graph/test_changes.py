"""What is bounded is the network as it is now: every change that tracing could see is seen."""

from __future__ import annotations

import collections
import functools
import gc
import threading
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import surebound as sb
from surebound.errors import AutocastWarning, TraceMismatchError
from surebound.graph import digest, program_of, trace
from surebound.graph.fingerprint import Fingerprint


class Net(nn.Module):
    """A network whose state is in every place that a forward pass can read."""

    factor = 1.0  # of the class

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 3), nn.LeakyReLU(0.1), nn.Linear(3, 2))
        self.shift = torch.zeros(2)  # a plain attribute, no buffer
        self.options = {"scales": [1.0, 1.0]}
        self.power = 1
        self.register_buffer("mask", torch.ones(2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.body(x) * self.factor * self.options["scales"][0] * self.power * self.mask
        return made + self.shift


def _swap(net: Net) -> None:
    net.body[1] = nn.Tanh()


def _class_attribute(net: Net) -> None:
    type(net).factor = 3.0


CHANGES: dict[str, Callable[[Net], object]] = {
    "float attribute": lambda net: setattr(net.body[1], "negative_slope", 5.0),
    "int attribute": lambda net: setattr(net, "power", 7),
    "plain tensor replaced": lambda net: setattr(net, "shift", torch.ones(2)),
    "plain tensor in place": lambda net: net.shift.add_(1),
    "list in a dictionary": lambda net: net.options["scales"].__setitem__(0, 4.0),
    "submodule swapped": _swap,
    "append": lambda net: net.body.append(nn.Linear(2, 2)),
    "forward hook": lambda net: net.body.register_forward_hook(lambda m, i, out: out * 3),
    "pre-hook": lambda net: net.register_forward_pre_hook(lambda m, args: (args[0] + 1,)),
    "non-persistent buffer": lambda net: net.mask.mul_(3),
    "parameter": lambda net: net.body[0].weight.data.mul_(3),
    "parameter replaced": lambda net: setattr(net.body[0], "weight", nn.Parameter(torch.ones(3, 2))),
    "forward of the instance": lambda net: setattr(net, "forward", lambda x: 3 * net.body(x)),
    "class attribute": _class_attribute,
}


@pytest.fixture
def net() -> Net:
    torch.manual_seed(1)
    return type("Own", (Net,), {})()  # a class of its own, so that a test may change it


@pytest.mark.parametrize("name", CHANGES)
@torch.no_grad()
def test_bounds_after_a_change_are_those_of_a_fresh_trace(net: Net, name: str) -> None:
    region = sb.LinfBall(torch.tensor([[0.3, 0.4]]), "1/100")
    before, known = sb.interval_bounds(net, region), digest(program_of(net, region.x))
    CHANGES[name](net)
    after = sb.interval_bounds(net, region)
    assert bool(after.contains(net(region.x)).all())
    fresh = trace(net, region.x)
    torch.testing.assert_close(after.upper, sb.interval_bounds(fresh, region).upper, rtol=0, atol=0)
    assert not torch.equal(before.upper, after.upper)
    assert digest(program_of(net, region.x)) == digest(fresh) != known


def test_nothing_is_traced_twice_without_a_change(net: Net) -> None:
    x = torch.rand(1, 2)
    graph = program_of(net, x).graph
    net.train()
    net(x).sum().backward()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter -= 0.1 * parameter.grad
    net.load_state_dict({key: value + 1 for key, value in net.state_dict().items()})
    for batch in (x, x.expand(4, 2)):
        assert program_of(net, batch).graph is graph
    assert net.training
    net.body[1].negative_slope = 0.1 + 0.0  # the same number, another object
    assert program_of(net, x).graph is graph


@torch.no_grad()
def test_a_variable_that_a_hook_closes_over_is_seen(net: Net) -> None:
    factor, region = 2.0, sb.LinfBall(torch.tensor([[0.3, 0.4]]), "1/100")
    net.body.register_forward_hook(lambda m, i, out: factor * out)
    assert bool(sb.interval_bounds(net, region).contains(net(region.x)).all())
    factor = 5.0
    assert bool(sb.interval_bounds(net, region).contains(net(region.x)).all())


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.read, self.head = nn.LSTM(2, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        _, (h, _) = self.read(x)
        made: Tensor = self.head(h[-1])
        return made


RENEWED: dict[str, Callable[[nn.LSTM], object]] = {
    "in place": lambda read: read.weight_ih_l0.add_(1),
    "data": lambda read: setattr(read.weight_ih_l0, "data", torch.rand(12, 2)),
    "replaced": lambda read: setattr(read, "weight_ih_l0", nn.Parameter(torch.rand(12, 2))),
    "loaded": lambda read: read.load_state_dict({k: 2 * v for k, v in read.state_dict().items()}, assign=True),
}


@pytest.mark.parametrize("name", RENEWED)
@torch.no_grad()
def test_recurrent_layers_are_not_traced_again_for_new_weights_and_bounded_with_them(name: str) -> None:
    torch.manual_seed(0)
    net, region = Recurrent(), sb.LinfBall(torch.rand(1, 4, 2), "1/100")
    before, seen = sb.interval_bounds(net, region), Fingerprint(net)
    RENEWED[name](net.read)
    assert Fingerprint(net) == seen
    after, fresh = sb.interval_bounds(net, region), Recurrent()
    fresh.load_state_dict(net.state_dict())
    torch.testing.assert_close(after.upper, sb.interval_bounds(fresh, region).upper, rtol=0, atol=0)
    assert not torch.equal(before.upper, after.upper)


@torch.no_grad()
def test_a_recurrent_layer_that_lists_another_weight_than_its_own_is_refused() -> None:
    net, region = Recurrent(), sb.LinfBall(torch.rand(1, 4, 2), "1/100")
    sb.interval_bounds(net, region)
    seen = Fingerprint(net)
    net.read._flat_weights[0] = 3 * net.read._flat_weights[0]
    assert Fingerprint(net) != seen
    with pytest.raises(TraceMismatchError):
        sb.interval_bounds(net, region)


def test_forget_traces_again(net: Net) -> None:
    x = torch.rand(1, 2)
    graph = program_of(net, x).graph
    sb.forget(net)
    assert program_of(net, x).graph is not graph
    sb.forget(nn.Linear(1, 1))  # unknown: nothing to do


def test_a_known_network_can_be_let_go() -> None:
    """Also one whose part has a hook that is a method of the whole."""

    class Watching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = nn.Linear(2, 2)
            self.part.register_forward_hook(self.watch)

        def watch(self, module: nn.Module, inputs: object, output: Tensor) -> Tensor:
            return 2 * output

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.part(x)
            return made

    net = Watching()
    program_of(net, torch.rand(1, 2))
    seen = weakref.ref(net)
    del net
    gc.collect()
    assert seen() is None


def test_fingerprints_tell_zeros_apart_and_know_nan() -> None:
    net = nn.LeakyReLU(0.0)
    seen = Fingerprint(net)
    net.negative_slope = -0.0
    assert Fingerprint(net) != seen
    net.negative_slope = float("nan")
    assert Fingerprint(net) == Fingerprint(net)


class ByBatchSize(nn.Module):
    """Another function for a single input."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] == 1:
            return x.flip(1)
        return x


def test_another_function_for_a_single_input_is_refused() -> None:
    images, labels = torch.tensor([[0.6, 0.4]]), torch.tensor([0])
    for call in (
        lambda: sb.verify(ByBatchSize(), sb.LinfBall(images, "1/100"), labels),
        lambda: sb.interval_bounds(ByBatchSize(), sb.LinfBall(images.expand(4, 2), "1/100")),
        lambda: sb.decide(ByBatchSize(), sb.LinfBall(images, "1/100"), sb.Spec.label(0)),
    ):
        with pytest.raises(TraceMismatchError, match="does it look at the batch size"):
            call()


class Counting(nn.Module):
    """Looks at the size of its batch where a tracer does not see it."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (3.0 if int(str(x.shape[0]) == "7") and not torch.compiler.is_exporting() else 1.0)


def test_every_batch_size_that_is_asked_for_is_tried() -> None:
    net = Counting()
    sb.interval_bounds(net, sb.LinfBall(torch.rand(3, 2), "1/100"))
    with pytest.raises(TraceMismatchError, match=r"differs from the module by .* on 7 random"):
        sb.interval_bounds(net, sb.LinfBall(torch.rand(7, 2), "1/100"))


class Noise(nn.Module):
    def __init__(self, size: float) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_exporting():
            return x * 1.0
        return x + self.size * torch.rand_like(x)


@pytest.mark.parametrize("size", [1e-5, 1e-7, 1.0])
def test_noise_of_any_size_is_refused(size: float) -> None:
    with pytest.raises(TraceMismatchError, match=r"is forward\(\) random"):
        trace(Noise(size), torch.rand(2, 3))


def test_two_threads_may_trace_at_once() -> None:
    nets = [nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2)) for _ in range(2)]
    x, found, failed = torch.rand(2, 2), list[Tensor](), list[BaseException]()

    def work(net: nn.Module) -> None:
        try:
            found.append(sb.interval_bounds(net, sb.LinfBall(x, "1/10")).upper)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(nets[i % 2],)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and len(found) == 6
    assert all(net.training for net in nets)


def test_a_trace_under_autocast_is_that_of_the_network(net: Net) -> None:
    x = torch.rand(1, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.warns(AutocastWarning, match="autocast is on"):
        found = program_of(net, x)
    assert digest(found) == digest(trace(net, x))


def test_a_trace_in_inference_mode_can_be_differentiated_later(net: Net) -> None:
    region = sb.LinfBall(torch.rand(1, 2), "1/10")
    with torch.inference_mode():
        sb.interval_bounds(net, region)
    sb.interval_bounds(net, region, "none").upper.sum().backward()
    assert net.body[0].weight.grad is not None


class Filled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.full((2,), 0.1)


def test_constants_made_in_forward_keep_the_dtype_that_they_were_traced_with() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        x = torch.rand(1, 2)
        net = Filled()
        bounds, expected = sb.interval_bounds(net, sb.LinfBall(x, "1/10")), net(x)
        assert bounds.upper.dtype == torch.float64
        assert bool(bounds.contains(expected).all())
    finally:
        torch.set_default_dtype(torch.float32)
    point = sb.LinfBall(x, 0)
    assert bool(sb.interval_bounds(net, point).contains(net(x)).all())  # now it adds the float32 closest to 0.1
    assert not bool(sb.interval_bounds(net, point).contains(expected).any())


class Slotted:
    __slots__ = ("k",)

    def __init__(self, k: float) -> None:
        self.k = k


class Holder:
    """Reads its number through something that is no plain attribute."""

    shared = [0.0]  # noqa: RUF012

    def method(self) -> float:
        return self.k

    def __init__(self) -> None:
        self.k = 0.0


HOLDERS = {
    "slots": (lambda: Slotted(0.0), lambda h: h.k, lambda h: setattr(h, "k", 20.0)),
    "partial": (lambda: functools.partial(max, [0.0]), lambda h: h(), lambda h: h.args[0].__setitem__(0, 20.0)),
    "deque": (lambda: collections.deque([0.0]), lambda h: h[0], lambda h: h.__setitem__(0, 20.0)),
    "bound method": (lambda: Holder().method, lambda h: h(), lambda h: setattr(h.__self__, "k", 20.0)),
    "deep": (lambda: [[[[[[{"k": 0.0}]]]]]], lambda h: h[0][0][0][0][0][0]["k"],
             lambda h: h[0][0][0][0][0][0].__setitem__("k", 20.0)),
    "module in a list": (lambda: [nn.LeakyReLU(0.0)], lambda h: h[0].negative_slope,
                         lambda h: setattr(h[0], "negative_slope", 20.0)),
    "class of an object": (lambda: Holder(), lambda h: h.shared[0], lambda h: h.shared.__setitem__(0, 20.0)),
    "defaults": (lambda: (lambda k=[0.0]: k[0]), lambda h: h(), lambda h: h.__defaults__[0].__setitem__(0, 20.0)),
}  # fmt: skip


@pytest.mark.parametrize("name", HOLDERS)
def test_what_forward_reads_through_other_objects_is_seen(name: str) -> None:
    make, read, change = HOLDERS[name]

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.holder = make()

        def forward(self, x: Tensor) -> Tensor:
            bend = 0.3 + 0.5 * x[:, 0] - read(self.holder) * torch.relu(x[:, 0] - 0.64)
            return torch.stack([bend, 0.5 + 0 * x[:, 1]], 1)

    net, region = Net(), sb.LinfBall(torch.tensor([[0.6, 0.4]]), "1/20", clip=(0, 1))
    labels = torch.tensor([0])
    try:
        assert bool((sb.worst_margins(net, region, labels) <= 0).all())
        change(net.holder)
        assert net(torch.tensor([[0.65, 0.4]])).argmax() == 1
        assert not bool((sb.worst_margins(net, region, labels) <= 0).all())
    finally:
        Holder.shared[0] = 0.0


def test_an_object_that_cannot_be_looked_into_is_traced_every_time() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator = (i for i in range(3))

        def forward(self, x: Tensor) -> Tensor:
            return 2 * x

    net = Net()
    assert Fingerprint(net) != Fingerprint(net)
    assert Fingerprint(nn.Linear(1, 1)) == Fingerprint(nn.Linear(1, 1))
    bounds = sb.interval_bounds(net, sb.LinfBall(torch.zeros(1, 1), 1), "none")
    assert bounds.upper.item() == 2

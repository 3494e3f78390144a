"""The training pass: fused and plain columns agree; BatchNorm behaves as in ordinary training."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import surebound as sb
from surebound import models
from surebound.bounds import TrainingPass, training_pass
from surebound.bounds.training import engine
from surebound.graph import Node, program_of
from surebound.rules import layouts


def switch_off_half(net: nn.Module) -> None:
    """Biases that turn half of the channels off for any image, as trained networks have."""
    with torch.no_grad():
        for module in net.modules():
            known = isinstance(module, (nn.Conv2d, nn.Linear, nn.BatchNorm2d, nn.BatchNorm1d))
            if known and module.bias is not None and module.bias.shape[0] > 10:
                module.bias[: module.bias.shape[0] // 2] -= 8.0


def run(
    net: nn.Module, x: Tensor, labels: Tensor, **options: bool
) -> tuple[Tensor, list[Tensor], TrainingPass, nn.Module]:
    net = copy.deepcopy(net)
    done = training_pass(program_of(net, x), x, labels, 0.02, **options)
    loss = F.cross_entropy(done.margins, labels) if done.margins is not None else torch.zeros(())
    if done.logits is not None:
        loss = loss + F.cross_entropy(done.logits, labels)
    weights = torch.tensor([0.3, 1.0, 2.0, 0.5, -0.2, 3.0, 0.4, 0.1], dtype=torch.float64)
    loss = loss + sum((m.sums * weights).sum().to(loss.dtype) / m.units for m in done.pre_activations)
    loss.backward()
    return (
        loss.detach(),
        [p.grad if p.grad is not None else torch.zeros_like(p) for p in net.parameters()],
        done,
        net,
    )


class Sums(nn.Module):
    """Sums and averages of values that vary, of numbers and of constants: only the first add up radii."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.shift, self.last = nn.Parameter(torch.linspace(-0.2, 0.3, 12)), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.first(x))
        h = F.avg_pool2d(h + F.relu(self.second(h)) + 0.25, 3, 1, 1) + self.shift
        h = torch.cat([h.mean((2, 3)) + h.amax((2, 3)), F.avg_pool2d(h, 12).flatten(1)], 1)
        return self.last(F.relu(h - 0.5))


NETS = {
    "sums": Sums,
    "small": lambda: models.small((1, 12, 12)),
    "small-bn": lambda: models.small((1, 12, 12), batch_norm=True),
    "residual": lambda: models.WideResNet((1, 12, 12), 10, 10, 1, None, None, batch_norm=True),
    "normalised": lambda: models.small((1, 12, 12), mean=(0.2,), std=(0.5,)),
}


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("name", NETS)
def test_fast_and_plain_agree_to_rounding(name, trained, clean):
    torch.manual_seed(0)
    net = NETS[name]().double()
    if trained:
        switch_off_half(net)
    x, labels = torch.rand(6, 1, 12, 12, dtype=torch.float64), torch.randint(0, 10, (6,))
    norm = any(isinstance(m, nn.BatchNorm2d) for m in net.modules())
    options = {"clean": clean, "batch_statistics": norm, "record": True}
    slow, fast = (run(net, x, labels, fast=fast, **options) for fast in (False, True))
    torch.testing.assert_close(fast[0], slow[0])
    for a, b in zip(fast[1], slow[1], strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-8)
    for a, b in zip(fast[3].buffers(), slow[3].buffers(), strict=True):
        torch.testing.assert_close(a, b)


def test_residual_networks_run_stacked_throughout(monkeypatch):
    """Sums, pooling, BatchNorm and strided shortcuts: no operator takes clean values and bounds apart."""
    net, labels = NETS["residual"](), torch.tensor([1, 2])
    apart: list[str] = []
    original = engine._part
    monkeypatch.setattr(engine, "_part", lambda value, which: apart.append(which) or original(value, which))
    run(net, torch.rand(2, 1, 12, 12), labels, batch_statistics=True)
    assert "interval" not in apart


def test_channels_that_are_off_are_really_left_out(monkeypatch):
    torch.manual_seed(0)
    net = models.small((1, 12, 12))
    switch_off_half(net)
    inputs: list[int] = []
    backward: list[tuple[int, ...]] = []
    original = engine.layer_of

    def spying(node: Node, rest: Sequence[object]) -> layouts.WeightedLayer | None:
        layer = original(node, rest)

        def product(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
            inputs.append(x.shape[1])
            return layer.product(x, w, b)

        def gradient(g: Tensor, x: Tensor, w: Tensor, need: bool) -> tuple[Tensor | None, Tensor]:
            backward.append(tuple(w.shape[:2]))
            return layer.backward(g, x, w, need)

        return layouts.WeightedLayer(product, gradient, layer.input_gradient)

    monkeypatch.setattr(engine, "layer_of", spying)
    run(net, torch.rand(4, 1, 12, 12), torch.zeros(4, dtype=torch.long))
    assert inputs[:2] == [1, 1] and max(inputs[2:4]) <= 8  # of 16
    assert max(inputs[4:]) <= 16 * 4  # of 32 channels of 2 x 2
    wide = {w for w in backward if len(w) == 2}
    assert max(outputs for outputs, _ in wide) <= 50  # of 100 units, and of 32 channels 16


def test_margins_and_logits_are_those_of_the_public_functions():
    torch.manual_seed(0)
    net = models.small((1, 12, 12))
    x, labels = torch.rand(5, 1, 12, 12), torch.randint(0, 10, (5,))
    region = sb.LinfBall(x, 0.02, clip=(0, 1))
    for elide in (True, False):
        done = training_pass(program_of(net, x), x, labels, 0.02, elide=elide)
        expected = sb.worst_margins(net, region, labels, soundness="none", elide=elide)
        torch.testing.assert_close(done.margins, expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(done.logits, net(x))


def test_what_is_not_asked_for_is_not_computed():
    net, x, labels = models.small((1, 12, 12)), torch.rand(2, 1, 12, 12), torch.tensor([0, 1])
    program = program_of(net, x)
    assert training_pass(program, x, labels, 0.1, bounds=False).margins is None
    assert training_pass(program, x, labels, 0.1, clean=False).logits is None
    assert training_pass(program, x, labels, 0.1).pre_activations == ()
    assert len(training_pass(program, x, labels, 0.1, record=True).pre_activations) == 3


def test_radius_zero_makes_both_losses_equal():
    net, x, labels = models.small((1, 12, 12)), torch.rand(4, 1, 12, 12), torch.tensor([0, 1, 2, 3])
    done = training_pass(program_of(net, x), x, labels, 0.0)
    torch.testing.assert_close(F.cross_entropy(done.margins, labels), F.cross_entropy(done.logits, labels))


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("fast", [True, False])
def test_batch_norm_trains_like_pytorchs(fast, momentum):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, momentum=momentum), nn.ReLU(), nn.Flatten(), nn.Linear(400, 3)
    )
    other = copy.deepcopy(net).train()
    x, labels = torch.rand(6, 1, 12, 12), torch.randint(0, 3, (6,))
    for _ in range(2):
        done = training_pass(program_of(net, x), x, labels, 0.01, batch_statistics=True, fast=fast)
        expected = other(x)
        torch.testing.assert_close(done.logits, expected, atol=1e-5, rtol=1e-5)
    F.cross_entropy(done.logits, labels).backward()
    F.cross_entropy(expected, labels).backward()
    for a, b in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-5, rtol=1e-4)
    for a, b in zip(net.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(a, b)


def test_batch_statistics_of_the_clean_pass_bound_the_clean_batch():
    """With the clean batch's statistics frozen, samples of the box stay inside the margins."""
    torch.manual_seed(0)
    net = models.small((1, 12, 12), batch_norm=True)
    x, labels = torch.rand(6, 1, 12, 12), torch.randint(0, 10, (6,))
    done = training_pass(program_of(net, x), x, labels, 0.01, batch_statistics=True)
    frozen = copy.deepcopy(net).train()
    for module in frozen.modules():
        if isinstance(module, (nn.BatchNorm2d, nn.BatchNorm1d)):
            module.momentum = 1.0
    frozen(x)
    for module in frozen.modules():  # biased variance, as the batch pass uses
        if isinstance(module, (nn.BatchNorm2d, nn.BatchNorm1d)):
            count = 6 if isinstance(module, nn.BatchNorm1d) else 6 * (25 if module.num_features == 16 else 4)
            module.running_var.mul_((count - 1) / count)
    frozen.eval()
    torch.testing.assert_close(frozen(x), done.logits, atol=1e-3, rtol=1e-3)
    for _ in range(30):
        z = frozen((x + (torch.rand_like(x) * 2 - 1) * 0.01).clamp(0, 1))
        assert bool((z - z.gather(1, labels[:, None]) <= done.margins + 1e-2).all())


def test_gradients_go_through_the_statistics_of_the_batch():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(400, 3))
    x, labels = torch.rand(6, 1, 12, 12), torch.randint(0, 3, (6,))
    gradients = []
    for batch in (True, False):
        mine = copy.deepcopy(net)
        done = training_pass(program_of(mine, x), x, labels, 0.01, batch_statistics=batch)
        F.cross_entropy(done.margins, labels).backward()
        gradients.append(mine[0].bias.grad)
    assert gradients[0].abs().max() < 1e-4 < gradients[1].abs().max()  # a bias before it does nothing

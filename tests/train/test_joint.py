"""Methods with a partner: the verifier of Dvijotham et al. and the dual variables of Raghunathan et al.; Xiao et al."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import surebound as sb
from surebound.bounds.semidefinite.certificate import certificates
from surebound.bounds.training.verifier import DualVerifier, relu_inputs
from surebound.errors import ConfigError
from surebound.graph import program_of
from surebound.train.checkpoint import CheckpointStore
from surebound.train.examples import TensorExamples
from surebound.train.loop import Loop
from surebound.train.methods import IBP, Batch, Dvijotham, InnerAttack, Method, Raghunathan, Xiao
from surebound.train.plan import Plan
from surebound.train.task import Surroundings, Task
from tests.bounds.oracles import sampled_maximum
from tests.train.nets import tiny_batch, tiny_data, tiny_net


def one_layer() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def with_partner(method: Method, batch: Batch) -> Batch:
    return replace(batch, partner=method.partner(batch.program))


def seen_margins(batch: Batch) -> torch.Tensor:
    """The largest z_k - z_true (B, K) at corners and random points of the balls."""
    rows = torch.eye(3) - torch.eye(3)[batch.labels].unsqueeze(1)
    low, high = ((batch.images + sign * batch.epsilon).clamp(0, 1) for sign in (-1, 1))
    return torch.stack([sampled_maximum(batch.model, *each) for each in zip(low, high, rows, strict=True)])


@pytest.mark.parametrize("kappa", [0.0, 0.5])
def test_with_a_constant_verifier_it_is_ibp(kappa: float) -> None:
    net = tiny_net()
    batch = tiny_batch(net, epsilon=0.1, kappa=kappa)
    IBP().loss(batch).value.backward()
    expected, gradients = IBP().loss(batch).value.item(), [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    found = Dvijotham(verifier="constant").loss(batch).value
    found.backward()
    assert found.item() == pytest.approx(expected, rel=1e-6)
    for p, gradient in zip(net.parameters(), gradients, strict=True):
        torch.testing.assert_close(p.grad, gradient, rtol=1e-4, atol=1e-6)
    zero = with_partner(Dvijotham(), batch)
    assert isinstance(zero.partner, DualVerifier)
    with torch.no_grad():
        for p in zero.partner.parameters():
            p.zero_()
    assert Dvijotham().loss(zero).value.item() == pytest.approx(expected, rel=1e-6)


def test_any_verifier_bounds_and_learning_makes_it_tighter() -> None:
    batch = with_partner(Dvijotham(), tiny_batch(tiny_net().eval(), epsilon=0.2, kappa=0.0))
    least = F.cross_entropy(seen_margins(batch).float(), batch.labels).item()
    assert batch.partner is not None
    good = Dvijotham().loss(batch).value.item()
    torch.manual_seed(0)
    with torch.no_grad():
        for p in batch.partner.parameters():
            p.normal_()
    bad = Dvijotham().loss(batch).value.item()
    assert least <= good < bad
    adam = torch.optim.Adam(batch.partner.parameters(), lr=0.05)
    for _ in range(30):
        adam.zero_grad()
        Dvijotham().loss(batch).value.backward()
        adam.step()
    assert least <= Dvijotham().loss(batch).value.item() < (good + bad) / 2


def test_the_semidefinite_loss_is_that_of_its_margins() -> None:
    method = Raghunathan(lanczos=20, weight=0.1)
    batch = with_partner(method, tiny_batch(one_layer(), epsilon=0.05, kappa=0.25))
    loss = method.loss(batch)
    loss.value.backward()
    assert batch.partner is not None
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in batch.partner.parameters())
    net, dual = batch.model, batch.partner.dual.detach() * batch.partner.scale
    rows = net[2].weight.detach()
    differences, moves = rows[[0, 0, 1]] - rows[[1, 2, 2]], torch.zeros(3, 3)
    for value, (i, j), row, c in zip(range(3), ((0, 1), (0, 2), (1, 2)), differences, dual, strict=True):
        block = torch.cat([(row @ net[0].weight)[None], row[:, None] * net[0].weight]).detach()
        matrix = torch.zeros(11, 11)
        matrix[:7, 7:], matrix[7:, :7] = block, block.t()
        top = torch.linalg.eigvalsh(matrix - torch.diag(c))[-1].clamp(min=0)
        moves[i, j] = moves[j, i] = (11 * top + c.clamp(min=0).sum()) / 4
        assert value >= 0
    z = net(batch.images)
    margins = z - z.gather(1, batch.labels[:, None]) + 0.05 * moves[batch.labels]
    expected = 0.25 * F.cross_entropy(z, batch.labels) + 0.75 * F.cross_entropy(margins, batch.labels)
    assert loss.value.item() == pytest.approx((expected + 0.1 * moves.sum() / 2).item(), rel=1e-4)
    assert bool((margins >= seen_margins(batch) - 1e-5).all())
    best = certificates(differences, net[0].weight, 60)  # optimised duals are no worse than those at the start
    assert bool((best <= torch.stack([moves[0, 1], moves[0, 2], moves[1, 2]]).double() * 1.001).all())


@pytest.mark.parametrize("method", [Dvijotham(), Raghunathan()], ids=["dvijotham", "raghunathan"])
def test_resume_continues_partners_to_the_same_bits(tmp_path: Path, method: Method) -> None:
    x, y = tiny_data(32)
    plan = Plan(steps=6, batch_size=8, eps_train="1/20", warmup=1, ramp=2, learning_rate=0.01)
    nets = [one_layer(), one_layer()]
    Loop(Task(nets[0], TensorExamples(x, y), method, plan)).run()
    store = CheckpointStore(tmp_path)
    asked = iter([False, False, True])
    first = Loop(Task(nets[1], TensorExamples(x, y), method, plan),
                 Surroundings(checkpoints=store, stop=lambda: next(asked)))  # fmt: skip
    assert not first.run().finished
    again = one_layer()
    second = Loop(Task(again, TensorExamples(x, y), method, plan), Surroundings(checkpoints=store))
    assert second.run().finished
    for p, q in zip(nets[0].parameters(), again.parameters(), strict=True):
        assert torch.equal(p, q)


def test_stability_is_xiaos_and_improved_bounds_are_tighter() -> None:
    net = tiny_net().eval()
    batch = tiny_batch(net, epsilon=0.1)
    method = Xiao(weight=0.3, attack=InnerAttack(steps=2, random_start=False))
    found = method.loss(batch)
    names = relu_inputs(batch.program)
    kept = sb.bounds.training_pass(batch.program, batch.images, batch.labels, 0.1, keep=names).kept
    stability = sum(-torch.tanh(1 + b.lower * b.upper).sum() / len(batch.labels) for b in kept.values())
    attacked = F.cross_entropy(net(method.attack(batch)), batch.labels)
    assert found.value.item() == pytest.approx((attacked + 0.3 * stability).item(), rel=1e-5)
    unstable = sum(int(((b.lower < 0) & (b.upper > 0)).sum()) for b in kept.values()) / (11 * len(batch.labels))
    assert float(found.scalars["unstable"]) == pytest.approx(unstable)
    improved = replace(method, bounds="improved").loss(batch)
    assert float(improved.scalars["unstable"]) < unstable
    improved.value.backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in net.parameters())


def test_stability_makes_relus_stable() -> None:
    net = one_layer()
    x, y = tiny_data(32)
    adam = torch.optim.Adam(net.parameters(), lr=0.02)
    batch = Batch(net, x, y, 0.2, 0.2, 0.5, 0, torch.Generator().manual_seed(0), traced=program_of(net, x))
    shares = []
    for _ in range(40):
        loss = Xiao(weight=0.5).loss(batch)
        shares.append(float(loss.scalars["unstable"]))
        adam.zero_grad()
        loss.value.backward()
        adam.step()
    assert shares[-1] < 0.5 * shares[0]


def test_bad_settings() -> None:
    with pytest.raises(ConfigError, match="give linear or constant"):
        Dvijotham(verifier="deep")
    with pytest.raises(ConfigError, match="lanczos >= 1"):
        Raghunathan(lanczos=0)
    with pytest.raises(ConfigError, match="give interval or improved"):
        Xiao(bounds="zonotope")
    with pytest.raises(ConfigError, match="no dual variables"):
        Raghunathan().loss(tiny_batch(one_layer()))

"""What the attacks are for: they find what is there, no more, and each what only it can find."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor, nn

from surebound.attack import attack
from surebound.attack.methods import FGSM, PGD, SPSA, CarliniWagner, MultiTargeted, Sign, StepDecay
from surebound.region import LinfBall
from surebound.spec import LinearSpec

ALL = [
    PGD(steps=40, restarts=7),
    PGD(steps=40, restarts=7, rule=Sign(0.3), start="mixed"),
    PGD(steps=40, restarts=3, loss="cross-entropy"),
    MultiTargeted(steps=40, restarts=4),
    CarliniWagner(steps=60, restarts=7),
    SPSA(steps=40, restarts=4, samples=8),
]


def tiny_net(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 3)).double().eval()


def exact_maximum(net: nn.Sequential, label: int, lower: np.ndarray, upper: np.ndarray) -> float:
    """max over the box of max_k z_k - z_label: one linear program per class and pattern of active neurons."""
    w1, b1, w2, b2 = (p.detach().numpy() for p in net.parameters())
    best = -np.inf
    for pattern in itertools.product([0.0, 1.0], repeat=len(b1)):
        on = np.array(pattern)
        sides = np.where(on > 0, -1.0, 1.0)  # on: -(w x + b) <= 0; off: w x + b <= 0
        for k in {0, 1, 2} - {label}:
            c = w2[k] - w2[label]
            slope, offset = (c * on) @ w1, (c * on) @ b1 + b2[k] - b2[label]
            lp = linprog(-slope, sides[:, None] * w1, -sides * b1, bounds=list(zip(lower, upper, strict=True)))
            if lp.status == 0:
                best = max(best, offset - lp.fun)
    return float(best)


@pytest.mark.parametrize("seed", range(3))
def test_never_better_than_the_truth_and_close_to_it(seed):
    net, x = tiny_net(seed), torch.tensor([[0.4, 0.7]], dtype=torch.float64)
    label = int(net(x).argmax())
    truth = exact_maximum(net, label, x[0].numpy() - 0.3, np.minimum(x[0].numpy() + 0.3, 1))
    # The offset keeps the search going to its end: no violation stops it.
    c = (torch.eye(3) - torch.eye(3)[label])[[k for k in range(3) if k != label]].double()
    for method in ALL:
        spec = LinearSpec(c, torch.full((2,), -truth - 1, dtype=torch.float64))
        found = float(attack(net, LinfBall(x, "3/10", clip=(0, 1)), None, method, spec=spec).margins) + truth + 1
        assert found <= truth + 1e-9
        if "cross-entropy" not in str(method):  # its maximum is another point, with more than two classes
            assert found >= truth - 0.01, method


@pytest.mark.parametrize("seed", range(4))
def test_success_only_where_the_truth_is_a_violation(seed):
    net, x = tiny_net(seed), torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    labels = net(x).argmax(1)
    for eps in (0.05, 0.2, 0.5):
        truth = exact_maximum(net, int(labels), x[0].numpy() - eps, x[0].numpy() + eps)
        if abs(truth) > 1e-3:  # within rounding of 0 there is nothing to expect
            assert bool(attack(net, LinfBall(x, eps, clip=(0, 1)), labels, ALL[0]).success) == (truth > 0)


class Quantised(nn.Module):
    """A linear classifier of pixels rounded to eighths: its gradient is zero almost everywhere."""

    def __init__(self, threshold: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(40).sign())
        self.threshold = threshold

    def forward(self, x: Tensor) -> Tensor:
        score = ((x * 8).round() / 8 - 0.5) @ self.weight
        return torch.stack([torch.full_like(score, self.threshold), score], 1)


def test_a_masked_gradient_stops_pgd_but_not_spsa():
    net = Quantised(threshold=6.0)  # the maximum is 40 * 0.25 = 10; a random point scores about 0 +- 1
    x, labels = torch.full((3, 40), 0.5), torch.zeros(3, dtype=torch.int64)
    for blind in (PGD(steps=40, restarts=10), FGSM(), CarliniWagner(steps=20)):
        assert not bool(attack(net, LinfBall(x, "1/4", clip=(0, 1)), labels, blind).success.any())
    seeing = SPSA(steps=40, restarts=2, samples=64, delta=0.5)
    assert bool(attack(net, LinfBall(x, "1/4", clip=(0, 1)), labels, seeing).success.all())


class InTheCorner(nn.Module):
    """Violated only where all three pixels are nearly 1; everywhere else the slope leads away from there."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(3, 2)
        self.hidden.weight.data = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
        self.hidden.bias.data = torch.tensor([0.0, -2.9])
        self.last = nn.Linear(2, 2)
        self.last.weight.data = torch.tensor([[0.0, 0.0], [-0.1, 20.0]])
        self.last.bias.data = torch.tensor([0.0, -0.1])

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.hidden(x).relu())


def test_a_counterexample_that_lives_only_in_a_corner_needs_a_start_there():
    net, x, labels = InTheCorner(), torch.full((2, 3), 0.5), torch.tensor([0, 0])
    for start in ("uniform", "center"):
        assert not bool(
            attack(net, LinfBall(x, "1/2", clip=(0, 1)), labels, PGD(steps=40, restarts=40, start=start)).success.any()
        )
    for start in ("corner", "mixed"):
        found = attack(net, LinfBall(x, "1/2", clip=(0, 1)), labels, PGD(steps=10, restarts=80, start=start))
        assert bool(found.success.all())
        assert bool((found.adversarial > 0.9).all())


def by_the_corner(x: Tensor) -> Tensor:
    """A ridge towards the corner (1, 1), violated only on a window of it: 0.98 < x_2 < 0.994 at x_1 = 1."""
    first, second = x.unbind(1)
    ridge = torch.minimum(first + second, first - 3 * second + 4 * 0.99)
    return torch.stack([torch.full_like(ridge, 1.98), ridge], 1)


def test_a_step_that_stays_large_bounces_past_the_corner_and_one_that_decays_does_not():
    x, labels = torch.full((8, 2), 0.5), torch.zeros(8, dtype=torch.int64)
    constant = PGD(steps=100, restarts=1, rule=Sign(0.25), decay=StepDecay(at=()), start="corner")
    decaying = PGD(steps=100, restarts=1, rule=Sign(0.25), start="corner")
    assert not bool(attack(by_the_corner, LinfBall(x, "1/2", clip=(0, 1)), labels, constant).success.any())
    assert bool(attack(by_the_corner, LinfBall(x, "1/2", clip=(0, 1)), labels, decaying).success.all())


def test_fgsm_goes_to_the_corner_of_the_gradient():
    net = nn.Linear(3, 2)
    net.weight.data = torch.tensor([[0.0, 0.0, 0.0], [1.0, -2.0, 0.0]])
    net.bias.data = torch.tensor([50.0, 0.0])
    x = torch.full((1, 3), 0.5)
    result = attack(net, LinfBall(x, "1/4", clip=(0, 1)), torch.tensor([0]), FGSM())
    assert result.adversarial.tolist() == [[0.75, 0.25, 0.5]]
    assert (result.queries.item(), result.steps.item()) == (2, 1)


def test_multi_targeted_reaches_a_class_that_the_largest_margin_hides():
    def model(x: Tensor) -> Tensor:
        """Class 1 is the closest almost everywhere but never reaches class 0; class 2 wins at one end."""
        s = x.sum(1)
        return torch.stack([torch.ones_like(s), 0.99 - 0.01 * s.abs(), 1.5 * s - 2.0], 1)

    x, labels = torch.full((4, 3), 0.0), torch.zeros(4, dtype=torch.int64)
    blind = attack(model, LinfBall(x, 1, clip=(-1, 1)), labels, PGD(steps=60, restarts=1, start="center"))
    aimed = attack(model, LinfBall(x, 1, clip=(-1, 1)), labels, MultiTargeted(steps=60, start="center"))
    assert not bool(blind.success.any())
    assert bool(aimed.success.all())
    assert aimed.predictions.tolist() == [2] * 4


def test_restarts_never_make_an_attack_weaker():
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    x = torch.rand(40, 6)
    labels = net(x).argmax(1)
    errors = [attack(net, LinfBall(x, 0.2, clip=(0, 1)), labels, PGD(steps=5, restarts=n)).success for n in (1, 4, 12)]
    assert bool((errors[0] <= errors[1]).all())
    assert bool((errors[1] <= errors[2]).all())

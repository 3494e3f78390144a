"""Bad input is refused: what was given, what is accepted, what to do."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from surebound.attack import attack
from surebound.attack.methods import FGSM, PGD, SPSA, Adam, CarliniWagner, MultiTargeted, Sign, StepDecay
from surebound.errors import ConfigError, InputError, RegionError, SpecError
from surebound.region import LinfBall
from surebound.spec import LinearSpec

NET = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).eval()
X = torch.full((2, 4), 0.5)
Y = torch.tensor([0, 2])


def call(model=NET, images=X, labels=Y, eps=0.1, method=None, clip=(0, 1), **options):
    region = options.pop("region", None)
    return attack(model, region or LinfBall(images, eps, clip), labels, method or PGD(steps=1, restarts=1), **options)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"labels": torch.tensor([0, 3])}, SpecError, r"labels lie in \[0, 3\].*3 outputs.*0..2"),
        ({"labels": torch.tensor([-1, 0])}, SpecError, r"labels lie in \[-1, 0\]"),
        ({"labels": torch.tensor([0])}, SpecError, "1 labels for 2 examples; give one label per example"),
        ({"labels": torch.tensor([0.0, 1.0])}, SpecError, "labels are torch.float32.*integer tensor"),
        ({"labels": [0, 1]}, SpecError, "labels are list; give an integer tensor"),
        ({"labels": None}, SpecError, "labels or a spec: one of them"),
        ({"spec": LinearSpec(torch.ones(1, 3))}, SpecError, "and not both"),
        (
            {"labels": None, "spec": LinearSpec(torch.ones(1, 5))},
            SpecError,
            "5 coefficients per row but.*3 outputs",
        ),
        ({"labels": None, "spec": LinearSpec(torch.ones(3, 1, 3))}, SpecError, "for 3 examples but.* 2"),
        ({"images": torch.tensor([[math.nan] * 4] * 2)}, RegionError, "contains NaN"),
        ({"images": torch.full((2, 4), math.inf), "clip": None}, RegionError, "reaches infinity"),
        ({"images": torch.ones(2, 4, dtype=torch.uint8)}, RegionError, r"torch.uint8.*float\(\) / 255"),
        ({"images": X.double()}, InputError, r"inputs are float64, the network float32: convert one.*x.to\("),
        ({"region": "8/255"}, RegionError, "the region is a str; give sb.LinfBall"),
        ({"images": X.numpy()}, RegionError, "ndarray; give a torch.Tensor"),
        ({"images": X * 255}, RegionError, r"outside clip=\(0.0, 1.0\).*clip=None"),
        ({"eps": -0.1}, RegionError, "eps=-0.1 is negative"),
        ({"eps": "8/0"}, InputError, "eps='8/0' is not a finite number"),
        ({"eps": math.nan}, InputError, "eps=nan is not a finite number"),
        ({"eps": "a lot"}, InputError, "eps='a lot'.*'8/255'"),
        ({"clip": (1, 0)}, RegionError, r"clip=\(1, 0\); give \(lowest, highest\)"),
        ({"model": 3}, InputError, "the model is a int; give a torch.nn.Module or a callable"),
        ({"model": nn.Flatten(0)}, SpecError, r"returned shape \(4,\) for 1 inputs.*\(B, K\)"),
        ({"model": lambda x: {"logits": x}}, SpecError, "returned a dict"),
        ({"model": nn.Linear(4, 1)}, SpecError, "1 output: there is no other class; give a spec"),
        ({"method": "pgd"}, InputError, r"method='pgd' is not an attack.*PGD\(steps=200"),
        ({"method": PGD}, InputError, "is not an attack"),
        ({"seed": 0.5}, InputError, "seed=0.5 is a float; give an integer"),
        ({"memory": 0}, InputError, "memory=0 bytes; give a positive integer"),
        (
            {"proved": torch.zeros(3, dtype=torch.bool)},
            InputError,
            r"proved is torch.bool \(3,\).*shape \(2,\)",
        ),
        ({"proved": torch.zeros(2)}, InputError, r"proved is torch.float32 \(2,\); give a bool tensor"),
    ],
)
def test_bad_arguments(options, error, match):
    with pytest.raises(error, match=match):
        call(**options)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: PGD(steps=0), r"PGD\(steps=0\): steps must be an integer of at least 1"),
        (lambda: PGD(restarts=2.5), r"PGD\(restarts=2.5\)"),
        (lambda: FGSM(restarts=True), r"FGSM\(restarts=True\)"),
        (lambda: PGD(loss="hinge"), "loss='hinge' is not known; use 'margin', 'cross-entropy'"),
        (lambda: PGD(start="edge"), "start='edge' is not known; use 'uniform', 'corner', 'mixed', 'center'"),
        (lambda: CarliniWagner(start=["center"]), "is not known"),
        (lambda: MultiTargeted(targets=0), "give at least 1 target, or None"),
        (lambda: SPSA(samples=0), r"SPSA\(samples=0.*at least 1 sample"),
        (lambda: SPSA(delta=math.nan), "positive delta"),
        (lambda: SPSA(samples=1.5), r"SPSA\(samples=1.5.*at least 1 sample, a whole number"),
        (lambda: SPSA(delta="wide"), "positive delta"),
        (lambda: MultiTargeted(targets=2.0), "give at least 1 target, or None"),
        (lambda: PGD(rule="adam"), r"PGD\(rule='adam'\): rule must be a StepRule, e.g. rule=Adam\(0.1\)"),
        (lambda: PGD(decay=None), r"PGD\(decay=None\): decay must be a StepDecay.*at=\(\)\) for a constant"),
        (lambda: SPSA(rule=Adam), "rule must be a StepRule"),
        (lambda: CarliniWagner(decay=0.1), r"CarliniWagner\(decay=0.1\): decay must be a StepDecay"),
        (lambda: MultiTargeted(rule="sign"), r"MultiTargeted\(rule='sign'\)"),
        (lambda: Adam("0.1"), r"Adam\(lr='0.1'\): the step size must be a positive number"),
        (lambda: Adam(0.0), r"Adam\(lr=0.0\): the step size must be a positive number"),
        (lambda: Adam(beta1=1.0), "the betas must lie in"),
        (lambda: Sign(math.inf), r"Sign\(lr=inf\)"),
        (lambda: StepDecay(factor=2.0), r"the factor must lie in \(0, 1\]"),
        (lambda: StepDecay(at=(1.5,)), r"the shares in \[0, 1\]"),
    ],
)
def test_bad_attacks(make, match):
    with pytest.raises(ConfigError, match=match):
        make()


def test_an_error_of_the_network_itself_says_what_it_was_given():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
        call(model=nn.Linear(5, 3))
    assert caught.value.__notes__ == ["while running the network on torch.float32 inputs of shape (1, 4)"]


def test_the_mode_is_restored_after_an_error():
    net = nn.Sequential(nn.Dropout(), nn.Linear(5, 3)).train()
    with pytest.raises(RuntimeError):
        call(model=net)
    assert all(m.training for m in net.modules())

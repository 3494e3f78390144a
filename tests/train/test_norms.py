"""Training for l1 and l2 balls: the margins are those of interval bounds, and a run keeps its norm apart."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import surebound as sb
from surebound.bounds import training_pass
from surebound.cli import build_app
from surebound.errors import ConfigError
from surebound.experiment.config import Config
from surebound.experiment.presets import preset
from surebound.experiment.target import load_target
from surebound.graph import program_of
from surebound.train.evaluate import Evaluation, measure
from surebound.train.methods import CROWNIBP, IBP

BALLS = {1: sb.L1Ball, 2: sb.L2Ball}


def convolutional(*, norm: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    first = [nn.Conv2d(1, 4, 3, padding=1), *([nn.BatchNorm2d(4)] if norm else []), nn.ReLU()]
    return nn.Sequential(*first, nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 3))


def examples() -> tuple[Tensor, Tensor]:
    x = torch.rand(5, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    return torch.where(x < 0.3, 0.0, x), torch.tensor([0, 1, 2, 0, 1])


@pytest.mark.parametrize("order", BALLS)
@pytest.mark.parametrize("fast", [True, False])
def test_the_margins_of_a_step_are_those_of_interval_bounds(order: int, fast: bool) -> None:
    x, labels = examples()
    for net in (convolutional(), convolutional(norm=True).eval(), nn.Sequential(nn.Flatten(), nn.Linear(16, 3))):
        for clip in (None, (0, 1)):
            found = training_pass(program_of(net, x), x, labels, 0.25, clip=clip, norm=order, fast=fast)
            plain = sb.worst_margins(net, BALLS[order](x, "1/4", clip), labels, soundness="none")
            torch.testing.assert_close(found.computed_margins, plain, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(found.logits, net(x))
            box = training_pass(program_of(net, x), x, labels, 0.25, clip=clip, fast=fast)
            assert bool((found.computed_margins <= box.computed_margins + 1e-4).all())
    zero = training_pass(program_of(net, x), x, labels, 0.0, norm=order)
    torch.testing.assert_close(zero.computed_margins, sb.worst_margins(net, sb.LinfBall(x, 0), labels))


@pytest.mark.parametrize("order", BALLS)
def test_statistics_of_the_batch_and_gradients(order: int) -> None:
    """A normalisation in front of the first layer computes what the batch says: no norm is taken through it."""
    x, labels = examples()
    net = nn.Sequential(nn.BatchNorm2d(1), *convolutional(norm=True)).train()
    found = training_pass(program_of(net, x), x, labels, 0.1, norm=order, batch_statistics=True)
    plain = training_pass(program_of(net, x), x, labels, 0.1, batch_statistics=True)
    torch.testing.assert_close(found.computed_margins, plain.computed_margins)
    inner = convolutional(norm=True).train()
    found = training_pass(program_of(inner, x), x, labels, 0.1, norm=order, batch_statistics=True)
    found.computed_margins.square().sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in inner.parameters() if p.grad is not None)


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_training_for_a_ball_proves_more_of_it(norm: str) -> None:
    data = sb.data.load("digits")
    measured = {}
    for kind, eps in (("linf", Fraction(1, 50)), (norm, Fraction(1, 3))):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 10))
        plan = sb.Plan(steps=150, batch_size=50, eps_train=eps, warmup=20, ramp=80, norm=kind)
        sb.train(net, data, method=IBP(), plan=plan, evaluation=Evaluation())
        few = Evaluation(radii=(Fraction(1, 3),), images=50, norm=norm, pgd_steps=5, pgd_images=50)
        measured[kind] = measure(net, data.test, few)
    errors = measured[norm]
    assert (
        errors.norm == norm and f"verified_error_{norm}" in errors.record() and "verified_error" not in errors.record()
    )
    assert errors.verified[Fraction(1, 3)] < measured["linf"].verified[Fraction(1, 3)]
    assert errors.attacked[Fraction(1, 3)] <= errors.verified[Fraction(1, 3)]


def test_what_methods_do_not_know_is_refused() -> None:
    net, data = convolutional(), examples()
    with pytest.raises(ConfigError, match="trains against l-infinity balls, not those of l2"):
        sb.train(net, data, method=CROWNIBP(), plan=sb.Plan(steps=1, eps_train="1/2", norm="l2"))
    with pytest.raises(ConfigError, match="give one of linf, l2, l1"):
        sb.Plan(steps=1, norm="l3")
    with pytest.raises(ConfigError, match="give one of linf, l2, l1"):
        Evaluation(norm="2")


def test_a_run_keeps_its_norm(tmp_path: Path) -> None:
    out = tmp_path / "run"
    given = ["train", "digits-ibp", "--steps", "4", "--threat", "l2:1/2", "--out", str(out), "-q"]
    assert CliRunner().invoke(build_app(), given).exit_code == 0
    config = Config.read(out / "config.toml")
    assert config.plan.norm == config.evaluation.norm == "l2"
    assert config.plan.eps_train == Fraction(1, 2) and config.evaluation.radii == (Fraction(1, 2),)
    assert '"verified_error_l2"' in (out / "results.json").read_text()
    assert load_target(out).radii == (), "they are no radii of l-infinity balls"
    assert Config.from_toml(preset("digits-ibp").to_toml()).plan.norm == "linf"
    for wrong, why in (
        (["--threat", "rotation:5deg"], "training knows balls: linf:SIZE, l2:SIZE, l1:SIZE"),
        (["--threat", "l2:1", "--eps-train", "1/2"], "use one of them"),
        (["--threat", "l2:1", "--method", "sabr"], "trains against l-infinity balls"),
    ):
        found = CliRunner().invoke(build_app(), ["train", "digits-ibp", "--steps", "4", *wrong])
        assert found.exit_code != 0 and why in f"{found.output} {found.exception}"

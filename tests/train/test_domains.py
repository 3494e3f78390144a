"""Mirman et al. and MixTrain: margins of forward domains with gradients are those that verify, and sound."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import surebound as sb
from surebound.attack.inner import box
from surebound.bounds import Hybrid
from surebound.bounds.constants import Constants
from surebound.bounds.forward.domain import Forward
from surebound.bounds.forward.hybrid import TRANSFORMERS, HybridDomain
from surebound.bounds.training.domains import hybrid_bounds, hybrid_margins, symbolic_margins
from surebound.errors import ConfigError, InputError
from surebound.graph import Program, program_of
from surebound.interval import Interval
from surebound.numerics import Soundness, Working
from surebound.train.methods import Mirman, MixTrain, Nominal, mixtrain
from tests.bounds.oracles import sampled_maximum
from tests.train.nets import tiny_batch, tiny_net

BATCH = tiny_batch(tiny_net(), epsilon=0.1)
REGION = sb.LinfBall(BATCH.images, eps="1/10", clip=(0, 1))
BOX = Interval(*box(BATCH.images, 0.1, (0.0, 1.0)))


@pytest.fixture(scope="module")
def seen() -> torch.Tensor:
    """The largest z_k - z_true (B, K) at the corners of each box and at random points; tests/bounds has exact ones."""
    net, rows = tiny_net(), torch.eye(3) - torch.eye(3)[BATCH.labels].unsqueeze(1)  # (B, K, K)
    return torch.stack(
        [sampled_maximum(net, *ends) for ends in zip(BOX.lower, BOX.upper, rows, strict=True)]  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("correlated", [None, 0, 2])
@pytest.mark.parametrize("transformer", TRANSFORMERS)
def test_hybrid_zonotopes_contain_the_truth(transformer: str, correlated: int | None, seen: torch.Tensor) -> None:
    net = tiny_net()
    for mode in ("real", "deployed"):
        sound = sb.worst_margins(net, REGION, BATCH.labels, method=Hybrid(transformer, correlated), soundness=mode)
        assert bool((sound.double() >= seen - 1e-7).all())
    plain = hybrid_margins(BATCH.program, BOX, BATCH.labels, transformer, correlated).detach()
    assert bool((plain >= seen - 1e-5).all())
    assert bool((plain >= sound - 1e-5).all())  # the sound ones are intersected with elided intervals
    if correlated is None:
        assert float((plain - sound).mean()) < 0.001


def test_without_correlated_inputs_it_is_interval_bounds() -> None:
    found = hybrid_margins(BATCH.program, BOX, BATCH.labels, "smooth", 0)
    interval = sb.worst_margins(tiny_net(), REGION, BATCH.labels, soundness="none", elide=False)
    torch.testing.assert_close(found, interval)


@pytest.mark.parametrize(
    ("transformer", "slope", "top"), [("box", 0.0, 1.0), ("diag", 1.0, 3.0), ("smooth", 0.25, 1.5)]
)
def test_a_relu_of_one_input_is_the_papers(transformer: str, slope: float, top: float) -> None:
    """Over [-3, 1]: zBox is [0, 1], zDiag x + [0, 3], zSmooth their mean with weights 3 and 1."""
    net = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(1, 1, bias=False)).requires_grad_(False)
    net[1].weight.fill_(1.0)
    region = sb.Box(torch.tensor([[-3.0]]), torch.tensor([[1.0]]))
    domain = HybridDomain(transformer, None, Working(torch.float32, pays=False))
    program = program_of(net, region.lower)
    form, _ = Forward(Constants(program), Soundness.NONE, domain).train(Interval(region.lower, region.upper))
    assert form.function.coefficients.item() == pytest.approx(2 * slope)  # of a noise term worth 2
    assert form.rest.item() == pytest.approx(top / 2)
    assert form.function.offset.item() == pytest.approx(-slope + top / 2)


def test_symbolic_margins_are_those_that_verify(seen: torch.Tensor) -> None:
    found = symbolic_margins(BATCH.program, BOX, BATCH.labels)
    assert bool((found >= seen - 1e-5).all())
    sound = sb.worst_margins(tiny_net(), REGION, BATCH.labels, method="symbolic")
    torch.testing.assert_close(torch.fmin(found, sound), sound, rtol=0, atol=1e-5)
    torch.testing.assert_close(found.mean(), sound.mean(), rtol=0.05, atol=0)


def test_inner_bounds_are_never_looser_than_intervals() -> None:
    names = [node.name for node in BATCH.program.graph.calls(lambda n: n.shape is not None and n.shape[-1] in (6, 5))]
    found = hybrid_bounds(BATCH.program, BOX, names)
    plain = sb.bounds.training_pass(BATCH.program, BATCH.images, BATCH.labels, 0.1, keep=names)
    assert set(found) == set(names)
    for name in names:
        assert bool((found[name].upper <= plain.kept[name].upper + 1e-5).all())
        assert bool((found[name].lower >= plain.kept[name].lower - 1e-5).all())
    assert any(bool((found[name].upper < plain.kept[name].upper - 1e-3).any()) for name in names)


@pytest.mark.parametrize("method", [Mirman(), Mirman("box", 2), MixTrain(samples=8, alpha=1.0, tolerated=1.0)])
def test_the_loss_is_that_of_its_margins_and_has_its_gradient(method: Mirman | MixTrain) -> None:
    batch = tiny_batch(tiny_net(), epsilon=0.1, kappa=0.0)
    net, images = copy.deepcopy(batch.model).double(), batch.images.double()
    batch = replace(batch, model=net, images=images, traced=program_of(net, images))
    loss = method.loss(batch).value
    loss.backward()
    weight = net[0].weight
    got, step = weight.grad[0, 0].item(), 1e-6
    with torch.no_grad():
        weight[0, 0] += step
        up = method.loss(replace(batch, generator=torch.Generator().manual_seed(3))).value.item()
        weight[0, 0] -= 2 * step
        down = method.loss(replace(batch, generator=torch.Generator().manual_seed(3))).value.item()
    assert got == pytest.approx((up - down) / (2 * step), rel=1e-3, abs=1e-7)


def test_at_radius_0_both_are_the_nominal_loss() -> None:
    net = tiny_net()
    nominal = Nominal().loss(tiny_batch(net)).value.item()
    at_0 = tiny_batch(net, epsilon=0.0, kappa=0.0)
    assert MixTrain().loss(at_0).value.item() == pytest.approx(nominal, rel=1e-5)
    assert Mirman(objective="cross_entropy").loss(at_0).value.item() == pytest.approx(nominal, rel=1e-5)


def test_mixtrain_weighs_robustness_less_where_images_are_misclassified() -> None:
    batch = tiny_batch(tiny_net(), epsilon=0.1)
    wrong = float(MixTrain().loss(batch).scalars["clean_error"])
    assert wrong > 0.1
    for tolerated in (0.05, 1.0):
        found = MixTrain(samples=8, alpha=0.5, tolerated=tolerated).loss(batch)
        weight = 0.5 * min(1.0, tolerated / wrong)
        assert float(found.scalars["robust_weight"]) == pytest.approx(weight)
        margins = symbolic_margins(batch.program, BOX, batch.labels)
        clean = F.cross_entropy(batch.model(batch.images), batch.labels)
        expected = (1 - weight) * clean + weight * F.cross_entropy(margins, batch.labels)
        assert found.value.item() == pytest.approx(expected.item(), rel=1e-5)


def test_mixtrain_bounds_as_many_examples_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []

    def spy(program: Program, box: Interval, labels: torch.Tensor) -> torch.Tensor:
        counts.append(len(labels))
        return symbolic_margins(program, box, labels)

    monkeypatch.setattr(mixtrain, "symbolic_margins", spy)
    MixTrain(samples=3).loss(tiny_batch(tiny_net(), epsilon=0.1))
    MixTrain(samples=30).loss(tiny_batch(tiny_net(), epsilon=0.1))
    assert counts == [3, 8]


def test_bad_settings() -> None:
    with pytest.raises(ConfigError, match="give one of box, diag, smooth"):
        Mirman("zBox")
    with pytest.raises(InputError, match="give a number of inputs"):
        Hybrid(correlated=-1)
    with pytest.raises(ConfigError, match="samples >= 1"):
        MixTrain(samples=0)
    with pytest.raises(InputError, match="give soundness='real' or 'deployed'"):
        sb.worst_margins(tiny_net(), REGION, BATCH.labels, method="hybrid", soundness="none")

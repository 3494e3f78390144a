"""The loop: it learns, resumes to the same bits, stops when asked, and notices divergence."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

import surebound.data as data
from surebound.errors import ConfigError, DivergedError, InputError, RunError, SpecError
from surebound.experiment.train import train
from surebound.train.checkpoint import CheckpointStore
from surebound.train.evaluate import Errors, Evaluation, measure
from surebound.train.examples import TensorExamples, examples_of
from surebound.train.loop import Loop, score
from surebound.train.methods import IBP, MTLIBP, SABR, TAPS, Adversarial, Batch, Loss, Method, Nominal
from surebound.train.observe import Observer, Progress
from surebound.train.plan import Plan
from surebound.train.task import Surroundings, Task
from tests.train.nets import fresh_net, reference_margins, tiny_data, tiny_net

PLAN = Plan(steps=24, batch_size=16, eps_train="1/20", warmup=4, ramp=8, learning_rate=0.01, decay_steps=(18,), seed=3)
METHODS: list[Method] = [Nominal(), Adversarial(steps=2), IBP(), MTLIBP(), SABR(), TAPS(steps=2, size=0.5)]


class Diary(Observer):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, int]] = []
        self.progress: list[Progress] = []
        self.errors: list[tuple[int, Errors]] = []
        self.paths: list[Path] = []

    def started(self, step: int, steps: int) -> None:
        self.begun.append((step, steps))

    def progressed(self, progress: Progress) -> None:
        self.progress.append(progress)

    def evaluated(self, step: int, errors: Errors) -> None:
        self.errors.append((step, errors))

    def saved(self, step: int, path: Path) -> None:
        self.paths.append(path)


class Dropping(nn.Module):
    """A network that draws from the global generator while it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


def weights(net: nn.Module) -> dict[str, Tensor]:
    return {k: v.clone() for k, v in net.state_dict().items()}


def task(net: nn.Module, method: Method, plan: Plan = PLAN) -> Task:
    return Task(net, TensorExamples(*tiny_data(50)), method, plan)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
@pytest.mark.parametrize("kind", ["plain", "batch_norm", "dropout"])
def test_resume_continues_to_the_same_bits(tmp_path: Path, method: Method, kind: str) -> None:
    if kind == "dropout" and method.bound_based:
        pytest.skip("the training pass has no dropout")

    def build() -> nn.Module:
        torch.manual_seed(0)
        return Dropping() if kind == "dropout" else tiny_net(kind == "batch_norm")

    def run(store: CheckpointStore | None, until: int) -> dict[str, Tensor]:
        net = build()
        calls = iter(range(1, 1000))
        around = Surroundings(checkpoints=store, stop=lambda: next(calls) >= until)
        torch.manual_seed(7)
        Loop(task(net, method), around).run()
        return weights(net)

    straight = run(None, 10**6)
    store = CheckpointStore(tmp_path)
    for part in (5, 1, 9):
        torch.manual_seed(part)  # a new process would begin anywhere
        run(store, part)
    assert store.steps()[-1] == 15
    pieces = run(store, 10**6)
    assert all(torch.equal(straight[k], pieces[k]) for k in straight)


@pytest.mark.parametrize("method", [Nominal(), IBP()], ids=lambda m: m.name)
def test_a_batch_in_parts_has_the_gradients_of_the_whole(method: Method) -> None:
    """Of 16 examples in parts of 6, 6 and 4, which count as much as they hold; and the loss is the whole batch's."""
    found = []
    for parts in (1, 3):
        x, y = tiny_data(50)
        torch.manual_seed(0)
        plan = replace(PLAN, accumulate=parts, kappa_start=0.5)
        loop = Loop(Task(fresh_net().double(), TensorExamples(x.double(), y), method, plan))
        loop.prepare()
        loop.step = 20  # full radius
        loop.advance()
        found.append([loop.window.read()["loss"], *(p.grad.clone() for p in loop.parameters)])
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-12)
    for whole, parts in zip(found[0][1:], found[1][1:], strict=True):
        torch.testing.assert_close(parts, whole, rtol=1e-10, atol=1e-13)


def test_no_part_is_larger_than_it_should_be_and_a_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    seen: list[int] = []

    @dataclass(frozen=True)
    class Spy(IBP):
        def loss(self, batch: Batch) -> Loss:
            seen.append(len(batch.labels))
            return super().loss(batch)

    plan = replace(PLAN, steps=8, warmup=2, ramp=4, decay_steps=(), accumulate=3)
    whole, halves = tiny_net(True), fresh_net(True)
    halves.load_state_dict(whole.state_dict())
    Loop(task(whole, Spy(), plan)).run()
    assert seen == [6, 6, 4] * 8
    store, calls = CheckpointStore(tmp_path), iter(range(9))
    assert (
        not Loop(task(halves, IBP(), plan), Surroundings(checkpoints=store, stop=lambda: next(calls) == 3))
        .run()
        .finished
    )
    assert Loop(task(halves, IBP(), plan), Surroundings(checkpoints=store)).run().finished
    assert all(torch.equal(a, b) for a, b in zip(weights(whole).values(), weights(halves).values(), strict=True))


def test_every_seed_is_another_run_and_the_same_seed_the_same() -> None:
    results = []
    for seed in (3, 3, 4):
        net = tiny_net()
        Loop(task(net, Adversarial(steps=1), replace(PLAN, seed=seed))).run()
        results.append(weights(net)["0.weight"])
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_plan_is_followed() -> None:
    seen: list[tuple[float, float]] = []

    @dataclass(frozen=True)
    class Spy(Method):
        name: ClassVar[str] = "spy"

        def loss(self, batch: Batch) -> Loss:
            seen.append((batch.epsilon, batch.kappa))
            assert batch.images.shape == (16, 4)
            assert batch.eps_train == 0.05
            return Loss(batch.model(batch.images).square().mean())

    diary = Diary()
    Loop(task(tiny_net(), Spy()), Surroundings(observer=diary, log_every=6)).run()
    assert [e for e, _ in seen] == [PLAN.epsilon.at(s) for s in range(24)]
    assert [k for _, k in seen] == [PLAN.kappa.at(s) for s in range(24)]
    assert [p.step for p in diary.progress] == [6, 12, 18, 24]
    assert [p.rate for p in diary.progress] == pytest.approx([0.01, 0.01, 0.01, 0.001])
    assert diary.progress[-1].seconds_left == 0.0
    assert diary.progress[0].samples_per_second > 0


def test_clipping_bounds_the_first_step() -> None:
    plan = replace(PLAN, steps=1, warmup=0, ramp=0, decay_steps=())

    def gradient_norm(clip: float | None) -> float:
        net = tiny_net()
        Loop(task(net, Nominal(), replace(plan, clip_norm=clip))).run()
        return float(torch.linalg.vector_norm(torch.cat([p.grad.flatten() for p in net.parameters()])))

    assert gradient_norm(1e-3) == pytest.approx(1e-3, rel=1e-3)
    assert gradient_norm(None) > 0.05


def test_divergence_is_reported_with_the_last_good_checkpoint(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Bomb(Method):
        name: ClassVar[str] = "bomb"

        def loss(self, batch: Batch) -> Loss:
            value = batch.model(batch.images).square().mean()
            return Loss(value * (float("nan") if batch.step >= 60 else 1.0))

    plan = replace(PLAN, steps=400)
    store = CheckpointStore(tmp_path, keep=100)
    with pytest.raises(DivergedError, match=r"between steps \d+ and \d+ .*checkpoint is .*step-0000000\d\d.*clip_norm"):
        Loop(task(tiny_net(), Bomb(), plan), Surroundings(checkpoints=store, checkpoint_seconds=0.0)).run()
    assert store.steps()[-1] == 60  # the last step with finite weights, and nothing after it
    with pytest.raises(DivergedError, match=r"between steps 50 and 100.*The last good checkpoint is none"):
        Loop(task(tiny_net(), Bomb(), plan)).run()


def test_evaluation_and_best(tmp_path: Path) -> None:
    evaluation = Evaluation(radii=("1/50", "1/20"), every=8, pgd_steps=3, pgd_images=10, batch_size=7)
    diary, store, net = Diary(), CheckpointStore(tmp_path), tiny_net()
    held_out = TensorExamples(*tiny_data(20, seed=2))
    job = replace(task(net, IBP()), held_out=held_out, evaluation=evaluation)
    outcome = Loop(job, Surroundings(observer=diary, checkpoints=store)).run()
    assert [step for step, _ in diary.errors] == [8, 16, 24]
    scores = {step: score(errors) for step, errors in diary.errors}
    assert outcome.finished
    assert outcome.best_error == min(scores.values())
    assert outcome.best_step == min(scores, key=lambda step: scores[step])
    assert store.read(tmp_path / "best").step == outcome.best_step


def test_measuring_leaves_frozen_parts_frozen() -> None:
    net = tiny_net(batch_norm=True).train()
    next(net.children()).eval()
    modes = [module.training for module in net.modules()]
    measure(net, TensorExamples(*tiny_data(4, seed=5)), Evaluation(radii=("1/50",)))
    assert [module.training for module in net.modules()] == modes


def test_measured_errors_are_counted_right() -> None:
    net, (x, y) = tiny_net().eval(), tiny_data(23, seed=5)
    evaluation = Evaluation(radii=(Fraction(1, 50),), pgd_steps=10, pgd_images=9, batch_size=4)
    errors = measure(net, TensorExamples(x, y), evaluation)
    margins = reference_margins(net, x, y, 0.02)
    wrong = net(x).argmax(1) != y
    assert errors.images == 23
    assert errors.clean == pytest.approx(wrong.double().mean().item())
    assert errors.verified[Fraction(1, 50)] == pytest.approx((margins.amax(1) > 0).double().mean().item())
    first = wrong[:9].double().mean().item()
    assert first <= errors.attacked[Fraction(1, 50)] <= (margins[:9].amax(1) > 0).double().mean().item()
    assert errors.record()["verified_error"] == {"1/50": errors.verified[Fraction(1, 50)]}
    assert errors.soundness == "deployed"


def test_a_diverged_net_scores_no_verified_example() -> None:
    net = fresh_net()
    measure(net, TensorExamples(*tiny_data(10)), Evaluation(radii=("1/50",)))  # traced while it was sound
    with torch.no_grad():
        net[0].weight.fill_(float("nan"))
    errors = measure(net, TensorExamples(*tiny_data(10)), Evaluation(radii=("1/50",)))
    assert errors.clean == 1.0
    assert errors.verified == {Fraction(1, 50): 1.0}


def test_an_all_zero_net_is_not_verified_by_ties() -> None:
    net = fresh_net()
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
    errors = measure(net, TensorExamples(*tiny_data(10)), Evaluation(radii=("1/50",)))
    assert errors.verified == {Fraction(1, 50): 1.0}


def test_training_on_images_augments_and_learns() -> None:
    """Bytes, augmentation, and a held-out split, through the public function."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(200) % 2
    images = torch.randint(0, 60, (200, 1, 6, 6), generator=generator, dtype=torch.uint8)
    images[labels == 1] += 120
    dataset = data.from_tensors((images, labels), (images[:40], labels[:40]), augment=data.Augment(pad=1, flip=True))
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 2))
    diary = Diary()
    plan = Plan(steps=150, batch_size=50, eps_train="0.02", warmup=30, ramp=60, learning_rate=0.01)
    evaluation = Evaluation(radii=("0.02",), every=150)
    assert train(net, dataset, IBP(), plan, evaluation=evaluation, observer=diary).finished
    (_, errors) = diary.errors[-1]
    assert errors.clean == 0.0
    assert errors.verified[Fraction("0.02")] < 0.1
    assert not net.training


def test_own_data_in_every_form() -> None:
    x, y = tiny_data(12)
    cpu = torch.device("cpu")
    pairs = [(a, int(b)) for a, b in zip(x, y, strict=True)]
    for form in ((x, y), torch.utils.data.TensorDataset(x, y), pairs):
        found = examples_of(form, "data", cpu)
        got = found.batch(torch.tensor([3, 1]))
        assert torch.equal(got[0], x[[3, 1]])
        assert torch.equal(got[1], y[[3, 1]])
    assert isinstance(examples_of((torch.zeros(2, 1, 3, 3, dtype=torch.uint8), y[:2]), "data", cpu), data.Split)


@pytest.mark.parametrize(
    ("form", "message"),
    [
        (7, "data is a int; give a surebound.data.Split"),
        ((torch.rand(3, 2), torch.zeros(2, dtype=torch.int64)), r"labels must be int64 of shape \(3,\)"),
        ((torch.zeros(3, dtype=torch.int64), torch.zeros(3)), "inputs must be floating point"),
        ([], "data is empty"),
        ([(1.0, 2)], r"must be pairs \(tensor, label\)"),
    ],
)
def test_data_that_cannot_be_used(form: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        examples_of(form, "data", torch.device("cpu"))


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="'ibp' needs a positive eps_train"):
        Loop(task(tiny_net(), IBP(), Plan(steps=1)))
    with pytest.raises(ConfigError, match="nothing to train"):
        Loop(task(nn.Identity(), Nominal()))
    with pytest.raises(InputError, match="parameters are on 0 devices"):
        train(nn.Identity(), tiny_data(), Nominal(), PLAN)
    pair = torch.rand(2, 1, 4, 4), torch.tensor([0, 1])
    whole = data.from_tensors(pair, pair)
    with pytest.raises(InputError, match="one split of a dataset"):
        train(tiny_net(), tiny_data(), Nominal(), PLAN, held_out=whole)
    with pytest.raises(ConfigError, match="radii must be 0 or more"):
        Evaluation(radii=("-1/2",))
    with pytest.raises(ConfigError, match="batch_size must be at least 1"):
        Evaluation(batch_size=0)


@pytest.mark.parametrize("method", [Nominal(), IBP()])
def test_labels_beyond_the_classes_are_refused(method: Method) -> None:
    inputs, labels = tiny_data(50)
    wrong = TensorExamples(inputs, labels + 10)
    net, message = tiny_net(), r"labels lie in \[10, .* but the network has"
    with pytest.raises(SpecError, match=message):
        Loop(replace(task(net, method), train=wrong)).run()
    with pytest.raises(SpecError, match=message):
        Loop(replace(task(net, method), held_out=wrong)).run()
    with pytest.raises(SpecError, match=message):
        measure(net, wrong, Evaluation())


def test_a_checkpoint_of_another_network_is_refused(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    plan = replace(PLAN, steps=2, warmup=0, ramp=0, decay_steps=())
    Loop(task(tiny_net(), Nominal(), plan), Surroundings(checkpoints=store)).run()
    with pytest.raises(RunError, match="step 2 does not fit this network"):
        Loop(task(Dropping(), Nominal(), plan), Surroundings(checkpoints=store)).run()


def test_inputs_of_another_scale_than_the_domain_are_refused() -> None:
    """Their balls, cut to the clip range, would be empty."""
    inputs, labels = torch.rand(20, 2) * 255, torch.zeros(20, dtype=torch.int64)
    plan = Plan(steps=2, batch_size=5, eps_train="1/100", warmup=1, ramp=1)
    net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(InputError, match=r"outside of the clip range \(0.0, 1.0\); scale them"):
        train(net, (inputs, labels), IBP(), plan)
    assert train(net, (inputs, labels), IBP(), plan, clip=(0.0, 255.0)).finished

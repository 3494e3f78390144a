"""A proof is about the network that runs: compared before it leaves, and kept under the network's own name."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import surebound as sb
from surebound.errors import InputError, StoreError, TraceMismatchError
from surebound.graph import program_of
from surebound.search.agreement import check_agreement
from surebound.verify.identity import code_version, network_digest, sources
from surebound.verify.run import identity_of
from surebound.verify.store import Store

SCALE = [1.0]  # what no fingerprint of a module can see


class ReadsGlobal(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * SCALE[0]


@pytest.fixture
def scale():
    yield SCALE
    SCALE[0] = 1.0


IMAGES, LABELS = torch.tensor([[0.6, 0.4], [0.9, 0.1]]), torch.tensor([0, 0])


def test_a_change_that_no_fingerprint_sees_is_an_error_not_a_verdict(scale: list[float]) -> None:
    net = ReadsGlobal()
    assert [r.verdict.status.value for r in sb.verify(net, sb.LinfBall(IMAGES, "1/100", clip=(0, 1)), LABELS)] == [
        "robust",
        "robust",
    ]
    scale[0] = 1.00001  # the prediction is the same: only a comparison with the program tells
    found = sb.verify(net, sb.LinfBall(IMAGES, "1/100", clip=(0, 1)), LABELS)
    assert [r.verdict.status.value for r in found] == ["error", "error"]
    assert "call surebound.forget(model)" in found.records[0].verdict.detail.lower()
    sb.forget(net)
    assert [r.verdict.status.value for r in sb.verify(net, sb.LinfBall(IMAGES, "1/100", clip=(0, 1)), LABELS)] == [
        "robust",
        "robust",
    ]


def test_a_difference_of_a_few_last_places_is_rounding(scale: list[float]) -> None:
    net = ReadsGlobal()
    region = sb.LinfBall(IMAGES, "1/100")
    program = program_of(net, IMAGES)
    check_agreement(program, net, region)
    scale[0] = 1 + 2.0**-23
    check_agreement(program, net, region)
    scale[0] = 1 + 2.0**-16
    with pytest.raises(TraceMismatchError, match="which is more than rounding explains: nothing is proved"):
        check_agreement(program, net, region)


class OnlyAtTheCorner(nn.Module):
    """Another function where both entries are large, which neither the centre nor a random point sees."""

    def forward(self, x: Tensor) -> Tensor:
        far = torch.relu(x.sum(1, keepdim=True) - 20.0195) if not torch.compiler.is_exporting() else 0.0
        return torch.cat([-x[:, :1] - x[:, 1:] + far, x[:, :1] * 0 - 50.0], 1)


def test_the_corner_where_a_bound_is_worst_is_tried() -> None:
    net, x = OnlyAtTheCorner(), torch.full((1, 2), 10.0)
    program = program_of(net, torch.zeros(1, 2))
    check_agreement(program, net, sb.LinfBall(x, "1/200"))
    with pytest.raises(TraceMismatchError, match="more than rounding explains"):
        check_agreement(program, net, sb.LinfBall(x, "1/100"))


class Slope(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.slope, self.shift = 0.1, torch.zeros(2)
        self.register_buffer("mask", torch.ones(2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.leaky_relu(x - 1, self.slope) * self.mask + self.shift

    def changed(self, name: str) -> Slope:
        other = copy.deepcopy(self)
        if name == "attribute":
            other.slope = -5.0
        elif name == "plain tensor":
            other.shift = torch.tensor([0.0, 9.0])
        elif name == "buffer":
            other.mask = torch.tensor([1.0, -1.0])
        else:
            other.forward = lambda x: x.flip(1)  # type: ignore[method-assign]
        return other


@pytest.mark.parametrize("name", ["attribute", "plain tensor", "buffer", "code"])
def test_another_network_gets_no_results_of_this_one(name: str, tmp_path: Path) -> None:
    net = Slope()
    other = net.changed(name)
    assert repr(net) == repr(other) and net.state_dict().keys() == other.state_dict().keys()
    first = sb.verify(net, sb.LinfBall(IMAGES, "1/100", clip=(0, 1)), LABELS, out=tmp_path)
    assert [record.verdict.status.value for record in first] == ["robust", "robust"]
    with pytest.raises(StoreError, match="results of another specification"):
        sb.verify(other, sb.LinfBall(IMAGES, "1/100", clip=(0, 1)), LABELS, out=tmp_path)
    mixed = sb.verify(other, sb.LinfBall(IMAGES, "1/100", clip=(0, 1)), LABELS, out=tmp_path, mix=True)
    assert [record.verdict.status.value for record in mixed] == ["falsified", "falsified"]
    again = sb.verify(copy.deepcopy(net), sb.LinfBall(IMAGES, "1/100", clip=(0, 1)), LABELS, out=tmp_path, mix=True)
    assert [record.verdict.status.value for record in again] == ["robust", "robust"]


def test_a_store_of_the_earlier_kind_is_read_but_not_gone_on_with(tmp_path: Path) -> None:
    net = Slope()
    now = identity_of(net, IMAGES, (0.0, 1.0))
    earlier = type(now)(now.weights, now.spec.partition("; program ")[0] + "; architecture 0123456789ab", now.code)
    (record,) = sb.verify(net, sb.LinfBall(IMAGES[:1], "1/100", clip=(0, 1)), LABELS[:1])
    with Store.open(tmp_path / "results.db", earlier) as store:
        store.add([record], "c")
    with Store.read(tmp_path / "results.db") as store:
        assert [each.verdict.status.value for each in store.records()] == ["robust"]
    with pytest.raises(StoreError, match="can still be read and reported"):
        sb.verify(net, sb.LinfBall(IMAGES, "1/100", clip=(0, 1)), LABELS, out=tmp_path)


class Untraceable(nn.Module):
    def __init__(self, power: int) -> None:
        super().__init__()
        self.power = power

    def forward(self, x: Tensor) -> Tensor:
        return x**self.power if float(x.sum()) > 0 else x


def test_networks_that_cannot_be_traced_are_told_apart_too() -> None:
    names = {network_digest(Untraceable(power), IMAGES[:1]) for power in (1, 2)}
    assert len(names) == 2 and all(name.startswith("module ") for name in names)


def test_the_code_version_covers_everything_that_can_say_robust() -> None:
    package = Path(sb.__file__).parent
    beside = {"audit", "cli", "data", "experiment", "models", "report", "reproduction", "train", "zoo"}
    expected = {
        path.relative_to(package)
        for suffix in ("py", "c", "h")
        for path in package.rglob(f"*.{suffix}")
        if path.relative_to(package).parts[0] not in beside
    }
    assert {name for name, _ in sources(package)} == expected
    folders = {name.parts[0] for name in expected}
    assert {
        "flags.py",
        "numerics",
        "spec",
        "graph",
        "kernels",
        "rules",
        "bounds",
        "search",
        "vnnlib",
    } <= folders
    assert any(name.suffix == ".c" for name in expected)
    assert code_version().count("+") == 1


def test_any_changed_source_is_another_version(tmp_path: Path) -> None:
    for name in ("flags.py", "kernels/a.c", "search/deep/b.py", "cli/c.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    known = dict(sources(tmp_path))
    assert sorted(map(str, known)) == ["flags.py", "kernels/a.c", "search/deep/b.py"]
    (tmp_path / "kernels" / "a.c").write_text("2")
    assert dict(sources(tmp_path)) != known


def test_a_decision_is_about_the_networks_that_run(scale: list[float]) -> None:
    net, region = ReadsGlobal(), sb.LinfBall(IMAGES, "1/100")
    assert [v.status.value for v in sb.decide(net, region, sb.Spec.label(0))] == ["robust", "robust"]
    scale[0] = 1.00001
    with pytest.raises(TraceMismatchError, match="nothing is proved"):
        sb.decide(net, region, sb.Spec.label(0))
    with pytest.raises(TraceMismatchError, match="nothing is proved"):  # the other network of a property, too
        sb.decide(nn.Flatten(), region, sb.Spec.equivalent(net, "1/10"))


class InCompany(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "size":
            return x * x.shape[0]
        return x - x.mean(0) if self.how == "mean" else x[torch.arange(x.shape[0]).clamp(max=1)]


@pytest.mark.parametrize("how", ["size", "mean", "neighbour"])
def test_verdicts_are_of_examples_alone(how: str) -> None:
    images = torch.tensor([[0.6, 0.4], [0.9, 0.1], [0.2, 0.7]])
    with pytest.raises(InputError, match="the network's answer for an example depends on its batch"):
        sb.verify(InCompany(how), sb.LinfBall(images, "1/100", clip=(0, 1)), torch.tensor([0, 0, 1]), "fast")


class FailsBackwards(nn.Module):
    """Clamps a value that broadcasts to its ends: PyTorch computes that, and not its derivative."""

    def forward(self, x: Tensor) -> Tensor:
        h = torch.stack([x, x + 1], 1)
        return torch.clamp(torch.tensor([1.6, 0.0]), h, h[:, :1] + 2).flatten(1)


def test_a_network_without_a_derivative_is_compared_at_other_points() -> None:
    net, x = FailsBackwards(), IMAGES.clone().requires_grad_(True)
    with pytest.raises(RuntimeError, match="broadcast"):
        torch.autograd.grad(net(x).sum(), x)
    check_agreement(program_of(net, IMAGES), net, sb.LinfBall(IMAGES, "1/100", clip=(0, 1)))

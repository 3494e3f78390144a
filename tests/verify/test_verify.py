"""The whole cascade: right verdicts, whatever the stages say; its settings and its summary."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from surebound.attack import attack
from surebound.attack.methods import PGD
from surebound.errors import (
    ConfigError,
    InputError,
    RegionError,
    SpecError,
    SureboundError,
    UnsupportedOperatorError,
)
from surebound.region import Box, LinfBall
from surebound.search.labels import Labels
from surebound.search.question import Questions
from surebound.search.stages import (
    Clean,
    CrownBounds,
    IntervalBounds,
    MixedInteger,
    MultiTargetedAttack,
    PgdAttack,
    Stage,
)
from surebound.search.workspace import Workspace
from surebound.verdict import Status, Verdict
from surebound.verify import Cascade, Record, Results, cascade, verify
from surebound.verify.identity import weights_hash
from surebound.verify.radii import parse_radii
from surebound.verify.summary import summarise
from tests.verify.nets import Liar, needle, steep
from tests.verify.oracle import exact_maximum, tiny_net

CENTER = torch.full((1, 3), 0.5)
ZERO = torch.tensor([0])


def one(*stages: Stage, net: nn.Module | None = None, eps: str = "2/5", **options: object) -> Record:
    region = LinfBall(CENTER, eps, clip=(0, 1))
    results = verify(net or NEEDLE, region, ZERO, Cascade("test", stages), **options)  # type: ignore[arg-type]
    return results.records[0]


NEEDLE = needle()


def test_mip_finds_what_gradients_cannot() -> None:
    """The needle is invisible to PGD and to bounds; the MIP falsifies it with a witness that is one."""
    record = one(Clean(), IntervalBounds(), CrownBounds(), PgdAttack(20, 3), MultiTargetedAttack(20, 1), MixedInteger())
    verdict = record.verdict
    assert (verdict.status, verdict.stage) == (Status.FALSIFIED, "mip")
    assert verdict.witness is not None
    assert verdict.witness.dtype == torch.float32
    assert int(NEEDLE(verdict.witness.unsqueeze(0)).argmax()) == 1
    for a, b in zip(verdict.witness.tolist(), CENTER[0].tolist(), strict=True):
        assert abs(Fraction(a) - Fraction(b)) <= Fraction(2, 5)
    assert [name for name, _ in record.stage_seconds] == [
        "clean", "interval", "crown", "pgd", "multi-targeted", "mip",
    ]  # fmt: skip


def test_mip_proves_what_bounds_cannot() -> None:
    """With the needle outside the ball the MIP proves robustness, and says that it rests on a tolerance."""
    net = needle(at=0.95)
    net[4].bias.data[0] = 1.0
    record = one(Clean(), IntervalBounds(), MixedInteger(), net=net, eps="0.44")
    assert record.verdict.status is Status.ROBUST
    if record.verdict.stage == "mip":
        assert not record.verdict.float_sound
    assert record.verdict.bound <= 0


def test_bounds_are_float_sound_and_come_first() -> None:
    record = one(Clean(), IntervalBounds(), MixedInteger(), eps="1/100")
    assert (record.verdict.status, record.verdict.stage, record.verdict.float_sound) == (
        Status.ROBUST,
        "interval",
        True,
    )


@pytest.mark.parametrize("stages", [Cascade("t", (IntervalBounds(), MixedInteger())), cascade("crown")])
def test_verdicts_agree_with_every_activation_pattern(stages: Cascade) -> None:
    net = tiny_net([2, 3, 2, 3], 0)
    images = torch.rand(4, 2, generator=torch.Generator().manual_seed(3))
    seen = set()
    for seed in (1, 4):
        net.load_state_dict(tiny_net([2, 3, 2, 3], seed, scale=3.0).state_dict())
        labels = net(images).argmax(1)
        found = attack(net, LinfBall(images, "1/5", clip=(0, 1)), labels, PGD(steps=20, restarts=2))
        for record, margin in zip(
            verify(net, LinfBall(images, "1/5", clip=(0, 1)), labels, stages),
            found.margins,
            strict=True,
        ):
            x, label = images[record.index], int(labels[record.index])
            low, high = (x - 0.2).clamp(0, 1), (x + 0.2).clamp(0, 1)
            rows = [np.eye(3)[k] - np.eye(3)[label] for k in range(3) if k != label]
            truth = max(exact_maximum(net, low, high, row) for row in rows)
            assert float(margin) <= truth + 1e-5  # an attack never beats the exact maximum
            assert record.verdict.bound >= truth - 1e-4
            assert record.verdict.status is (Status.ROBUST if truth <= 0 else Status.FALSIFIED)
            seen.add(record.verdict.status)
    assert seen == {Status.ROBUST, Status.FALSIFIED}


def test_what_nothing_decides_is_unknown_and_counts_as_attackable() -> None:
    results = verify(
        NEEDLE,
        LinfBall(CENTER, "2/5", clip=(0, 1)),
        ZERO,
        Cascade("weak", (Clean(), IntervalBounds(), CrownBounds())),
    )
    verdict = results.records[0].verdict
    assert (verdict.status, verdict.stage) == (Status.UNKNOWN, "crown")
    assert results.summary().verified_error == 1.0
    assert results.summary().falsified_error == 0.0
    assert 0 < verdict.bound < math.inf


def test_wrong_predictions_are_falsified_by_themselves() -> None:
    record = verify(NEEDLE, LinfBall(CENTER, "1/100", clip=(0, 1)), torch.tensor([1]), "fast").records[0]
    assert (record.verdict.status, record.verdict.stage, record.prediction) == (Status.FALSIFIED, "clean", 0)
    assert torch.equal(record.verdict.witness, CENTER[0])
    constant = nn.Linear(3, 3).requires_grad_(False)
    constant.weight.zero_(), constant.bias.zero_()
    tie = verify(constant, LinfBall(CENTER, "1/100", clip=(0, 1)), torch.tensor([2]), "fast").records[0]
    assert tie.verdict.status is Status.FALSIFIED  # a network that always ties predicts class 0


def test_a_nan_network_is_never_robust() -> None:
    broken = nn.Linear(3, 3).requires_grad_(False)
    broken.weight.fill_(math.nan)
    verdict = (
        verify(broken, LinfBall(CENTER, "1/100", clip=(0, 1)), ZERO, Cascade("b", (IntervalBounds(), Clean())))
        .records[0]
        .verdict
    )
    assert verdict.status is not Status.ROBUST


def test_a_targeted_attack_aims_only_at_what_is_open() -> None:
    """Class 1 can win and class 2 can, too; whichever is ruled out by bounds is not aimed at."""
    net = nn.Linear(2, 3, bias=False).requires_grad_(False)
    net.weight.copy_(torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
    x = torch.full((3, 2), -0.1)
    margins = torch.tensor([[-math.inf, 1.0, -1.0], [-math.inf, -1.0, 1.0], [-math.inf, -1.0, -1.0]])
    zeros = torch.zeros(3, dtype=torch.int64)
    with Workspace(net) as workspace:
        asked = Labels(workspace, zeros, zeros, 3)
        questions = Questions(LinfBall(x, "1/5"), asked, margins.double(), torch.arange(3))
        first, second, nobody = MultiTargetedAttack(steps=5, restarts=1).decide(questions, workspace)
    assert nobody.witness is None
    assert first.witness is not None
    assert second.witness is not None
    assert first.witness[0] > 0
    assert second.witness[1] > 0


def test_a_lying_stage_proves_nothing() -> None:
    assert one(Liar()).verdict.status is Status.UNKNOWN


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"eps": "-1/10"}, InputError, "negative"),
        ({"region": []}, InputError, "no region was given"),
        ({"region": CENTER}, RegionError, "the region is a Tensor; give sb.LinfBall"),
        (
            {"region": Box(CENTER, CENTER)},
            RegionError,
            r"the region is a Box; .*sb.decide\(model, box, labels\)",
        ),
        (
            {"region": [LinfBall(CENTER, "1/10", clip=(0, 1)), LinfBall(CENTER, "1/5")]},
            RegionError,
            "the same images and clip; only eps differs",
        ),
        ({"region": [LinfBall(CENTER, 0), LinfBall(CENTER / 2, 0)]}, RegionError, "the same images and clip"),
        ({"eps": "x"}, InputError, "not a finite number"),
        ({"labels": torch.tensor([7])}, SpecError, "must be in 0..1"),
        ({"images": torch.rand(1, 3).double()}, InputError, "images are torch.float64"),
        ({"images": torch.full((1, 3), 2.0)}, InputError, "outside clip"),
        ({"images": torch.full((1, 3), math.nan)}, InputError, "NaN"),
        ({"jobs": 0}, InputError, "1 or more worker processes"),
        ({"timeout": 0.0}, InputError, "more than 0"),
        ({"indices": [5]}, InputError, "index 5: there are 1 images"),
        (
            {"cascade": "best"},
            ConfigError,
            "cascade 'best' is not known; choose one of: default, paper, fast, crown",
        ),
        (
            {"cascade": Cascade("c", (MixedInteger(solver="cplex"),))},
            ConfigError,
            "solver 'cplex' is not known",
        ),
    ],
)
def test_bad_input_is_refused_clearly(changes: dict[str, object], error: type[Exception], message: str) -> None:
    given: dict[str, Any] = {"images": CENTER, "labels": ZERO, "eps": "1/10", "cascade": "fast", **changes}
    images, eps = given.pop("images"), given.pop("eps")
    with pytest.raises(error, match=message):
        verify(NEEDLE, given.pop("region") if "region" in given else LinfBall(images, eps, clip=(0, 1)), **given)


def test_cascades_are_data() -> None:
    assert cascade("paper").names == ("clean", "interval", "pgd", "mip", "lp")
    assert cascade("default").key != cascade("fast").key
    assert len({cascade("default").key, Cascade("x", (MixedInteger(seconds=5),)).key}) == 2
    with pytest.raises(ConfigError, match="no stages"):
        Cascade("empty", ())
    with pytest.raises(ConfigError, match="'pgd' twice"):
        Cascade("twice", (PgdAttack(), PgdAttack()))


def test_radii() -> None:
    assert parse_radii("0:0.45:0.05") == [Fraction(k, 20) for k in range(10)]
    assert parse_radii("0.1,8/255") == [Fraction(8, 255), Fraction(1, 10)]
    for text, message in (
        ("0:1", "FIRST:LAST:STEP"),
        ("1:0:0.1", "positive"),
        ("0:1:1e-9", "the most is 1000"),
        ("-1", "negative"),
    ):
        with pytest.raises(InputError, match=message):
            parse_radii(text)


def test_summary() -> None:
    def record(index: int, status: Status, stage: str, sound: bool = False) -> Record:
        bound = -1.0 if status is Status.ROBUST else math.inf
        witness = torch.zeros(1) if status is Status.FALSIFIED else None
        verdict = Verdict(status, stage, bound, witness, float_sound=sound)
        return Record(index, 0, 0, Fraction(1, 10), verdict, stage_seconds=(("clean", 1.0), (stage, 2.0)))

    results = Results(
        (
            record(0, Status.FALSIFIED, "clean"),
            record(1, Status.FALSIFIED, "pgd"),
            record(2, Status.FALSIFIED, "mip"),
            record(3, Status.ROBUST, "interval", sound=True),
            record(4, Status.ROBUST, "mip"),
            record(5, Status.UNKNOWN, "lp"),
            record(6, Status.TIMEOUT, "mip"),
            record(7, Status.ERROR, "mip"),
        )
    )
    summary = results.summary()
    assert summary.clean_error == 1 / 8
    assert summary.interval == (2 / 8, 6 / 8)
    assert summary.falsified_error == 3 / 8
    assert summary.float_sound_error == 7 / 8
    assert dict(summary.statuses) == {"falsified": 3, "robust": 2, "unknown": 1, "timeout": 1, "error": 1}
    assert ("mip", "robust", 1) in summary.stages
    assert dict(summary.stage_seconds)["mip"] == 8.0
    assert sum(r.verdict.status in (Status.UNKNOWN, Status.ERROR) for r in results) == 2
    with pytest.raises(InputError, match="about one radius; given: no records"):
        results.summary("1/5")


def test_the_hash_of_weights_sees_every_number() -> None:
    state = {k: v.clone() for k, v in steep().state_dict().items()}
    before = weights_hash(state)
    state["0.weight"][0, 0] = torch.nextafter(state["0.weight"][0, 0], torch.tensor(2.0))
    assert weights_hash(state) != before


class _Bessel(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.special.bessel_j0(x[:, :2])


class _Random(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x[:, :2], 0.5, training=True)


def test_a_network_that_cannot_be_bounded_is_refused_at_once() -> None:
    """Also where every image is wrong as it is, so that no stage would ever ask for bounds."""
    wrong = 1 - _Bessel()(CENTER).argmax(1)
    with pytest.raises(UnsupportedOperatorError, match="bessel_j0"):
        verify(_Bessel(), LinfBall(CENTER, "1/10", clip=(0, 1)), wrong)
    assert (
        verify(
            _Bessel(),
            LinfBall(CENTER, "1/10", clip=(0, 1)),
            wrong,
            Cascade("attacks", (Clean(), PgdAttack())),
        )
        .summary()
        .total
        == 1
    )
    with pytest.raises(SureboundError):
        verify(_Random(), LinfBall(CENTER, "1/10", clip=(0, 1)), ZERO)


def test_images_of_another_shape_are_refused() -> None:
    with pytest.raises(InputError, match=r"the network does not take inputs of shape \(7,\)"):
        verify(NEEDLE, LinfBall(torch.rand(1, 7), "1/10", clip=(0, 1)), ZERO)


def test_a_summary_lists_stages_in_the_order_of_the_cascade() -> None:
    """Even if the first image was settled by a late stage."""
    stages = ("clean", "interval", "pgd")
    robust, broken = Status.ROBUST, Status.FALSIFIED

    def settled(index: int, status: Status, by: int) -> Record:
        verdict = Verdict(status, stages[by], -1.0, torch.zeros(1) if status is broken else None)
        return Record(index, 0, 0, Fraction(1, 10), verdict, tuple((name, 0.5) for name in stages[: by + 1]))

    found = summarise([settled(0, broken, 2), settled(1, robust, 1), settled(2, broken, 0), settled(3, robust, 1)])
    assert found.stages == (("clean", "falsified", 1), ("interval", "robust", 2), ("pgd", "falsified", 1))

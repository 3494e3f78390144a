"""Specifications in Python: against dense sampling and exact edge cases, by every stage, and what is refused."""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

import surebound as sb
from surebound.attack import attack
from surebound.attack.methods import PGD
from surebound.errors import InputError, QueryError, RegionError, SpecError
from surebound.search.specification import ends
from surebound.spec.formula import Any, Sum, comparison
from surebound.verdict import Status

Spec = sb.Spec
BOX = sb.Box(-torch.ones(1, 2), torch.ones(1, 2))
GRID = torch.cartesian_prod(*[torch.linspace(-1, 1, 101)] * 2)  # (N, 2)


@functools.cache  # traced once
def dense(*sizes: int, seed: int = 0) -> nn.Sequential:
    generator = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layer = nn.Linear(a, b).requires_grad_(False)
        layer.weight.copy_(torch.randn(b, a, generator=generator) * 1.4 / math.sqrt(a))
        layer.bias.copy_(torch.randn(b, generator=generator) * 0.3)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def weights(*rows: list[float]) -> nn.Linear:
    layer = nn.Linear(len(rows[0]), len(rows), bias=False).requires_grad_(False)
    layer.weight.copy_(torch.tensor(rows))
    return layer


def others(z: Tensor, k: int) -> Tensor:
    return torch.cat([z[:, :k], z[:, k + 1 :]], 1)


Holds = Callable[[Tensor], Tensor]  # outputs (N, K) -> (N,) bool, written without surebound

CASES: dict[str, tuple[Spec, Holds]] = {
    "within": (Spec.within(-1, [0.9, 1.5, 1.2]), lambda z: ((z >= -1) & (z <= torch.tensor([0.9, 1.5, 1.2]))).all(1)),
    "label": (Spec.label(1), lambda z: z[:, 1] >= others(z, 1).amax(1)),
    "targeted": (Spec.label(1, against=[2]), lambda z: z[:, 1] >= z[:, 2]),
    "never": (Spec.never(2), lambda z: z[:, 2] < others(z, 2).amax(1)),
    "top 2": (Spec.top_k(0, k=2), lambda z: (z > z[:, :1]).sum(1) < 2),
    "linear": (
        Spec.linear(torch.tensor([[1.0, -2.0, 0.5], [0.0, 1.0, 1.0]]), torch.tensor([-1.0, -2.0])),
        lambda z: (z @ torch.tensor([[1.0, -2.0, 0.5], [0.0, 1.0, 1.0]]).T <= torch.tensor([1.0, 2.0])).all(1),
    ),
    "tree": (
        (Spec.never(0) | Spec.within(lower=-1)) & Spec.any_of(Spec.within(upper=1.5), Spec.label(2)),
        lambda z: ((z[:, 0] < others(z, 0).amax(1)) | (z >= -1).all(1))
        & ((z <= 1.5).all(1) | (z[:, 2] >= others(z, 2).amax(1))),
    ),
}  # fmt: skip


@pytest.mark.parametrize("splits", ["input-splitting", "relu-splitting"])
@pytest.mark.parametrize("name", CASES)
def test_against_dense_samples(name: str, splits: str) -> None:
    """On small networks every verdict is a decision, and the grid agrees with it."""
    spec, holds = CASES[name]
    for seed in range(3):
        net = dense(2, 6, 3, seed=seed)
        (verdict,) = sb.decide(net, BOX, spec, stages=("bounds", "attack", splits))
        if not holds(net(GRID)).all():
            assert verdict.status is Status.FALSIFIED
        if verdict.status is Status.FALSIFIED:
            assert verdict.witness is not None
            assert not holds(net(verdict.witness.unsqueeze(0)))
            assert bool((verdict.witness.abs() <= 1).all())
        else:
            assert verdict.status is Status.ROBUST
            assert verdict.float_sound


@pytest.mark.parametrize("name", ["never", "tree"])
def test_mip_agrees_with_branch_and_bound(name: str) -> None:
    for seed in range(2):
        net = dense(2, 6, 3, seed=seed)
        found = [
            sb.decide(net, BOX, CASES[name][0], stages=stages, tolerance=True)[0]
            for stages in (("branch-and-bound",), ("mip",))
        ]
        assert found[0].status is found[1].status
        assert found[0].status.decided
        assert found[1].float_sound == (found[1].status is Status.FALSIFIED)  # a proof rests on a tolerance


@pytest.mark.parametrize("name", CASES)
def test_an_attack_agrees_about_violations(name: str) -> None:
    """What sb.attack calls broken is broken; it finds what a grid finds easily."""
    spec, holds = CASES[name]
    for seed in range(3):
        net = dense(2, 6, 3, seed=seed)
        region = sb.LinfBall(torch.zeros(1, 2), 1)
        result = attack(net, region, spec=spec, method=PGD(steps=30, restarts=5))
        assert not (result.success[0] and holds(net(result.adversarial))[0])
        if (~holds(net(GRID))).double().mean() > 0.05:
            assert result.success[0]


def test_bounds_of_a_conjunction_are_those_of_its_rows() -> None:
    net, c, d = dense(2, 6, 3), torch.randn(4, 3), torch.randn(4)
    for method in ("interval", "crown"):
        ours = sb.worst_margins(net, BOX, spec=Spec.linear(c, d), method=method)
        rows = sb.LinearSpec(c.double(), d.double())
        torch.testing.assert_close(ours, sb.worst_margins(net, BOX, spec=rows, method=method), rtol=1e-4, atol=1e-4)
    with pytest.raises(SpecError, match="not a conjunction of rows .* use surebound.decide"):
        sb.worst_margins(net, BOX, spec=Spec.never(0))
    with pytest.raises(SpecError, match="relates two points"):
        sb.worst_margins(net, BOX, spec=Spec.monotone(0))


# Two runs.


def test_differences_of_networks_are_bounded_jointly() -> None:
    """Apart, two networks of range 2 differ by 4; together the bound is the difference that there is."""
    net = weights([1.0, 1.0])
    other = weights([1.0, 1.0 + 2.0**-10])
    assert sb.worst_margins(net, BOX, spec=Spec.equivalent(other, 0), method="crown").max() < 0.001
    assert sb.decide(net, BOX, Spec.equivalent(other, "1/1000"))[0].status is Status.ROBUST
    (verdict,) = sb.decide(net, BOX, Spec.equivalent(other, "9/10000"))
    assert verdict.status is Status.FALSIFIED
    assert verdict.witness is not None
    assert abs(net(verdict.witness) - other(verdict.witness)) > 0.0009


def test_a_network_is_equivalent_to_itself_without_tolerance() -> None:
    net = dense(2, 6, 3)
    spec = Spec.equivalent(net, 0) & Spec.same_class(net)
    assert sb.decide(net, BOX, spec)[0].status is Status.ROBUST


@pytest.mark.parametrize("seed", range(2))
def test_equivalence_against_dense_samples(seed: int) -> None:
    net = dense(2, 6, 3, seed=seed)
    other = copy.deepcopy(net)
    other[2].weight += 0.01 * torch.randn(3, 6, generator=torch.Generator().manual_seed(seed))
    most = float((net(GRID) - other(GRID)).abs().max())
    assert sb.decide(net, BOX, Spec.equivalent(other, 0.99 * most))[0].status is Status.FALSIFIED
    assert sb.decide(net, BOX, Spec.equivalent(other, 1.2 * most))[0].status is Status.ROBUST
    differ = net(GRID).argmax(1) != other(GRID).argmax(1)
    (verdict,) = sb.decide(net, BOX, Spec.same_class(other))
    if bool(differ.any()):
        assert verdict.status is Status.FALSIFIED
    if verdict.witness is not None:
        assert net(verdict.witness).argmax() != other(verdict.witness).argmax()


def test_monotone_in_chosen_inputs() -> None:
    """|x0| falls, then rises; x1 only ever raises the output."""
    net = nn.Sequential(weights([1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]), nn.ReLU(), weights([1.0, 1.0, 2.0]))
    assert sb.decide(net, BOX, Spec.monotone(1, tolerance="1/1000"))[0].status is Status.ROBUST
    (verdict,) = sb.decide(net, BOX, Spec.monotone(0, tolerance="1/1000"))
    assert verdict.status is Status.FALSIFIED
    assert verdict.witness is not None
    x, raised = verdict.witness
    assert raised[0] >= x[0]
    assert raised[1] == x[1]
    assert net(raised) < net(x) - 0.001
    right = sb.Box(torch.tensor([[0.0, -1.0]]), torch.ones(1, 2))
    assert sb.decide(net, right, Spec.monotone([0, 1], tolerance="1/1000"))[0].status is Status.ROBUST
    left = sb.Box(-torch.ones(1, 2), torch.tensor([[0.0, 1.0]]))
    falling = Spec.monotone(0, increasing=False, tolerance="1/1000")
    assert sb.decide(net, left, falling)[0].status is Status.ROBUST
    assert sb.decide(net, BOX, Spec.monotone(0, tolerance=1.01))[0].status is Status.ROBUST  # it falls by 1 at most
    assert sb.decide(net, BOX, Spec.monotone(0, tolerance=0.99))[0].status is Status.FALSIFIED


def test_without_tolerance_monotonicity_is_never_proved_for_floats() -> None:
    """It holds over the reals; at x' = x with equality, so that rounding and a solver's tolerance are in the way."""
    net = nn.Sequential(weights([0.3, 0.7]), nn.ReLU(), weights([0.7]))
    (verdict,) = sb.decide(net, BOX, Spec.monotone([0, 1]))
    assert verdict.status is not Status.FALSIFIED
    assert not verdict.float_sound


def test_alternatives_about_two_points_each_have_their_own_point() -> None:
    """f = (x0, -x0) is monotone in one output or the other at every pair; not in one of them at all pairs."""
    net = weights([1.0, 0.0], [-1.0, 0.0])
    either = Spec.monotone(0, 0, tolerance=0.01) | Spec.monotone(0, 1, tolerance=0.01)
    assert sb.decide(net, BOX, either)[0].status is Status.ROBUST
    neither = Spec.monotone(0, 1, tolerance=0.01) | Spec.monotone(0, 0, increasing=False, tolerance=0.01)
    assert sb.decide(net, BOX, neither)[0].status is Status.FALSIFIED


# Edges.


def test_equality_holds() -> None:
    """A ReLU of numbers in [-1, 1] reaches 0 and 1 exactly: <= 1 is proved, less than 1 is refuted at a corner."""
    net = nn.ReLU()
    assert sb.decide(net, BOX, Spec.within(0, 1))[0].float_sound
    below = torch.nextafter(torch.tensor(1.0), torch.tensor(0.0))
    (verdict,) = sb.decide(net, BOX, Spec.within(upper=[below.item(), 1]))
    assert verdict.status is Status.FALSIFIED
    assert verdict.witness is not None
    assert verdict.witness[0] == 1


def test_equality_after_a_sum_is_about_reals() -> None:
    """x0 + x1 <= 2 holds, but bounds of sums leave room for rounding: no float-sound proof, and no counterexample."""
    net, spec = weights([1.0, 1.0]), Spec.within(-2, 2)
    (verdict,) = sb.decide(net, BOX, spec)
    assert verdict.status is Status.UNKNOWN
    assert "within a solver's tolerance" in verdict.detail
    (verdict,) = sb.decide(net, BOX, spec, tolerance=True)
    assert (verdict.status, verdict.stage, verdict.float_sound) == (Status.ROBUST, "mip", False)
    (verdict,) = sb.decide(net, BOX, spec, stages=("bounds", "attack", "branch-and-bound"))
    assert verdict.status is Status.UNKNOWN


def test_ties_are_on_the_safe_side() -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x[:, :1], x[:, :1]], 1)

    none_is_larger = Spec.label(0) & Spec.top_k(1, 1)
    assert sb.decide(Twice(), BOX, none_is_larger)[0].status is not Status.FALSIFIED
    assert sb.decide(Twice(), BOX, none_is_larger, tolerance=True)[0].status is Status.ROBUST
    assert sb.decide(Twice(), BOX, Spec.never(1))[0].status is Status.FALSIFIED  # argmax may choose it


def test_nan_is_never_proved() -> None:
    """h - h is 0 until h overflows: then NaN, in one corner of the box."""
    net = nn.Sequential(weights([2e38, 2e38], [2e38, 2e38]), weights([1.0, -1.0], [1.0, -1.0]))
    assert net(torch.ones(1, 2)).isnan().all()
    for spec in (Spec.within(-1, 1), Spec.any_of(Spec.label(0), Spec.label(1))):
        (verdict,) = sb.decide(net, BOX, spec, stages=("bounds", "attack", "branch-and-bound"), timeout=5)
        assert verdict.status is not Status.ROBUST
        corner = sb.Box(torch.ones(1, 2), torch.ones(1, 2))
        assert sb.decide(net, corner, spec, stages=["attack"])[0].status is Status.FALSIFIED
        assert attack(net, corner, spec=spec, method=PGD(steps=1, restarts=1)).success[0]


def test_many_classes_are_counted_not_multiplied_out() -> None:
    """100 outputs: 98 choose 5 combinations, of which bounds leave none."""
    net = nn.Linear(2, 100).requires_grad_(False)
    net.weight.copy_(torch.zeros(100, 2))
    net.bias.copy_(torch.arange(100.0))
    assert sb.decide(net, BOX, Spec.top_k(95, k=5))[0].status is Status.ROBUST
    assert sb.decide(net, BOX, Spec.top_k(94, k=5))[0].status is Status.FALSIFIED


def test_one_specification_per_example_and_balls() -> None:
    net, x = dense(2, 6, 3), torch.tensor([[0.2, 0.1], [-0.6, 0.9], [0.4, 0.5]])
    ball = sb.LinfBall(x, "1/1000", clip=(-1, 1))
    verdicts = sb.decide(net, ball, [Spec.label(int(k)) for k in net(x).argmax(1)])
    assert [v.status for v in verdicts] == [Status.ROBUST] * 3
    wrong = sb.decide(net, ball, [Spec.label(int(k)) for k in net(x).argmin(1)])
    assert [v.status for v in wrong] == [Status.FALSIFIED] * 3
    for v, centre in zip(wrong, x, strict=True):
        assert v.witness is not None
        assert bool(((v.witness.double() - centre.double()).abs() <= 1 / 1000).all())


def test_images_and_weights_as_they_are_now() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)).eval()
    other = copy.deepcopy(net)
    ball = sb.LinfBall(torch.rand(1, 1, 4, 4), "1/50", clip=(0, 1))
    assert sb.decide(net, ball, Spec.equivalent(other, "1/100000"))[0].status is Status.ROBUST
    with torch.no_grad():
        other[4].bias += 1
    assert sb.decide(net, ball, Spec.equivalent(other, 1e-5))[0].status is Status.FALSIFIED
    assert not net.training


WRONG = {
    "places": (lambda: Spec.label(-1), "label: -1 is no place"),
    "targets": (lambda: Spec.label(1, against=[1]), "other outputs than the label 1"),
    "k": (lambda: Spec.top_k(0, 0), "k=0; give 1 or more"),
    "limits": (lambda: Spec.within(), "limits nothing"),
    "nan": (lambda: Spec.within(torch.tensor([math.nan])), "NaN or infinity"),
    "parts": (lambda: Spec.all_of(), "was given nothing"),
    "no spec": (lambda: Spec.any_of(Spec.label(0), sb.LinearSpec(torch.eye(2))), "given a LinearSpec"),
    "delta": (lambda: Spec.equivalent(nn.Identity(), -1), "delta=-1; give the largest difference"),
    "network": (lambda: Spec.same_class(abs), "give a torch.nn.Module"),
    "tolerance": (lambda: Spec.monotone(0, tolerance=-1), "a tolerance of 0 or more"),
    "batch": (lambda: Spec.linear(torch.zeros(2, 1, 3)), r"give \(S, K\), and one Spec per example"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_specifications_are_refused(name: str) -> None:
    make, match = WRONG[name]
    with pytest.raises(SpecError, match=match):
        make()


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        (Spec.label(3), "output 3: the network has 3 outputs"),
        (Spec.linear(torch.eye(2)), "2 coefficients per row but the network 3 outputs"),
        (Spec.within([0, 0]), "lower has 2 numbers but the network 3 outputs"),
        (Spec.monotone(2), "input 2: the network has 2 inputs"),
        (Spec.equivalent(dense(2, 4), 1), "have 3 and 4 outputs"),
        ([Spec.label(0)] * 2, "2 specifications for 1 examples"),
    ],
)
def test_what_does_not_fit_the_network_is_refused(spec: Spec, match: str) -> None:
    with pytest.raises(SpecError, match=match):
        sb.decide(dense(2, 3), BOX, spec)


def test_other_wrong_input_is_refused() -> None:
    net, spec = dense(2, 3), Spec.label(0)
    with pytest.raises(InputError, match="stages=.*give one or more of bounds, attack"):
        sb.decide(net, BOX, spec, stages=["lp"])
    with pytest.raises(InputError, match="timeout=0"):
        sb.decide(net, BOX, spec, timeout=0)
    with pytest.raises(InputError, match="proves nothing"):
        sb.decide(net, BOX, spec, soundness="none")
    with pytest.raises(RegionError, match="reaches infinity"):
        sb.decide(net, sb.Box(-torch.full((1, 2), math.inf), torch.ones(1, 2)), spec)
    with pytest.raises(InputError, match="float64"):
        sb.decide(net, sb.Box(-torch.ones(1, 2).double(), torch.ones(1, 2).double()), spec)
    for related in (Spec.monotone(0), Spec.same_class(dense(2, 3))):
        with pytest.raises(SpecError, match=r"relates two runs.*stages=\['attack'\]"):
            sb.attack(net, sb.LinfBall(torch.zeros(1, 2), 1, clip=(0, 1)), spec=related)


def test_a_coefficient_that_would_be_rounded_is_refused_by_bounds() -> None:
    third = Spec("a third", lambda scope: Sum(Fraction(-1)).plus(scope.output(0), Fraction(1, 3)).atom(False))
    with pytest.raises(SpecError, match="has the coefficient 1/3, no float64 number; use surebound.decide"):
        sb.worst_margins(nn.Linear(2, 3).eval(), BOX, spec=third)


def test_labels_and_linear_specs_are_specifications() -> None:
    net, x = dense(2, 12, 3), torch.tensor([[0.2, -0.4], [0.9, 0.9], [-0.5, 0.1]])
    region = sb.LinfBall(x, "1/5")
    labels = torch.tensor([0, 1, 0])
    expected = [sb.decide(net, region[i : i + 1], Spec.label(int(y)))[0].status for i, y in enumerate(labels)]
    assert [each.status for each in sb.decide(net, region, labels)] == expected
    c, d = torch.randn(3, 2, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([-3.0, 0.5])
    for rows, offsets in ((c, d), (c, d.expand(3, 2)), (c[:1], None), (c[0], d)):
        each = [rows if rows.dim() == 2 else rows[i % len(rows)] for i in range(3)]
        parts = [None if offsets is None else offsets if offsets.dim() == 1 else offsets[i] for i in range(3)]
        expected = [sb.decide(net, region[i : i + 1], Spec.linear(each[i], parts[i]))[0].status for i in range(3)]
        assert [v.status for v in sb.decide(net, region, sb.LinearSpec(rows, offsets))] == expected
    assert Status.ROBUST in expected or Status.FALSIFIED in expected
    assert sb.decide(net, region[:0], labels[:0]) == []


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (torch.tensor([0, 3, 1]), r"labels lie in \[0, 3\] but the network has 3 outputs"),
        (torch.tensor([0, -1, 1]), r"labels lie in \[-1, 1\]"),
        (torch.tensor([0, 1]), "2 labels for 3 examples"),
        (torch.zeros(3), "labels are torch.float32"),
        (sb.LinearSpec(torch.ones(2, 1, 3)), "2 specifications for 3 examples"),
        (sb.LinearSpec(torch.ones(1, 4)), "4 coefficients per row but the network 3 outputs"),
        (3, "spec is a int; give a Spec, a list with one per example, or labels"),
    ],
)
def test_labels_and_linear_specs_that_do_not_fit(spec: object, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        sb.decide(dense(2, 12, 3), sb.LinfBall(torch.zeros(3, 2), "1/5"), spec)  # type: ignore[arg-type]


def test_numbers_that_no_float_can_hold_are_refused() -> None:
    net, wide = dense(2, 4, 2), torch.float64
    with pytest.raises(SpecError, match="infinite coefficient or offset"):
        sb.decide(net, BOX, Spec.linear(torch.tensor([[float("inf"), 1.0]])))
    with pytest.raises(SpecError, match="infinite coefficient or offset"):
        sb.decide(net, BOX, Spec.linear(torch.ones(1, 2), torch.tensor([float("inf")])))
    with pytest.raises(QueryError, match="no common scale in float64"):
        sb.decide(net, BOX, Spec.linear(torch.tensor([[1e300, 1e-300]], dtype=wide)))
    with pytest.raises(QueryError, match="no common scale in float64"):
        sb.decide(net, BOX, Spec.linear(torch.tensor([[1e-5, 3e-5]], dtype=wide), torch.tensor([1e308], dtype=wide)))


def test_writing_into_a_part_of_a_tensor_can_be_attacked() -> None:
    class Writes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = 2 * x
            y[:, 0] = y[:, 1].clone() + 0.5
            return y

    assert sb.decide(Writes(), BOX, Spec.label(0))[0].status is Status.ROBUST
    assert sb.decide(Writes(), BOX, Spec.label(1))[0].status is Status.FALSIFIED


def test_of_nan_no_comparison_is_true() -> None:
    """'z <= 5 or z > 5' sounds like a truth; where z may be NaN it is none."""

    class Root(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([torch.sqrt(x[:, 0]), x[:, 1]], 1)

    five = Sum(Fraction(5))
    either = Spec("either", lambda s: Any(tuple(comparison(r, s.output(0), five) for r in ("<=", ">"))))
    (verdict,) = sb.decide(Root(), BOX, either, timeout=5)
    assert verdict.status is not Status.ROBUST
    right = sb.Box(torch.full((1, 2), 0.5), torch.ones(1, 2))
    assert sb.decide(Root(), right, either)[0].status is Status.ROBUST


@pytest.mark.parametrize("act", [nn.ReLU(), nn.LeakyReLU(0.1)])
def test_max_pooling_before_units_that_are_all_stable(act: nn.Module) -> None:
    net = nn.Sequential(
        nn.Unflatten(1, (1, 4)), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(2, 3), act, nn.Linear(3, 2)
    ).requires_grad_(False)
    net[3].bias.fill_(9.0)
    net[5].weight.copy_(torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.98]])), net[5].bias.zero_()
    region = sb.LinfBall(torch.full((1, 4), 0.5), "1/10", clip=(0, 1))
    assert sb.decide(net, region, Spec.label(0), stages=("relu-splitting",))[0].status is Status.ROBUST


class Tenth(nn.Module):
    """Multiply by a number in the code, before a ReLU that is on."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x * 0.1 + 1) - 1


class Full(nn.Module):
    """Multiply by a tensor that the code makes in the input's dtype."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.full_like(x, 0.1)


class Leaky(nn.Module):
    """Multiply by a slope, as all its numbers are negative."""

    def forward(self, x: Tensor) -> Tensor:
        return -nn.functional.leaky_relu(-x, 0.1)


class Normalised(nn.Module):
    """Multiply by a weight that every execution normalises."""

    def __init__(self) -> None:
        super().__init__()
        self.direction = nn.Parameter(torch.tensor([1.0, 10.0]), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * (self.direction / self.direction.sum())[:1]


@pytest.mark.parametrize("make", [Tenth, Full, Leaky, Normalised])
def test_a_proof_over_the_reals_is_about_the_numbers_that_the_network_has(make: type[nn.Module]) -> None:
    """Float32 and float64 differ in the factor (a tenth, an eleventh): between the two results lies the limit."""
    net = make()
    region = sb.LinfBall(torch.ones(1, 1), Fraction(1, 1024))
    top = 1 + Fraction(1, 1024)
    tenth = Fraction(float(net(torch.ones(1, 1)))) if make is Normalised else Fraction(float(torch.tensor(0.1)))
    exact = Fraction(1, 11) if make is Normalised else Fraction(1, 10)
    sign = 1 if tenth > exact else -1
    row = torch.full((1, 1), float(sign), dtype=torch.float64)
    edge = top if sign > 0 else 1 - Fraction(1, 1024)
    for between, proved in (((tenth + exact) / 2, False), (tenth + sign * Fraction(1, 1000), True)):
        limit = torch.tensor([-sign * float(between * edge)], dtype=torch.float64)
        spec = sb.LinearSpec(row, limit)
        (found,) = sb.decide(net, region, spec, stages=("branch-and-bound",), soundness="real", timeout=20)
        assert (found.status is Status.ROBUST) is proved, found


def test_an_image_at_a_clip_end_that_is_no_float_is_in_its_region() -> None:
    """0.7 as a float32 number is below 0.7, and 0.3 above 0.3: the region took them."""
    for value, clip in ((0.7, (0.7, 1.0)), (0.3, (0.0, 0.3))):
        x = torch.tensor([[value]])
        low, high = ends(sb.LinfBall(x, "1/10", clip))
        assert low[0] <= Fraction(float(x)) <= high[0]
        assert high[0] - low[0] <= Fraction(1, 5)

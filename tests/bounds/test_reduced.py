"""Networks reduced to their unstable ReLUs: rows that hold of every execution, bounds, gradients, splits."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

import surebound as sb
from surebound.bounds.linear.alpha import Adam
from surebound.bounds.reduced.descent import descend
from surebound.bounds.reduced.network import Layer, Reduced, Rows
from surebound.bounds.reduced.passes import Multipliers, Passes, bounds_of_rows
from surebound.bounds.reduced.reduction import reduce_relaxed
from surebound.graph import program_of
from surebound.numerics import Soundness

EPS = "2/5"


def dense() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 7), nn.ReLU(), nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 3))


def convolutional() -> nn.Sequential:
    net = nn.Sequential(
        nn.Unflatten(1, (1, 1, 3)), nn.Conv2d(1, 3, (1, 2)), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(),
        nn.Linear(6, 5), nn.LeakyReLU(0.1), nn.Linear(5, 3),
    )  # fmt: skip
    for part in net:
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.weight, 0.5, 2)
            nn.init.uniform_(part.running_mean, -1, 1)
    return net


def smooth() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)
    )


MAKERS = {"dense": dense, "convolution": convolutional, "with tanh": smooth}


def case(kind: str, *, wide: bool = False) -> tuple[nn.Sequential, Tensor, Reduced]:
    torch.manual_seed(3)
    net = MAKERS[kind]().eval().requires_grad_(False)
    for parameter in net.parameters():
        parameter.data *= 2
    x = torch.rand(1, 3)
    box = sb.LinfBall(x, EPS, (0, 1)).interval(Soundness.DEPLOYED)
    reduced, _ = reduce_relaxed(program_of(net, x), box, torch.eye(3), Soundness.DEPLOYED, wide=wide)
    assert reduced.unstable >= 4
    return net, x, reduced


def samples(x: Tensor, count: int = 400) -> Tensor:
    box = sb.LinfBall(x, EPS, (0, 1)).interval()
    t = torch.rand(count, 3)
    t[: count // 2] = t[: count // 2].round()  # corners
    return box.lower + t * (box.upper - box.lower)


def executed(net: nn.Sequential, reduced: Reduced, x: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
    """Columns v (N, V) as a float32 execution computes them, the activations' inputs by layer, and the outputs."""
    columns, inputs, h = [x], [], x
    layers = iter(reduced.layers)
    for part in net:
        before, h = h, part(h)
        if isinstance(part, (nn.ReLU, nn.LeakyReLU)):
            layer = next(layers)
            columns.append(h.flatten(1)[:, layer.place])
            inputs.append(before.flatten(1)[:, layer.place])
    return torch.cat(columns, 1), inputs, h


@pytest.mark.parametrize("in_float64", [False, True])
@pytest.mark.parametrize("kind", MAKERS)
def test_rows_hold_of_what_an_execution_computes(kind: str, in_float64: bool) -> None:
    net, x, reduced = case(kind, wide=in_float64)
    assert reduced.outputs.up.dtype == (torch.float64 if in_float64 else torch.float32)
    v, inputs, outputs = executed(net, reduced, samples(x))
    values = [(layer.rows, z) for layer, z in zip(reduced.layers, inputs, strict=True)]
    for rows, z in [*values, (reduced.outputs, outputs)]:
        wide = v[:, : rows.up.shape[1]].double()
        assert (z.double() <= wide @ rows.up.double().t() + rows.up_offset).all()
        assert (z.double() >= wide @ rows.low.double().t() + rows.low_offset).all()
        if kind != "with tanh":  # affine: the two differ by rounding only
            assert rows.low is rows.up
            assert float((rows.up_offset - rows.low_offset).max()) < 1e-4


@pytest.mark.parametrize("kind", MAKERS)
def test_bounds_are_those_of_crown_and_hold(kind: str) -> None:
    net, x, reduced = case(kind)
    found = bounds_of_rows(reduced)
    crown = sb.linear_bounds(net, sb.LinfBall(x, EPS, (0, 1)), sb.LinearSpec(torch.eye(3))).upper[0]
    outputs = net(samples(x))
    assert (outputs <= found.upper).all()
    assert (outputs >= found.lower).all()
    if kind != "with tanh":  # there, CROWN chooses a line after it knows the sign
        assert torch.allclose(found.upper, crown, atol=1e-4)


def multipliers(reduced: Reduced, count: int, seed: int = 0) -> Multipliers:
    generator = torch.Generator().manual_seed(seed)
    shape = (count, reduced.unstable)
    signs = torch.randint(-1, 2, shape, generator=generator).to(torch.int8)
    alphas, betas = (torch.rand(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    return Multipliers(signs, 0.1 + 0.8 * alphas, torch.where(signs == 0, 0.0, betas))


def assert_holds(upper: Tensor, signs: Tensor, inputs: list[Tensor], outputs: Tensor) -> None:
    """Bounds (N,) of the first output hold of all executions whose ReLU inputs have the signs (N, U)."""
    z, covered = torch.cat(inputs, 1), 0
    for each, bound in zip(signs, upper, strict=True):
        inside = ((each == 0) | (each * z.sign() >= 0)).all(1)
        covered += int(inside.sum())
        assert (outputs[inside, 0] <= bound).all()
    assert covered > 2000
    assert torch.isfinite(upper).all()


@pytest.mark.parametrize("kind", ["dense", "convolution"])
def test_any_multipliers_bound_the_executions_with_these_signs(kind: str) -> None:
    net, x, reduced = case(kind)
    _, inputs, outputs = executed(net, reduced, samples(x, 2000))
    passes, m = Passes(reduced, torch.float64), multipliers(reduced, 40)
    m.signs[:, 2:] = 0  # or hardly an execution has them
    rows = passes.outputs
    upper = passes.upper(passes.pull(rows.up[:1].expand(40, -1), rows.up_offset[:1].expand(40), m))
    assert_holds(upper, m.signs, inputs, outputs)


@pytest.mark.parametrize("kind", ["dense", "convolution"])
def test_multipliers_and_slopes_that_are_none_are_cut(kind: str) -> None:
    """A negative multiplier, or a slope outside of its range, would not be a bound."""
    net, x, reduced = case(kind)
    _, inputs, outputs = executed(net, reduced, samples(x, 2000))
    passes, m = Passes(reduced, torch.float64), multipliers(reduced, 40)
    m.signs[:, 2:] = 0
    wrong = Multipliers(m.signs, 40 * (m.alphas - 0.5), -5 * m.betas)
    rows = passes.outputs
    upper = passes.upper(passes.pull(rows.up[:1].expand(40, -1), rows.up_offset[:1].expand(40), wrong))
    assert_holds(upper, m.signs, inputs, outputs)


def one_relu(row: list[float], offset: float, end: float = 1.0) -> Passes:
    """Passes for the row (x, relu(x)) with these coefficients, x between -1 and ``end``."""
    one = torch.ones(1, dtype=torch.float64)
    rows = Rows(one.unsqueeze(0), one.unsqueeze(0), 0 * one, 0 * one)
    layer = Layer("relu", torch.zeros(1).long(), rows, -one, end * one, 0.5 * one, 2 * one, 0 * one, one, (0.0, 1.0))
    up, own = torch.tensor([row], dtype=torch.float64), torch.tensor([offset], dtype=torch.float64)
    return Passes(Reduced(-one, end * one, (layer,), Rows(up, up, own, own)), torch.float64)


def test_a_sign_cuts_the_side_that_it_excludes() -> None:
    passes = one_relu([-1.0, 1.0], 0.0)  # -x + relu(x): 1 at x = -1, 0 where x > 0
    through = torch.ones(1, 1, dtype=torch.float64)
    for sign, largest in ((-1, 1.0), (0, 1.0), (1, 0.0)):
        signs = torch.tensor([[sign]], dtype=torch.int8)
        found = passes.upper(passes.pull_through(passes.outputs.up, passes.outputs.up_offset, signs, through))
        assert float(found) >= largest


def test_sums_of_a_pass_are_paid_in_fractions() -> None:
    """a x + offset at the end of the box, where offset takes away what float64 sees of a x."""
    draw, unpaid = torch.Generator().manual_seed(2), 0
    for _ in range(60):
        a, end = (float(v) for v in torch.rand(2, generator=draw, dtype=torch.float64) + 0.3)
        offset = -a * end
        passes, exact = one_relu([a, 0.0], offset, end), Fraction(a) * Fraction(end) + Fraction(offset)
        m = Multipliers(torch.zeros(1, 1, dtype=torch.int8), *torch.zeros(2, 1, 1, dtype=torch.float64))
        found = passes.pull(passes.outputs.up, passes.outputs.up_offset, m)
        assert exact <= Fraction(float(passes.upper(found)))
        unpaid += exact > Fraction(offset + a * end)
    assert unpaid > 5


@pytest.mark.parametrize("kind", MAKERS)
def test_any_coefficients_of_relu_inputs_bound_the_executions_with_these_signs(kind: str) -> None:
    net, x, reduced = case(kind)
    _, inputs, outputs = executed(net, reduced, samples(x, 2000))
    passes, m = Passes(reduced, torch.float64), multipliers(reduced, 40)
    m.signs[:, 2:] = 0
    rows = passes.outputs.up[:1].expand(40, -1), passes.outputs.up_offset[:1].expand(40)
    through = passes.pull(*rows, m).through
    torch.manual_seed(0)
    through = through + torch.randn_like(through) * torch.linspace(0, 1, 40).unsqueeze(1)
    upper = passes.upper(passes.pull_through(*rows, m.signs, through))
    assert_holds(upper, m.signs, inputs, outputs)


def test_coefficients_that_lines_give_cost_what_the_lines_cost() -> None:
    _, _, reduced = case("dense")
    passes, m = Passes(reduced, torch.float64), multipliers(reduced, 40)
    m.signs.zero_()
    rows = passes.outputs.up[:1].expand(40, -1), passes.outputs.up_offset[:1].expand(40)
    lines = passes.pull(*rows, m)
    found = passes.pull_through(*rows, m.signs, lines.through)
    assert torch.allclose(passes.upper(found), passes.upper(lines), atol=1e-9)


@pytest.mark.parametrize("kind", MAKERS)
def test_the_gradient_is_the_difference_quotient(kind: str) -> None:
    _, _, reduced = case(kind)
    passes, m = Passes(reduced, torch.float64), multipliers(reduced, 1)
    rows = passes.outputs.up[:1], passes.outputs.up_offset[:1]

    def value(alphas: Tensor, betas: Tensor) -> float:
        return float(passes.upper(passes.pull(*rows, Multipliers(m.signs, alphas, betas))))

    found = passes.pull(*rows, m)
    inside, _ = passes.along(found)
    step = 1e-6
    for i in range(reduced.unstable):
        move = torch.zeros_like(m.alphas)
        move[0, i] = step
        if m.signs[0, i] == 0:
            quotient = (value(m.alphas + move, m.betas) - value(m.alphas - move, m.betas)) / (2 * step)
            expected = float(found.own[0, i].clamp(max=0) * inside[0, i])
        else:
            quotient = (value(m.alphas, m.betas + move) - value(m.alphas, m.betas - move)) / (2 * step)
            expected = float(inside[0, i] * m.signs[0, i])
        assert quotient == pytest.approx(expected, abs=1e-5), i


def test_optimised_multipliers_are_never_worse_than_their_start() -> None:
    _, _, reduced = case("dense")
    passes, start = Passes(reduced, torch.float32), multipliers(reduced, 30)
    start = Multipliers(start.signs, start.alphas.float(), start.betas.float())
    rows = passes.outputs.up[:1].expand(30, -1), passes.outputs.up_offset[:1].expand(30)
    best, gaps = descend(passes, *rows, start, Adam(steps=30), goal=-100.0)
    before, after = (passes.upper(passes.pull(*rows, m)) for m in (start, best))
    assert (after <= before + 1e-6).all()
    assert (after < before - 1e-3).float().mean() > 0.8
    assert (best.betas >= 0).all()
    assert (gaps >= 0).all()


@pytest.mark.parametrize("name", ["pull", "pull_through"])
def test_what_an_activation_itself_rounds_is_paid(name: str) -> None:
    """An activation may be lower than its line by ``bottom``: a coefficient < 0 of it costs that much."""
    _, _, reduced = case("convolution")
    last = dataclasses.replace(reduced.layers[-1], bottom=torch.full_like(reduced.layers[-1].bottom, -1.0))
    worse = dataclasses.replace(reduced, layers=(*reduced.layers[:-1], last))
    slopes = torch.cat([layer.slope for layer in reduced.layers]).double()
    bounds = []
    for network in (reduced, worse):
        passes = Passes(network, torch.float64)
        a = torch.zeros(1, passes.columns, dtype=torch.float64)
        a[0, -1] = -3.0  # of the last unit alone
        m = Multipliers(
            torch.zeros(1, passes.unstable, dtype=torch.int8), slopes[None], torch.zeros(1, passes.unstable)
        )
        offset = torch.zeros(1, dtype=torch.float64)
        if name == "pull":
            found = passes.pull(a, offset, m.to(torch.float64))
        else:
            found = passes.pull_through(a, offset, m.signs, passes.pull(a, offset, m.to(torch.float64)).through)
        bounds.append(float(passes.upper(found)))
    assert bounds[1] - bounds[0] == pytest.approx(3.0, abs=1e-3)

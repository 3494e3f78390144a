"""Sums of rows in float64, lines of ReLUs: compiled, against fractions and PyTorch, in every order of memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from surebound.interval import Interval
from surebound.kernels import ends, rounding, rows
from surebound.kernels.rows import NARROW, Price
from surebound.numerics import Soundness, dot_rounding, gamma, sum_up
from surebound.rules import Context
from surebound.rules.relax.lines import Lines
from surebound.rules.relax.relu import relu_lines

S, B, SHAPE = 3, 2, (5, 3, 3)
NARROW_ROUNDING = Fraction(gamma(NARROW, torch.float32))


pytestmark = pytest.mark.usefixtures("always")


def draw(*shape: int, seed: int = 0, last: bool = False) -> Tensor:
    """Numbers of very different sizes; with channels (third axis from the end) innermost in memory, or not."""
    generator = torch.Generator().manual_seed(seed)
    value = torch.randn(shape, generator=generator) * 2.0 ** torch.randint(-12, 12, shape, generator=generator)
    return value.movedim(-3, -1).contiguous().movedim(-1, -3) if last else value


def exact(row: Tensor, v: Tensor) -> Fraction:
    pairs = zip(row.flatten().tolist(), v.flatten().tolist(), strict=True)
    return sum((Fraction(x) * Fraction(y) for x, y in pairs), Fraction(0))


def check_price(found: Tensor | None, a: Tensor, price: Price) -> None:
    """As exact as stated: sums in float64, those of sizes with runs in float32."""
    assert price.plain is not None
    assert price.absolute is not None
    assert price.fixed is not None
    for s in range(S):
        for b in range(B):
            row, bias, size = a[s, b], price.plain[0].expand(SHAPE), price.absolute[b]
            more = Fraction(float(price.fixed[b]))
            total = exact(row, bias) + exact(row.abs(), size) + more
            whole = exact(row.abs(), bias.abs() + size) + more
            slack = Fraction(dot_rounding(torch.Size((B, 45)), torch.float64)) * whole * 2
            narrow = NARROW_ROUNDING * exact(row.abs(), size)
            assert abs(Fraction(float(found[s, b])) - total) <= slack + narrow


@torch.no_grad()
@pytest.mark.parametrize("rows_last", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_sums_are_as_exact_as_stated(rows_last: bool, last: bool) -> None:
    a, plain = draw(S, B, *SHAPE, last=rows_last), draw(1, SHAPE[0], 1, 1, seed=1)
    size = draw(B, *SHAPE, seed=2, last=last).abs()
    fixed = torch.tensor([1 / 3, 5.0], dtype=torch.float64)
    price = Price(plain, size, fixed)
    check_price(rows.dot(a, price), a, price)


@torch.no_grad()
@pytest.mark.parametrize("rows_last", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_maxima_over_boxes_are_rounded_up_to_the_next_number(rows_last: bool, last: bool) -> None:
    a, size = draw(S, B, *SHAPE, last=rows_last), draw(B, *SHAPE, seed=2, last=last).abs()
    offset = draw(S, B, 1, seed=3).squeeze(2).double() * (1 + 2.0**-40)
    rate = 4 * gamma(45 + 8, torch.float64)
    best = rows.upper(a, -size, 2 * size, offset, rate)
    for s in range(S):
        for b in range(B):
            end = torch.where(a[s, b] > 0, 2 * size[b], -size[b])
            total = exact(a[s, b], end) + Fraction(float(offset[s, b]))
            reach = exact(a[s, b].abs(), 2 * size[b]) + abs(Fraction(float(offset[s, b])))
            found = float(best[s, b])
            assert total <= Fraction(found)
            below = float(torch.nextafter(best[s, b], torch.tensor(-math.inf)))
            assert Fraction(below) <= total + 4 * Fraction(rate) * reach


@torch.no_grad()
def test_a_maximum_that_is_a_float_stays_one() -> None:
    """With a payment that is too small to matter, and offsets of every kind."""
    a, box = torch.ones(5, 1, 16), torch.zeros(1, 16)
    offset = torch.tensor([1.0, -(2.0**-100), 2.0**-160, math.inf, -3.0], dtype=torch.float64).unsqueeze(1)
    best = rows.upper(a, box, box, offset, 2.0**-60)
    assert best.flatten().tolist() == [1.0, -(2.0**-100), 2.0**-149, math.inf, -3.0]


@torch.no_grad()
def test_sums_are_rounded_up() -> None:
    terms = [draw(S, B, 3, seed=k).double() * (1 + 2.0**-50) for k in range(5)]
    terms[3] = terms[3].transpose(0, 1).contiguous().transpose(0, 1)
    found = rounding.sum_up(terms)
    assert torch.equal(found, sum_up(torch.stack(terms)))
    for i, total in enumerate(found.flatten().tolist()):
        parts = [Fraction(float(t.flatten()[i])) for t in terms]
        assert 0 <= Fraction(total) - sum(parts) <= Fraction(2.0**-48) * sum(abs(p) for p in parts)
    assert not rounding.sum_up.applies([terms[0], terms[1][0]])


@torch.no_grad()
@pytest.mark.parametrize("rows_last", [False, True])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("kind", ["one line", "two", "two per row"])
def test_rows_back_through_lines(rows_last: bool, last: bool, kind: str) -> None:
    a = draw(S, B, *SHAPE, last=rows_last)
    upper, top = (draw(B, *SHAPE, seed=k, last=last) for k in (1, 2))
    shape = (S, B, *SHAPE) if kind == "two per row" else (B, *SHAPE)
    lower = None if kind == "one line" else draw(*shape, seed=3, last=last)
    more, fixed = torch.tensor([[2.0**-30, 3.0], [5.0, 7.0]], dtype=torch.float64)
    price = Price(draw(1, SHAPE[0], 1, 1, seed=4), draw(B, *SHAPE, seed=5, last=last).abs(), fixed)
    found = rows.pull(a, lower, upper, None, top, more, price)
    check_price(found[2], found[0], price)
    assert torch.equal(found[0], a * torch.where(a > 0, upper, upper if lower is None else lower))
    for s in range(S):
        for b in range(B):
            row, added = a[s, b].clamp(min=0), Fraction(float(more[b]))
            error = abs(Fraction(float(found[1][s, b])) - exact(row, top[b]) - added)
            size = exact(row, top[b].abs()) + added
            assert error <= Fraction(dot_rounding(torch.Size((B, 45)), torch.float64)) * size


@torch.no_grad()
@pytest.mark.parametrize("parts", ["", "plain", "absolute", "plain absolute"])
def test_prices_of_rows_longer_than_a_run(parts: str) -> None:
    """Several runs, a part of one and a rest that fills no vector."""
    n = 3 * 256 + 83
    a, upper, top, v, w = (torch.randn(1, 2, n, generator=torch.Generator().manual_seed(k)) for k in range(5))
    plain, absolute = v[:, 0] if "plain" in parts else None, w[0].abs() if "absolute" in parts else None
    none, price = torch.zeros(2, dtype=torch.float64), Price(plain, absolute)
    found = rows.pull(a, None, upper[0], None, top[0], none, price)
    assert torch.equal(found[0], a * upper)
    for priced in (found[2], rows.dot(found[0], price)):
        for b in range(2):
            row = found[0][0, b]
            total = exact(row, v[0, 0]) if plain is not None else Fraction(0)
            size = exact(row.abs(), absolute[b]) if absolute is not None else Fraction(0)
            slack = Fraction(2.0**-40) + NARROW_ROUNDING * size
            assert abs(Fraction(float(priced[0, b])) - total - size) <= slack


@torch.no_grad()
@pytest.mark.parametrize("shape", [(1, B, *SHAPE), (S, 1, *SHAPE), SHAPE])
def test_slopes_of_other_shapes_are_left_to_pytorch(shape: tuple[int, ...]) -> None:
    a, upper = draw(S, B, *SHAPE), draw(B, *SHAPE, seed=1)
    given = a, torch.zeros(shape), upper, None, upper, torch.zeros(B, dtype=torch.float64)
    assert not rows.pull.applies(*given)


@torch.no_grad()
@pytest.mark.parametrize("odd", [torch.zeros(B), torch.zeros(B + 1, dtype=torch.float64)])
def test_numbers_of_examples_that_are_not_are_left_to_pytorch(odd: Tensor) -> None:
    a, upper = draw(S, B, *SHAPE), draw(B, *SHAPE, seed=1)
    assert not rows.pull.applies(a, None, upper, None, upper, odd)
    assert not rows.dot.applies(a, Price(None, upper.abs(), odd))


@torch.no_grad()
@pytest.mark.parametrize("entries", [15, 16, 511, 512, 513, 1700])
def test_sums_of_sizes_never_lose_more_than_they_say(entries: int) -> None:
    """Runs in float32 that all round the same way: one large summand, then many that it swallows."""
    a, size = torch.full((1, 1, entries), 2.0**-25), torch.ones(1, entries)
    a[..., :16] = 1.0
    found = rows.dot(a, Price(None, size))
    total = exact(a[0, 0], size[0])
    assert abs(Fraction(float(found)) - total) <= NARROW_ROUNDING * total


@torch.no_grad()
@pytest.mark.parametrize("mode", [Soundness.NONE, Soundness.DEPLOYED])
@pytest.mark.parametrize("last", [False, True])
def test_the_lines_of_a_relu_are_the_same_bits(mode: Soundness, last: bool, switch: Callable[[bool], None]) -> None:
    low = draw(B, *SHAPE, last=last)
    high = low + draw(B, *SHAPE, seed=1, last=last).abs()
    low[0, 0], high[0, 0] = 0.0, 0.0
    low[0, 1], high[0, 1] = 0.0, 1e-42
    low[0, 2], high[0, 2] = -1e38, 1e38
    box = Interval(low, high)
    quick = relu_lines(Context(mode), box)
    switch(False)
    plain = relu_lines(Context(mode), box)
    for name in ("upper_intercept", "absolute", "free"):
        assert torch.equal(getattr(quick, name), getattr(plain, name)), name
    assert torch.equal(quick.upper[0], plain.upper[0])  # type: ignore[arg-type]
    assert torch.equal(quick.lower[0], plain.lower[0])  # type: ignore[arg-type]
    assert quick.owes == plain.owes


@torch.no_grad()
@pytest.mark.parametrize("odd", [math.inf, math.nan])
def test_what_is_not_finite_is_left_to_pytorch_and_never_lost(odd: float) -> None:
    low, high = draw(B, 9), draw(B, 9).abs()
    high[0, 0] = odd
    pay = ends.Payment(1e-38, 1.0, 0.0, 0.0)
    for mine, theirs in zip(
        ends.hinge(low, high.abs(), 0.0, 1.0, pay),
        ends.hinge.reference(low, high.abs(), 0.0, 1.0, pay),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)
    a = draw(S, B, 9)
    a[1, 1, 8] = math.nan
    found, size = rows.dot(a, Price(None, torch.ones(B, 9))), torch.ones(B, 9)
    none = torch.zeros(B, dtype=torch.float64)
    back = rows.pull(a, size, size, None, size, none)
    best = rows.upper(a, size, size, torch.zeros(S, B, dtype=torch.float64), 0.0)
    for value in (found, back[0][..., 8], back[1], best):
        assert bool(value[1, 1].isnan())


@torch.no_grad()
@pytest.mark.parametrize("last", [False, True])
def test_errors_grow_as_pytorch_grows_them(last: bool) -> None:
    size, x = draw(B, *SHAPE, last=last).abs(), draw(B, seed=1).abs()
    plain, known = rounding.grow.reference(size.clone(), None, x, 0.3, 0.01, 1e30)
    size, found = rounding.grow(size, None, x, 0.3, 0.01, 1e30)
    assert torch.equal(found, known)
    torch.testing.assert_close(size, plain, rtol=2.0**-22, atol=0)


@torch.no_grad()
@pytest.mark.parametrize("odd", [math.inf, math.nan, 2e30])
@pytest.mark.parametrize("where", ["size", "x"])
def test_errors_beyond_the_limit_are_infinite_and_nan_stays(odd: float, where: str) -> None:
    size, x = draw(B, 9).abs(), draw(B, seed=1).abs()
    if where == "size":
        size[1, 3] = odd
    else:
        x[1] = odd
    plain, known = rounding.grow.reference(size.clone(), None, x, 0.3, 0.01, 1e30)
    size, found = rounding.grow(size, None, x, 0.3, 0.01, 1e30)
    torch.testing.assert_close(found, known, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(size, plain, rtol=2.0**-22, atol=0, equal_nan=True)
    assert where == "x" or not bool(size[1, 3] < math.inf)


def test_gradients_are_left_to_pytorch() -> None:
    a, ones, none = torch.ones(S, B, 9), torch.ones(B, 9), torch.zeros(B, dtype=torch.float64)
    assert not rows.dot.applies(a, Price(None, ones))
    assert not rows.pull.applies(a, None, ones, None, ones, none)


@torch.no_grad()
def test_lines_pull_the_same_with_and_without_kernels(switch: Callable[[bool], None]) -> None:
    low = draw(B, *SHAPE, last=True)
    box = Interval(low, low + draw(B, *SHAPE, seed=1, last=True).abs())
    lines, a = relu_lines(Context(Soundness.DEPLOYED), box), draw(S, B, *SHAPE)
    assert isinstance(lines, Lines)
    slope = torch.rand(S, B, *SHAPE)
    for own in (None, slope, slope[0]):
        switch(True)
        quick = lines.pull(a, own)
        switch(False)
        plain = lines.pull(a, own)
        assert torch.equal(quick.coefficients[0], plain.coefficients[0])
        torch.testing.assert_close(quick.offset, plain.offset, rtol=1e-5, atol=1e-3)

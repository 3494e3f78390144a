"""Exact numbers, rounding constants and the safe way round of comparisons."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from surebound import numerics
from surebound.errors import InputError
from surebound.numerics import AffineRounding, Soundness, exact_fraction, sum_up
from surebound.numerics.fractions import float_down, float_up

FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("8/255", Fraction(8, 255)),
        (0.1, Fraction(1, 10)),
        ("1e-2", Fraction(1, 100)),
        (2, Fraction(2)),
        (" 1 / 4 ", Fraction(1, 4)),
        (np.float64(0.1), Fraction(1, 10)),
        ("1e308", Fraction(10) ** 308),
    ],
)
def test_exact_fraction_keeps_what_was_typed(value, expected):
    assert exact_fraction(value) == expected


@pytest.mark.parametrize(
    "value", ["8/0", "x", "nan", float("nan"), float("inf"), "1/2/3", "", "1e999999999", "__import__('os')"]
)
def test_exact_fraction_refuses_what_is_no_number(value):
    with pytest.raises(InputError, match="is not a finite number; give one like 0.1, '8/255'"):
        exact_fraction(value)


@pytest.mark.parametrize("value", [None, True, [1], torch.tensor(1.0), np.float32(0.1)])
def test_exact_fraction_refuses_other_types(value):
    with pytest.raises(InputError, match=r"is of type .* give a fraction such as '8/255' .* or .* float\(eps\)"):
        exact_fraction(value)


@pytest.mark.parametrize("value", ["1e400", "-1e400", 10**400, Fraction(10) ** 309])
def test_exact_fraction_refuses_what_no_float_reaches(value):
    with pytest.raises(InputError, match="is too large; the largest float64 is 1.8e308"):
        exact_fraction(value)


def test_soundness_by_name():
    assert Soundness.of("deployed") is Soundness.DEPLOYED
    with pytest.raises(InputError, match="use 'none' .* 'real' or 'deployed'"):
        Soundness.of("sound")


@settings(derandomize=True, deadline=None)
@given(st.fractions(min_value=0, max_value=10))
def test_float_up_is_never_below(value):
    up = numerics.float_up(value)
    assert Fraction(up) >= value
    assert up == 0 or Fraction(up) - value <= value * Fraction(1, 2**50)


@settings(derandomize=True, deadline=None)
@given(st.fractions(min_value=-10, max_value=10))
def test_ends_hold_a_fraction_and_are_the_closest_that_do(value):
    """In float64, where the nearest number may be on the wrong side, and in float32."""
    for wide, narrow in ((float_down, 0), (float_up, 1)):
        side = -1 if narrow == 0 else 1
        end, single = wide(value), float(numerics.outer_float32([value], [value])[narrow][0])
        assert side * Fraction(end) >= side * value
        assert side * Fraction(single) >= side * value
        assert side * Fraction(math.nextafter(end, -side * math.inf)) < side * value
        assert side * Fraction(float(np.nextafter(np.float32(single), np.float32(-side * np.inf)))) < side * value


def test_gamma_bounds_every_order_of_a_float32_sum():
    """Adversarial order: increasing magnitudes against decreasing ones, exact value by Fractions."""
    generator = torch.Generator().manual_seed(0)
    for n in (2, 10, 300):
        w, x = torch.randn(2, n, generator=generator) * 10 ** torch.randn(2, n, generator=generator)
        exact = sum(Fraction(float(a)) * Fraction(float(b)) for a, b in zip(w, x, strict=True))
        size = sum(abs(Fraction(float(a)) * Fraction(float(b))) for a, b in zip(w, x, strict=True))
        products = w * x
        for order in (products.abs().argsort(), products.abs().argsort(descending=True), products.argsort()):
            total = torch.tensor(0.0)
            for term in products[order]:
                total = total + term
            assert abs(Fraction(float(total)) - exact) <= Fraction(numerics.gamma(n, torch.float32)) * size


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gamma_is_n_u_over_1_minus_n_u_in_fractions(dtype):
    u = Fraction(numerics.unit_roundoff(dtype))
    for n in (1, 2, 3, 65, 1000, 12345, 10**6):
        exact = n * u / (1 - n * u)
        found = Fraction(numerics.gamma(n, dtype))
        assert exact <= found <= exact * (1 + Fraction(1, 10**8)), n


def test_gamma_refuses_meaningless_sums():
    with pytest.raises(InputError, match="convert the network to float64"):
        numerics.gamma(2**23, torch.float32)


@settings(derandomize=True, deadline=None)
@given(FLOATS)
def test_down_and_up_move_at_least_an_ulp_outwards(value):
    x = torch.tensor(value, dtype=torch.float32)
    if x.abs() < 1e38:
        assert numerics.down(x) < x < numerics.up(x)
        nearer = torch.nextafter(x, torch.tensor(-torch.inf))
        assert numerics.down(x) <= nearer


def test_rounding_is_free_in_training_only():
    assert AffineRounding.of(100, torch.float32, Soundness.NONE).is_free
    real = AffineRounding.of(100, torch.float32, Soundness.REAL)
    deployed = AffineRounding.of(100, torch.float32, Soundness.DEPLOYED)
    assert 0 < real.on_center < deployed.on_center
    assert 1 < real.on_radius < deployed.on_radius


def test_nan_is_never_proved_and_means_the_whole_line():
    nan = torch.tensor([float("nan")])
    assert not numerics.proved(nan)
    lower, upper = numerics.no_information(nan, nan)
    assert lower == -torch.inf and upper == torch.inf


def test_subnormal_weights_are_noticed():
    assert numerics.has_subnormal(torch.tensor([0.0, 1e-40]))
    assert not numerics.has_subnormal(torch.tensor([0.0, 1.0]))


def test_sums_are_rounded_up() -> None:
    """Against exact sums, with cancellation and with terms of very different sizes."""
    generator = torch.Generator().manual_seed(0)
    terms = torch.randn(7, 500, generator=generator, dtype=torch.float64)
    terms = terms * 10.0 ** torch.randint(-12, 12, terms.shape, generator=generator)
    terms[3] = -terms[:3].sum(0)
    above = sum_up(terms)
    for column, bound in zip(terms.t().tolist(), above.tolist(), strict=True):
        exact = sum(map(Fraction, column))
        assert Fraction(bound) >= exact
        assert Fraction(bound) - exact <= Fraction(1, 2**48) * sum(abs(Fraction(v)) for v in column)
    assert sum_up(torch.tensor([[math.inf], [1.0]], dtype=torch.float64)).item() == math.inf


def test_the_unit_roundoff_is_half_the_distance_from_one_to_the_next_number() -> None:
    assert numerics.unit_roundoff(torch.float32) == 2.0**-24 and numerics.unit_roundoff(torch.float64) == 2.0**-53


@pytest.mark.parametrize("mode", [Soundness.REAL, Soundness.DEPLOYED])
def test_elementwise_roundings_are_paid(mode: Soundness) -> None:
    center = torch.tensor([1.0, -3.0, 1e30, 0.0])
    paid = numerics.pay(center, torch.tensor([0.0, 0.5, 0.0, 0.0]), mode)
    least = torch.tensor([0.0, 0.5, 0.0, 0.0]) + center.abs() * 2.0**-23 + torch.finfo(torch.float32).tiny
    assert bool((paid >= least).all())
    assert bool(numerics.pay(torch.ones(1), torch.full((1,), math.inf), mode).isnan().all())


def test_rounding_to_another_dtype_is_never_inwards() -> None:
    value = torch.tensor([0.1, -0.1, 1 / 3, 1e-50, -1e-50, 0.5], dtype=torch.float64)
    above, below = numerics.round_up(value, torch.float32), numerics.round_down(value, torch.float32)
    assert bool((above.double() >= value).all() and (below.double() <= value).all())
    assert above[-1] == below[-1] == 0.5 and bool((above[:5] > below[:5]).all())


@given(st.floats(-1e300, 1e300), st.floats(-1e300, 1e300))
def test_sums_of_two_are_rounded_up(a: float, b: float) -> None:
    found = numerics.add_up(torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64))
    assert Fraction(found.item()) >= Fraction(a) + Fraction(b)
    assert found.item() > a + b or (a + b == 0 and found.item() > 0)


def test_sums_in_the_narrow_dtype_are_paid_by_their_length() -> None:
    """Runs of the last axes are summed in float32, of 32 products or more: 8 x 8 here, and 40."""
    for shape, summands in (((1, 8, 8, 8), 64), ((2, 3, 5, 40), 40)):
        rate = numerics.dot_rounding(torch.Size(shape), torch.float32)
        assert numerics.gamma(summands, torch.float32) <= rate <= 2 * numerics.gamma(summands, torch.float32)

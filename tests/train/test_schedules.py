"""Schedules at their corners."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surebound.errors import ConfigError
from surebound.train.plan import Plan
from surebound.train.schedules import Constant, Linear, Ramp, Smooth, Staircase


def test_ramp_has_its_corners_where_the_paper_has_them() -> None:
    plan = Plan(steps=60_000, eps_train="0.4", warmup=2_000, ramp=10_000)
    eps = [plan.epsilon.at(s) for s in (0, 1_999, 2_000, 2_001, 7_000, 11_999, 12_000, 59_999)]
    assert eps == pytest.approx([0, 0, 0, 0.4 / 10_000, 0.2, 0.4 * 9_999 / 10_000, 0.4, 0.4], abs=1e-12)
    kappa = [plan.kappa.at(s) for s in (0, 2_000, 7_000, 12_000, 59_999)]
    assert kappa == pytest.approx([1, 1, 0.75, 0.5, 0.5])


def test_final_values_are_exact() -> None:
    plan = Plan(steps=10, eps_train="8/255", warmup=1, ramp=3, kappa_final=0.0)
    assert plan.epsilon.at(4) == 8 / 255
    assert plan.kappa.at(4) == 0.0  # exactly: the clean pass is skipped then


def test_no_ramp_jumps() -> None:
    assert [Ramp(0.0, 1.0, 2, 0).at(s) for s in (0, 1, 2, 3)] == [0, 0, 1, 1]


def test_smooth_is_a_fourth_power_and_then_a_line() -> None:
    shape = Smooth()
    a = 1 / (0.25**3 * (0.25 + 4 * 0.75))  # by hand: continuity of value and slope at 1/4, value 1 at 1
    assert shape(0.1) == pytest.approx(a * 0.1**4)
    assert shape(0.25) == pytest.approx(a * 0.25**4)
    slope = (shape(0.9) - shape(0.3)) / 0.6
    assert slope == pytest.approx(4 * a * 0.25**3)
    assert shape(0.6) == pytest.approx((shape(0.3) + shape(0.9)) / 2)


@given(st.floats(1.0, 8.0), st.floats(0.01, 1.0), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_shapes_increase_from_0_to_1(power: float, bend: float, a: float, b: float) -> None:
    for shape in (Linear(), Smooth(power, bend)):
        assert shape(0.0) == 0.0
        assert shape(1.0) == 1.0
        assert shape(min(a, b)) <= shape(max(a, b)) + 1e-12


def test_staircase_and_constant() -> None:
    rate = Staircase(5e-4, (50, 60), 0.2)
    assert [rate.at(s) for s in (0, 49, 50, 59, 60)] == pytest.approx([5e-4, 5e-4, 1e-4, 1e-4, 2e-5])
    assert Constant(0.5).at(10**9) == 0.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 0}, "steps must be at least 1"),
        ({"steps": 5, "eps_train": "-0.1"}, "eps_train must be 0 or more"),
        ({"steps": 5, "kappa_final": 1.5}, "kappa_final must be between 0 and 1"),
        ({"steps": 5, "warmup": 3, "ramp": 3}, r"warmup \+ ramp = 3 \+ 3 steps exceed the run's steps = 5"),
        ({"steps": 5, "learning_rate": 0.0}, "learning_rate must be positive"),
        ({"steps": 5, "clip_norm": float("nan")}, "clip_norm must be positive"),
        ({"steps": 5, "shape": "cubic"}, "shape must be one of linear, smooth, got 'cubic'"),
        ({"steps": 50, "decay_steps": (30, 20)}, "decay_steps must increase"),
    ],
)
def test_plans_that_make_no_sense(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Plan(**arguments)  # type: ignore[arg-type]


def test_bad_shapes() -> None:
    with pytest.raises(ConfigError, match="power >= 1"):
        Smooth(power=0.5)
    with pytest.raises(ConfigError, match="decay must increase"):
        Staircase(1.0, (3, 3))
    with pytest.raises(ConfigError, match="cannot begin at step -1"):
        Ramp(0, 1, -1, 2)


def test_stretching_keeps_the_proportions() -> None:
    plan = Plan(steps=100_000, batch_size=1_600, warmup=5_000, ramp=50_000, decay_steps=(60_000, 90_000))
    longer = plan.stretched(350_000)
    assert (longer.warmup, longer.ramp, longer.decay_steps) == (17_500, 175_000, (210_000, 315_000))
    tiny = plan.stretched(3)
    assert tiny.warmup + tiny.ramp <= 3


def test_a_cycle_rises_and_falls_and_is_never_0() -> None:
    plan = Plan(steps=1000, learning_rate=0.01, cycle=True)
    rates = [plan.rate.at(step) for step in range(1000)]
    top = rates.index(max(rates))
    assert top in (299, 300)
    assert max(rates) == pytest.approx(0.01, rel=1e-2)
    assert min(rates) > 0
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert plan.stretched(10).rate.at(0) == pytest.approx(0.01 * 0.05 / 0.3)
    with pytest.raises(ConfigError, match="cycle and decay_steps = .5. were both given"):
        Plan(steps=10, cycle=True, decay_steps=(5,))

"""The benchmark of growth: what it times, and what it counts."""

from __future__ import annotations

from fractions import Fraction

import pytest

from benchmarks.growth import SWEEPS, Point, measure, table, unstable

TINY = Point(width=2, depth=1, classes=3, batch=2)


def test_a_point_times_every_method_in_forward_passes() -> None:
    found = measure(TINY, seconds=0.0)
    passes = found["passes"]
    assert isinstance(passes, dict)
    assert set(passes) == {"interval", "crown-ibp", "crown", "nominal step", "IBP step"}
    assert all(value > 0 for value in passes.values())
    assert found["rounds"] == 3
    (line,) = list(table({"width": [found]}))[2:]
    assert line.startswith("| width 2 |") and line.count("|") == 9


def test_unstable_relus_grow_with_the_radius() -> None:
    at = [unstable(Point(width=2, depth=1, eps=eps)) for eps in (Fraction(0), Fraction(1, 100), Fraction(1))]
    assert at[0] == 0 < at[1] < at[2] <= 2 * 14 * 14


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_changes_one_thing(name: str) -> None:
    base = Point()
    assert any(point == base for point in SWEEPS[name])
    for point in SWEEPS[name]:
        assert Point(**{**vars(base), name: getattr(point, name)}) == point

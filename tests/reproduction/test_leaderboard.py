"""The leaderboard: every number is the zoo's or the paper's, the best first, and the page in the docs is of today."""

from __future__ import annotations

import itertools
from fractions import Fraction
from pathlib import Path

import pytest
from typer.testing import CliRunner

from surebound import zoo
from surebound.cli import build_app
from surebound.reproduction.leaderboard import Standing, page, standings

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_in_the_docs_is_what_the_command_writes(tmp_path: Path):
    done = CliRunner().invoke(build_app(), ["zoo", "--leaderboard", str(tmp_path)])
    assert done.exit_code == 0, done.output
    written = (tmp_path / "leaderboard.md").read_text()
    assert written == (DOCS / "leaderboard.md").read_text(), "run: surebound zoo --leaderboard docs"
    for name in ("leaderboard-clean.svg", "leaderboard-cost.svg"):
        assert (tmp_path / "images" / name).read_text().startswith("<?xml")
        assert f"images/{name}" in written
        assert (DOCS / "images" / name).is_file()


def test_every_packaged_network_stands_there_with_its_own_float_sound_error():
    found = {(s.who, s.eps): s for s in standings() if s.ours}
    for entry in zoo.entries():
        for radius, by_intervals in entry.results["verified_error"].items():
            found_out = entry.decided(radius)
            decided = found_out.get("float_sound_verified_error")
            error = 100 * (by_intervals if decided is None else decided)
            if error < 100:
                shown = found[entry.name, Fraction(radius)]
                assert shown.verified == pytest.approx(error, abs=1e-9)
                assert shown.by.split(",")[0] == ("interval bounds" if decided is None else "cascade")
                assert ("first" in shown.by) == (found_out.get("images", 10_000) < 10_000)


def test_lines_of_a_radius_are_ordered_by_verified_error():
    rows = standings()
    for one, other in itertools.pairwise(rows):
        if (one.data, one.eps) == (other.data, other.eps):
            assert one.verified <= other.verified
    paper = [s for s in rows if s.who == "Gowal et al. 2018: IBP" and s.eps == Fraction(3, 10)]
    assert [(s.clean, s.pgd, s.verified) for s in paper] == [(1.66, 6.12, 8.05)]


def test_radii_are_written_as_people_write_them_and_missing_numbers_stay_empty():
    text = page([
        Standing("mnist", Fraction(1, 5), "a", "ibp", 1.0, None, 2.0, "cascade", ours=True),
        Standing("cifar10", Fraction(2, 255), "b", "ibp", None, None, 50.0, "as published"),
    ])  # fmt: skip
    assert "## MNIST, ε = 0.2" in text
    assert "## CIFAR-10, ε = 2/255" in text
    assert "| **`a`** | **2.00** | 1.00 |  | cascade | ibp |  |" in text
    assert "nan" not in text

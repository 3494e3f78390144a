"""The quickstart runs, and what it claims is so."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner, Result

from surebound import data
from surebound.cli import build_app
from surebound.experiment import quickstart


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """One whole run on a short schedule."""
    out = tmp_path_factory.mktemp("quickstart") / "new"
    result = CliRunner().invoke(build_app(), ["quickstart", "--out", str(out), "--steps", "300"])
    assert result.exit_code == 0, result.output
    return out, result


def test_it_ends_with_a_table_a_picture_and_a_page(finished: tuple[Path, Result]) -> None:
    out, result = finished
    assert "proved robust, eps 1/10" in result.stdout
    assert (out / "quickstart.png").read_bytes().startswith(b"\x89PNG")
    page = (out / "index.html").read_text(encoding="utf-8")
    assert "http://" not in page and "https://" not in page, "the page opens without a network"

    class Cells(HTMLParser):
        found: list[str]

        def handle_data(self, text: str) -> None:
            self.found.append(text.strip())

    cells = Cells()
    cells.found = []
    cells.feed(page)
    assert set(quickstart.PRESETS.values()) <= set(cells.found)
    assert "surebound quickstart" in page


def test_it_makes_its_point_even_on_a_short_schedule(finished: tuple[Path, Result]) -> None:
    rows = [line.split() for line in finished[1].stdout.splitlines() if line.startswith(tuple(quickstart.PRESETS))]
    (ordinary, ordinary_proved), (bounded, bounded_proved) = [(float(row[-6]), float(row[-2])) for row in rows]
    assert ordinary > 85 and bounded > 60
    assert ordinary_proved == 0 and bounded_proved > 10


def test_a_second_start_trains_nothing(finished: tuple[Path, Result], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(quickstart.run, "start", refuse)
    monkeypatch.setattr(quickstart.run, "resume", refuse)
    assert list(quickstart.train(finished[0], lambda name: None)) == list(quickstart.PRESETS)  # type: ignore[arg-type, return-value]


def tiny_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 30), nn.ReLU(), nn.Linear(30, 10))


def test_the_curves_are_consistent() -> None:
    network, eps = tiny_network(), quickstart.EPSILONS[:3]
    curve = quickstart.curve("tiny", network, data.load("digits").test.take(50), eps)
    assert curve.attacked[0] == pytest.approx(curve.proved[0]), "at radius 0 both are the accuracy"
    assert all(p <= a + 1e-9 for p, a in zip(curve.proved, curve.attacked, strict=True))
    assert list(curve.proved) == sorted(curve.proved, reverse=True)
    assert curve.at(eps[1]) == (curve.attacked[1], curve.proved[1])


def test_the_ranges_contain_random_points() -> None:
    network, test = tiny_network(), data.load("digits").test
    example = quickstart.example(network, test, 3, quickstart.EXAMPLE_EPS)
    image, label = test.batch(torch.tensor([3]))
    assert example.label == int(label)
    noise = torch.rand(200, *image.shape[1:]) * 2 - 1
    outputs = network((image + float(example.eps) * noise).clamp(0, 1))
    assert (outputs >= example.lower).all() and (outputs <= example.upper).all()

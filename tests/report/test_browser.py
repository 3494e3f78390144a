"""The page in a real browser: nothing goes wrong, tables sort, images open, a phone needs no sideways scrolling."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from surebound.report.build import make_report

_spec = importlib.util.spec_from_file_location("report_browser", Path(__file__).with_name("browser.py"))
assert _spec is not None and _spec.loader is not None
browser = importlib.util.module_from_spec(_spec)
sys.modules["report_browser"] = browser
_spec.loader.exec_module(browser)

BROWSER = browser.find_browser()
pytestmark = pytest.mark.skipif(BROWSER is None, reason=f"no browser: none of {', '.join(browser.NAMES)} is installed")

LOOK = """
const column = (table, i) => [...table.tBodies[0].rows].map((row) => row.cells[i].textContent);
const images = document.getElementById("images"), header = (t, i) => t.tHead.rows[0].cells[i].querySelector("button");
const seen = { width: document.documentElement.scrollWidth, window: innerWidth };
seen.background = getComputedStyle(document.body).backgroundColor;
seen.before = column(images, 0);
header(images, 8).click();                       // seconds, ascending; the first column, of one network, is hidden
seen.seconds = column(images, 7).map(Number);
header(images, 8).click();
seen.reversed = column(images, 7).map(Number);
document.querySelector(".more").click();
seen.all = images.tBodies[0].rows.length;
const status = document.querySelector(".filters select[aria-label=verdict]");
status.value = "robust"; status.dispatchEvent(new Event("change"));
seen.statuses = [...new Set(column(images, 4))];
const overview = document.getElementById("overview");
header(overview, 1).click(); header(overview, 1).click();
seen.radii = column(overview, 1);
const tile = document.querySelector(".tile"), dialog = document.querySelector("dialog");
seen.closed = dialog.open; tile.click(); seen.opened = dialog.open;
seen.panels = [...dialog.querySelectorAll("img")].map((image) => image.complete && image.naturalWidth);
seen.caption = dialog.querySelector("p").textContent;
seen.say = tile.querySelector("b").textContent + " · " + tile.querySelector(".say").textContent;
seen.heights = [...document.querySelectorAll(".tiles")].map((box) => [...new Set(
  [...box.querySelectorAll(".tile")].map((one) => Math.round(one.getBoundingClientRect().height)))]);
seen.proved = [...overview.tHead.rows[0].cells].find((c) => c.textContent === "proved").getBoundingClientRect().right;
const text = document.querySelector("p.lead").getBoundingClientRect();
seen.widths = [...document.querySelectorAll(".chart svg")].map((svg) => svg.getBoundingClientRect().width / text.width);
seen.large = dialog.querySelector("img").getBoundingClientRect().width;
seen.small = tile.querySelector("img").getBoundingClientRect().width;
seen.images = [...document.images].every((image) => image.complete && image.naturalWidth > 0);
seen.charts = [...document.querySelectorAll("svg")].map((svg) => svg.getBoundingClientRect().height > 40);
return seen;
"""


@pytest.fixture(scope="module")
def desktop(run_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[str]]:
    folder = tmp_path_factory.mktemp("desktop")
    make_report([run_dir]).write(folder / "report.html")
    found: tuple[dict[str, Any], list[str]] = browser.act(BROWSER, folder / "report.html", LOOK, folder)
    return found


def test_nothing_goes_wrong(desktop: tuple[dict[str, Any], list[str]]) -> None:
    seen, troubles = desktop
    assert troubles == []
    assert seen["images"] and all(seen["charts"]) and len(seen["charts"]) >= 3


def test_tables_sort_and_filter(desktop: tuple[dict[str, Any], list[str]]) -> None:
    seen = desktop[0]
    assert len(seen["before"]) == 50 and seen["all"] == 80
    assert seen["seconds"] == sorted(seen["seconds"])
    assert seen["reversed"] == sorted(seen["reversed"], reverse=True) and seen["reversed"] != seen["seconds"]
    assert seen["statuses"] == ["robust"]
    assert seen["radii"] == ["0.1", "0.01"]


def test_an_image_opens_enlarged(desktop: tuple[dict[str, Any], list[str]]) -> None:
    seen = desktop[0]
    assert (seen["closed"], seen["opened"]) == (False, True)
    assert seen["panels"] == [8, 8, 8], "image, counterexample and change, in their own pixels"
    assert seen["large"] > 3 * seen["small"]
    assert seen["caption"] == seen["say"]
    assert "→" in seen["say"] and "found by PGD" in seen["say"], "the class chosen instead, and how it was found"


def test_figures_and_tiles_fit_the_column(desktop: tuple[dict[str, Any], list[str]]) -> None:
    seen = desktop[0]
    assert all(0.98 < width < 1.02 for width in seen["widths"]), "as wide as the text"
    assert all(len(heights) == 1 for heights in seen["heights"]), "tiles of one height"


def test_a_phone_in_the_dark(run_dir: Path, tmp_path: Path, desktop: tuple[dict[str, Any], list[str]]) -> None:
    make_report([run_dir]).write(tmp_path / "report.html")
    seen, troubles = browser.act(BROWSER, tmp_path / "report.html", LOOK, tmp_path, width=500, dark=True)
    assert troubles == []
    assert seen["width"] <= seen["window"], "no sideways scrolling"
    assert seen["proved"] < seen["window"], "the column that counts needs no scrolling"
    assert seen["background"] != desktop[0]["background"]

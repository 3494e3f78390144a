"""The explorer in a real browser: clicks, keys, filters, the slider, downloads, deep links, a desktop and a phone."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from surebound.report.explore.page import write_explorer
from surebound.report.explore.server import Explorer
from surebound.report.explore.subject import Subject
from surebound.verdict import Status

_spec = importlib.util.spec_from_file_location("report_webdriver", Path(__file__).with_name("webdriver.py"))
assert _spec is not None and _spec.loader is not None
webdriver = importlib.util.module_from_spec(_spec)
sys.modules["report_webdriver"] = webdriver
_spec.loader.exec_module(webdriver)

pytestmark = pytest.mark.skipif(bool(webdriver.missing()), reason=webdriver.missing() or "-")

READY = "return document.querySelectorAll('#panels canvas').length && document.querySelectorAll('#ranges svg').length"


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with webdriver.browser(tmp_path_factory.mktemp("browser")) as made:
        yield made


def chosen(window: Any) -> int:
    return int(window.run("return new URLSearchParams(location.hash.slice(1)).get('i')"))


def listed(window: Any) -> list[int]:
    return [int(i) for i in window.run("return [...document.querySelectorAll('#list button')].map((b) => b.dataset.i)")]


@pytest.mark.parametrize("width", [1280, 390])
def test_a_visit(explorer: Explorer, subject: Subject, window: Any, tmp_path: Path, width: int) -> None:
    window.size(width)
    window.downloads(tmp_path)
    window.go("about:blank")
    window.go(explorer.url)
    window.until(READY)
    assert window.run("return document.documentElement.scrollWidth <= innerWidth"), "no sideways scrolling"
    order = listed(window)
    assert sorted(order) == sorted(subject.records) and chosen(window) == order[0]

    window.keys("ArrowRight")
    window.keys("j")
    assert chosen(window) == order[2]
    window.click("#previous")
    assert chosen(window) == order[1]
    window.run("history.back()")
    window.until(f"return location.hash.includes('i={order[2]}&')")

    broken = next(r for r in subject.run.records if r.verdict.read_as is not None and r.verdict.stage != "clean")
    window.run("const s = document.getElementById('filter-verdict'); s.focus()")
    window.keys("counterexample", "#filter-verdict")
    window.until("return location.hash.includes('verdict=broken')")
    expected = {r.index for r in subject.run.records if r.verdict.read_as is not None and r.verdict.stage != "clean"}
    assert set(listed(window)) == expected
    window.click(f"#list button[data-i='{broken.index}']")
    window.run("document.activeElement.blur()")
    window.keys("2" if str(broken.eps) == "1/12" else "1")
    window.until("return document.querySelectorAll('#panels canvas').length === 3")
    assert window.text("#verdict b") == f"{broken.label} → {broken.verdict.read_as}"
    assert "change" in window.text("#panels")

    window.click("#downloads button:nth-child(2)")
    file = tmp_path / f"image-{broken.index}-eps-{broken.eps.numerator}-{broken.eps.denominator}.npz"
    end = time.monotonic() + 20
    while not file.exists() and time.monotonic() < end:
        time.sleep(0.05)
    with np.load(file) as found:
        assert broken.verdict.witness is not None
        assert np.array_equal(found["counterexample"], broken.verdict.witness.numpy())
        assert int(found["label"]) == broken.label and int(found["read_as"]) == broken.verdict.read_as
    assert window.log() == []


def test_proofs_and_questions(explorer: Explorer, subject: Subject, window: Any) -> None:
    proved = next(
        r for r in subject.run.records if r.verdict.stage == "branch-and-bound" and r.verdict.status is Status.ROBUST
    )
    window.size(1280)
    window.go("about:blank")
    window.go(f"{explorer.url}#i={proved.index}&eps={proved.eps}&view=margins")  # a deep link
    window.until(READY)
    assert window.text("#verdict b") == "proved" and "branch and bound" in window.text("#how")
    window.until("return document.querySelector('#trees svg')")
    assert "confirmed by the checker" in window.text("#certificate")
    leaves = window.run("return document.querySelectorAll('#trees svg .leaf').length")
    assert leaves > 1 and f"{leaves} leaves" in window.text("#trees summary")

    window.keys("-")  # a smaller radius: the proof holds there, too
    window.until(f"return !location.hash.includes('eps={proved.eps}')")
    assert window.text("#verdict b") == "proved" and "contains this radius" in window.text("#how")
    window.clear("#liveEps")
    window.keys("0.4", "#liveEps")
    window.click("#ask")
    window.until("return document.getElementById('liveState').textContent.includes('not kept')", 60)
    assert "→" in window.text("#verdict b"), "nothing survives 0.4"
    window.clear("#liveEps")
    window.keys("a lot", "#liveEps")
    window.keys("Enter", "#liveEps")
    assert "Give a radius" in window.text("#liveState")
    assert window.log() == []


def test_the_first_image_is_shown_at_a_radius_that_was_asked(subject: Subject, window: Any, tmp_path: Path) -> None:
    """Only the last image was asked about at the largest radius."""
    largest = max(eps for found in subject.records.values() for eps in found)
    some = {i: {e: r for e, r in found.items() if e < largest} for i, found in subject.records.items()}
    some[max(some)] = subject.records[max(some)]
    page = tmp_path / "page.html"
    write_explorer(dataclasses.replace(subject, records=some), page)
    window.go("about:blank")
    window.go(f"{page.as_uri()}#sort=number")
    window.until(READY)
    assert window.text("#verdict b") != "not asked"


def test_one_file_without_a_server(subject: Subject, window: Any, tmp_path: Path) -> None:
    write_explorer(subject, tmp_path / "explore.html", most=6)
    window.size(390)
    window.go((tmp_path / "explore.html").as_uri())
    window.until(READY)
    assert len(listed(window)) == 6 and "6 hardest of 12" in window.text("#count")
    assert window.run("return document.getElementById('liveSection').hidden")
    first = window.run("return document.querySelector('#ranges svg').outerHTML")
    at = window.run("return document.getElementById('slider').value")
    window.keys("ArrowLeft", "#slider")
    window.until(f"return document.getElementById('slider').value !== '{at}'")
    window.until(f"return document.querySelector('#ranges svg').outerHTML.length !== {len(first)}")
    assert window.run("return document.documentElement.scrollWidth <= innerWidth")
    assert window.log() == []

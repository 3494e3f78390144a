"""The page says what the run directory holds."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from surebound import data
from surebound.certificates.checked import digest_of, note_checked
from surebound.cli import build_app
from surebound.errors import InputError
from surebound.experiment.target import load
from surebound.experiment.verifications import read_verifications
from surebound.report.build import Story, make_report
from surebound.report.figure import Figure
from surebound.report.gallery import Picture, difference_pixels, gallery, image_pixels
from surebound.report.headline import headline
from surebound.report.provenance import asked
from surebound.report.source import ReportedRun, certified, read_run, read_runs, records_json
from surebound.report.verdicts import shares
from surebound.verdict import Status, Verdict
from surebound.verify import Record, Store


@pytest.fixture(scope="module")
def html(run_dir: Path) -> str:
    return make_report([run_dir]).html


def test_the_headline_is_the_share_proved(run_dir: Path, html: str) -> None:
    with Store.read(run_dir / "results.db") as store:
        records = list(store.records(eps=Fraction(1, 10)))  # the radius it was trained for
    proved = sum(r.verdict.status is Status.ROBUST for r in records)
    assert len(records) == 40
    title = re.search("<title>(.*?)</title>", html)
    assert title is not None
    assert title[1].replace("\xa0", " ") == f"{100 * proved / 40:.1f} % of 40 images proved robust at ε = 0.1"


def test_nothing_proved_does_not_look_like_success(run_dir: Path) -> None:
    run = read_run(run_dir)
    assert '<b class="none">' not in headline([run]).html
    rest = tuple(r for r in run.records if r.verdict.status is not Status.ROBUST)
    assert '<b class="none">0.0 %</b> of' in headline([dataclasses.replace(run, records=rest)]).html


def test_every_verdict_is_in_the_page(run_dir: Path, html: str) -> None:
    text = re.search(r'<script type="application/json" id="records">(.*?)</script>', html, re.DOTALL)
    assert text is not None
    rows = json.loads(text[1])["rows"]
    with Store.read(run_dir / "results.db") as store:
        expected = {(r.index, str(r.eps), r.verdict.status.value) for r in store.records()}
    assert {(row[1], row[2], row[5]) for row in rows} == expected
    assert len(rows) == len(expected) == 80


def test_the_page_needs_nothing_from_elsewhere(html: str) -> None:
    assert not re.search(r"https?://", html)
    assert set(re.findall(r'(?:src|href)="(\w+:|#|[^"]{0,12})', html)) <= {"data:", "#"}
    ids = re.findall(r' id="([^"]+)"', html)
    assert len(ids) == len(set(ids)), "ids are unique"


def test_it_says_how_to_do_it_again(run_dir: Path, html: str) -> None:
    assert f"verify {run_dir} --eps 1/100,1/10" in html or "surebound report" in html
    (request,) = read_verifications(run_dir)
    assert request["eps"] == ["1/100", "1/10"] and request["images"] == 40 and request["data"] == "digits"


def test_asking_again_notes_nothing_new(run_dir: Path, surebound: Callable[..., Result]) -> None:
    surebound("verify", run_dir, "--eps", "1/100,1/10", "--first", 40, "--cascade", "fast", "--jobs", 1)
    assert len(read_verifications(run_dir)) == 1


def test_shares_are_all_images_once(run_dir: Path) -> None:
    run = read_run(run_dir)
    here = [r for r in run.records if r.eps == Fraction(1, 10)]
    assert sum(share.count for share in shares(here)) == len(here)


def test_the_gallery_shows_the_images_that_were_verified(run_dir: Path) -> None:
    run, test = read_run(run_dir), data.load("digits").test
    found = gallery(run)
    assert found.falsified and found.hardest and not found.note
    picture = found.falsified[0]
    assert picture.original is not None and picture.perturbation is not None
    index = int(picture.detail.split()[1].rstrip(","))
    assert torch.equal(picture.original, test.batch(torch.tensor([index]))[0][0])
    assert float(picture.perturbation.abs().max()) <= picture.eps + 1e-6
    assert len({p.detail.split()[1] for p in found.falsified}) == len(found.falsified), "each image once"


def record(index: int, eps: str, status: Status, bound: float = 0.5, label: int = 0) -> Record:
    witness = torch.zeros(1, 8, 8) if status is Status.FALSIFIED else None
    verdict = Verdict(status, "pgd", bound, witness, read_as=8 if status is Status.FALSIFIED else None)
    return Record(index, label, label, Fraction(eps), verdict)


def pictured(pictures: Sequence[Picture]) -> list[tuple[int, str]]:
    found = [re.match(r"image (\d+), within (\S+):", picture.detail) for picture in pictures]
    return [(int(match[1]), match[2]) for match in found if match]


def test_the_galleries_are_sorted_across_radii(run_dir: Path) -> None:
    """Every image was proved at the small radius; what is shown is where it is undecided, or broken first."""
    small = [record(i, "1/100", Status.ROBUST, -0.1 - i) for i in range(40)]
    middle = [record(i, "1/20", Status.FALSIFIED if i >= 30 else Status.ROBUST, -0.01, i % 3) for i in range(40)]
    large = [record(i, "1/10", Status.FALSIFIED if i >= 20 else Status.UNKNOWN, 1.0 + i, i % 3) for i in range(40)]
    run = dataclasses.replace(read_run(run_dir), records=(*small, *middle, *large))
    found = gallery(run)
    assert pictured(found.hardest) == [(i, "0.1") for i in range(19, 7, -1)], "undecided first, the widest bound first"
    assert all("undecided after PGD" in picture.detail for picture in found.hardest)
    shown = pictured(found.falsified)
    assert [eps for _, eps in shown] == sorted(eps for _, eps in shown) and shown[0][1] == "0.05"
    assert len(shown) == 12 and len({index for index, _ in shown}) == 12
    assert sum(eps == "0.05" for _, eps in shown) == 10, "all ten that break at the smallest radius"
    assert found.falsified[0].title == "0 → 8"


def test_a_margin_of_zero_has_no_sign(run_dir: Path) -> None:
    settled = [record(i, "1/10", Status.ROBUST, bound) for i, bound in enumerate((0.0, -0.25))]
    found = gallery(dataclasses.replace(read_run(run_dir), records=tuple(settled)))
    assert sorted(each.detail.split("; ")[1] for each in found.hardest) == ["margin ≥ 0", "margin ≥ 0.25"]


def test_what_counterexamples_are_read_as(run_dir: Path) -> None:
    model, broken = load(run_dir), [r for r in read_run(run_dir).records if r.verdict.status is Status.FALSIFIED]
    assert broken
    for each in broken:
        assert each.verdict.witness is not None and each.verdict.read_as is not None
        assert each.verdict.read_as == int(model(each.verdict.witness[None]).argmax()) != each.label


def test_every_cascade_that_was_asked_is_named(run_dir: Path) -> None:
    run = read_run(run_dir)
    second = {**run.requests[0], "cascade": "paper", "stages": ["MixedInteger()"], "eps": ["1/5"], "timeout": 2.0}
    facts = asked(dataclasses.replace(run, requests=(*run.requests, second)))
    assert facts["asked"] == (
        "does the label stay within ε = 0.01, 0.1? 40 images of digits, cascade fast",
        "does the label stay within ε = 0.2? 40 images of digits, cascade paper, 2 s per image and stage",
    )
    cascades = facts["cascade"]
    assert isinstance(cascades, tuple) and cascades[1] == "paper: MixedInteger" and cascades[0].startswith("fast: ")


def test_other_data_are_not_passed_off_as_the_original(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digits = data.load("digits")
    shuffled = type(digits)(
        "digits",
        digits.train,
        digits.test.subset(torch.arange(354, -1, -1)),
        digits.classes,
        digits.provenance,
    )
    monkeypatch.setattr(data, "load", lambda *args: shuffled)
    found = gallery(read_run(run_dir))
    assert all(p.original is None for p in found.falsified)
    assert "not those that were verified" in found.note


def test_pixels() -> None:
    assert image_pixels(torch.tensor([[[0.0, 1.0]]])).tolist() == [[[0] * 3, [255] * 3]]
    white, red = difference_pixels(torch.tensor([[[0.0, 0.1]]]), 0.1)[0].tolist()
    assert white == [255, 255, 255] and red[0] > red[2]


def test_runs_without_verdicts_and_folders_of_runs(run_dir: Path, tmp_path: Path) -> None:
    assert [run.path for run in read_runs([run_dir.parent])] == [run_dir]
    (tmp_path / "bare").mkdir()
    for name in ("config.toml", "metrics.jsonl", "results.json", "environment.json"):
        (tmp_path / "bare" / name).write_bytes((run_dir / name).read_bytes())
    html = make_report([tmp_path / "bare"]).html
    assert "proved robust by interval bounds" in html and 'id="records"' not in html
    assert "not verified; <code>surebound verify" in make_report([run_dir, tmp_path / "bare"]).html
    both = make_report([run_dir, tmp_path / "bare"], story=Story(title="Two <runs>"))
    assert "<title>Two &lt;runs&gt;</title>" in both.html
    with pytest.raises(InputError, match="holds no run"):
        read_runs([tmp_path / "missing"])


def test_an_unfinished_run_says_so(run_dir: Path, tmp_path: Path) -> None:
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    (tmp_path / "config.toml").write_bytes((run_dir / "config.toml").read_bytes())
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines[:2], '{"cut short']))
    assert "in training: step" in make_report([tmp_path]).html


def test_the_command_writes_page_figures_and_tables(
    run_dir: Path, tmp_path: Path, surebound: Callable[..., Result]
) -> None:
    page, figures = tmp_path / "new" / "page.html", tmp_path / "figures"
    surebound("report", run_dir, "--out", page, "--figures", figures)
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    names = {path.name for path in figures.iterdir()}
    assert {
        "accuracy.pdf",
        "accuracy.svg",
        "accuracy.png",
        "overview.md",
        "overview.csv",
        "overview.tex",
    } <= names
    assert (figures / "accuracy.pdf").read_bytes().startswith(b"%PDF")


def test_an_error_is_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(build_app(), ["report", str(tmp_path)])
    assert result.exit_code == 2 and "holds no run" in result.stderr


def test_figures_are_reproducible_and_follow_the_theme() -> None:
    figure = Figure("f", 'a "b" <c>', lambda canvas: canvas.add_subplot().plot([0, 1], [0, 1]) and None)
    assert figure.render("svg") == figure.render("svg")
    inline = figure.inline()
    assert "var(--ink)" in inline and "http" not in inline and "&lt;c&gt;" in inline


def test_proved_images_link_to_their_certificates(tmp_path: Path) -> None:
    record = Record(3, 1, 1, Fraction(1, 10), Verdict(Status.ROBUST, "interval", -0.5), "x")
    run = ReportedRun(tmp_path, "net", records=(record,), requests=({"certificates": str(tmp_path)},))
    assert certified(run) == {} and "cert" not in records_json([run])
    file = tmp_path / "00003.eps-1-10.cert"
    file.write_bytes(b"proof")
    assert certified(run) == {(3, Fraction(1, 10)): ["not checked", file.as_uri()]}
    note_checked(tmp_path, {file.name: digest_of(b"proof")})
    assert certified(run)[3, Fraction(1, 10)][0] == "checked" and f'["checked","{file.as_uri()}"]' in records_json(
        [run]
    )
    file.write_bytes(b"another")
    assert certified(run)[3, Fraction(1, 10)][0] == "not checked"

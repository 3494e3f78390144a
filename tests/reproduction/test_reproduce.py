"""Every artefact at scale smoke, reuse and resumption, and the paper's numbers as the paper has them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from surebound import data, models
from surebound.cli import build_app
from surebound.cli.reproduce import duration
from surebound.errors import InputError, RunError
from surebound.experiment import run as runs
from surebound.experiment.presets import preset
from surebound.experiment.run import Caller
from surebound.reproduction import polytope
from surebound.reproduction.artefacts import ARTEFACTS, find, gap_case, paper
from surebound.reproduction.artefacts.base import difference
from surebound.reproduction.artefacts.figure_6 import sparsity
from surebound.reproduction.artefacts.table_1 import describe
from surebound.reproduction.bench import Bench
from surebound.reproduction.execute import execute, steps
from surebound.reproduction.rate import TYPICAL, Speeds, trial
from surebound.reproduction.scale import Scale, training
from surebound.reproduction.work import Check, Training, WorkPlan, digest
from surebound.train.observe import Observer
from surebound.train.plan import Plan


@pytest.fixture(scope="session")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory for all of them: what one has trained the others reuse."""
    return tmp_path_factory.mktemp("smoke")


def reproduce(*arguments: object) -> Result:
    return CliRunner().invoke(build_app(), ["reproduce", *(str(a) for a in arguments)])


@pytest.mark.parametrize("artefact", ARTEFACTS, ids=lambda a: a.name)
def test_smoke(artefact, smoke: Path) -> None:  # type: ignore[no-untyped-def]
    result = reproduce(artefact.name, "--out", smoke)
    assert result.exit_code == 0, result.output
    folder = smoke / artefact.name
    page = (folder / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"https?://", page)
    record = json.loads((folder / "numbers.json").read_text(encoding="utf-8"))
    assert record["headline"]
    for number in record["numbers"]:
        trained = {"steps", "command", "network", "schedule"} <= number.keys()
        assert {"seed", "commit"} <= number.keys() and (trained or "origin" in number)
    if record["numbers"]:
        assert "the numbers mean nothing" in page
    made = {path.suffix for path in folder.iterdir()}
    drawn = artefact.name.startswith("figure")
    assert {".pdf", ".svg", ".png"} <= made if drawn else {".md", ".csv", ".tex"} <= made


def test_a_second_start_does_nothing_again(smoke: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reproduce("table-3", "--out", smoke).exit_code == 0

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("done again")

    for name in ("start", "resume"):
        monkeypatch.setattr(runs, name, refuse)
    monkeypatch.setattr(Bench, "check", refuse)
    monkeypatch.setattr(Bench, "compute", refuse)
    before = (smoke / "table-3" / "table-3.csv").read_bytes()
    result = reproduce("tightness", "--out", smoke)
    assert result.exit_code == 0, result.output
    assert "to do" not in result.stdout
    assert (smoke / "table-3" / "table-3.csv").read_bytes() == before


def tiny(seed: int = 0) -> Training:
    config = preset("digits-nominal")
    config = replace(config, evaluation=replace(config.evaluation, every=0, pgd_steps=0))
    return Training(config.with_plan(steps=8, batch_size=10, decay_steps=(), seed=seed), 80)


def test_a_stopped_training_goes_on(tmp_path: Path) -> None:
    asked = []

    def stop_after_three() -> bool:
        asked.append(1)
        return len(asked) >= 3

    first = Bench(tmp_path, caller_for=lambda name: Caller(Observer(), stop_after_three))
    plan = WorkPlan((tiny(),))
    assert not execute(plan, first)
    (step,) = steps(plan, first)
    assert (step.state, step.done) == ("to continue", False)
    second = Bench(tmp_path)
    assert execute(plan, second)
    straight = Bench(tmp_path / "straight")
    assert execute(plan, straight)
    paths = [bench.path(tiny()) / "final.safetensors" for bench in (second, straight)]
    assert paths[0].read_bytes() == paths[1].read_bytes(), "to the same bits"


def test_runs_made_elsewhere_are_reused_if_they_are_the_same(tmp_path: Path) -> None:
    made = Bench(tmp_path / "first")
    execute(WorkPlan((tiny(),)), made)
    bench = Bench(tmp_path / "second", reuse=(tmp_path / "first",))
    same, other = steps(WorkPlan((tiny(), tiny(seed=1))), bench)
    assert (same.state, other.state) == ("reused", "to do")
    renamed = Training(replace(tiny().config, name="another name"), 80)
    assert bench.where(renamed) == str(made.path(tiny())), "the name does not matter"
    assert str(tmp_path) not in bench.facts(tiny())["command"], "numbers name no directory of this machine"


def test_the_packaged_network_is_reused() -> None:
    wanted = training(Scale.LAPTOP, "mnist", "small", "ibp", "0.4")
    assert Bench(Path("nowhere")).where(wanted) == "mnist-small-ibp-0.4"
    assert wanted.full and "%" not in wanted.schedule
    facts = Bench(Path("nowhere")).facts(wanted)
    assert facts["steps"] == 60_000 and facts["seed"] == 0 and facts["commit"]
    shorter = training(Scale.LAPTOP, "mnist", "small", "ibp", "0.4", laptop_steps=6_000)
    assert Bench(Path("nowhere")).where(shorter) is None
    assert shorter.schedule == "6,000 × 100 (10 % of the paper's)"


def test_names_differ_where_training_would() -> None:
    a, b = tiny().config, tiny().config.with_plan(learning_rate=2e-3)
    assert digest(a) != digest(b)
    assert digest(a) == digest(replace(a, run=replace(a.run, threads=2)))


def test_an_option_that_comes_later_changes_no_name() -> None:
    @dataclass(frozen=True)
    class Grown(Plan):
        novelty: float = 0.5

    plan = tiny().config.plan
    grown = Grown(**{f.name: getattr(plan, f.name) for f in fields(plan)})
    assert digest(replace(tiny().config, plan=grown)) == digest(tiny().config)
    assert digest(replace(tiny().config, plan=replace(grown, novelty=1.0))) != digest(tiny().config)


def test_a_run_trained_differently_is_not_taken_for_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    folder = bench.path(tiny())
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(tiny(seed=1).config.to_toml())
    (folder / "results.json").write_text("{}")
    with pytest.raises(RunError, match="trained differently"):
        bench.where(tiny())


@pytest.mark.parametrize("scale", list(Scale))
def test_every_plan_can_be_made(scale: Scale) -> None:
    for artefact in ARTEFACTS:
        plan = artefact.plan(scale)
        known = {t.name for t in plan.trainings}
        assert {c.network.name for c in plan.checks} <= known
        assert len(known) == len(plan.trainings), "no run twice"


def test_the_plan_says_how_long(tmp_path: Path) -> None:
    result = reproduce("ablation", "--scale", "laptop", "--out", tmp_path / "new", "--plan", "--data-dir", tmp_path)
    assert result.exit_code == 0, result.output
    assert re.search(r"about \d+ (h \d\d )?min in all", result.stdout)
    assert not (tmp_path / "new").exists(), "a plan writes nothing"
    assert duration(3700) == "1 h 02 min" and duration(None) == "?"


def test_rates_come_from_runs_that_are_there(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    folder = bench.path(tiny(seed=5))
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(tiny(seed=5).config.to_toml())
    (folder / "metrics.jsonl").write_text('{"kind": "training", "step": 1, "samples_per_second": 40.0}\n')
    assert Speeds(bench).seconds(tiny()) == pytest.approx(80 / 40)
    assert trial(tiny().config, seconds=0.01) > 0


def test_times_of_verifications_come_from_stores_that_are_there_else_from_experience(tmp_path: Path) -> None:
    made, cascade = Bench(tmp_path), Scale.SMOKE.bounded
    radii = (Fraction(1, 100), Fraction(1, 10))
    wanted = Check(tiny(), radii, cascade, 10)
    assert Speeds(made).check_seconds(wanted) == pytest.approx(2 * 10 * TYPICAL["bounded"])
    assert Speeds(replace(made, jobs=2)).check_seconds(wanted) == pytest.approx(10 * TYPICAL["bounded"])
    assert Speeds(made).check_seconds(replace(wanted, images=None)) is None
    execute(WorkPlan((tiny(),), (replace(wanted, images=3),)), made)
    spent = [sum(s for _, s in r.stage_seconds) for r in made.records(replace(wanted, images=3))]
    assert Speeds(made).check_seconds(wanted) == pytest.approx(20 * sum(spent) / len(spent))


def test_what_is_unknown_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'table-4'"):
        find("tabel-4")
    assert "name one or more artefacts" in reproduce().stderr
    assert "is no directory" in reproduce("table-1", "--out", tmp_path, "--reuse", tmp_path / "x").stderr
    assert "state-of-the-art" in reproduce("--list").stdout


def test_table_1_is_counted_from_the_models(smoke: Path) -> None:
    assert reproduce("table-1", "--out", smoke).exit_code == 0
    text = (smoke / "table-1" / "table-1.csv").read_text(encoding="utf-8")
    for count in ("8,308", "470,918", "46,912", "1,188,906", "229,888", "17,190,602"):
        assert f'"{count}"' in text
    assert describe(models.small((3, 32, 32))) == "CONV 16 4×4+2, CONV 32 4×4+1, FC 100"


def test_quoted_rows_are_marked_and_ours_stand_beside_the_papers(smoke: Path) -> None:
    assert reproduce("table-4", "--out", smoke).exit_code == 0
    rows = [r.split("|") for r in (smoke / "table-4" / "table-4.md").read_text("utf-8").splitlines()]
    quoted = [r for r in rows if len(r) > 13 and r[13].strip() == "quoted"]
    assert quoted and all(r[4].strip() == "–" for r in quoted), "nothing of ours in a quoted row"
    ours = next(r for r in rows if len(r) > 13 and "IBP" in r[3] and r[4].strip() != "–")
    mine, theirs, change = (cell.strip().replace("−", "-") for cell in ours[4:7])
    expected = float(mine.split()[0]) - float(theirs.split()[0])
    assert float(change) == pytest.approx(expected, abs=0.011)
    assert difference(None, 1.0) == "–" and difference(1.0, 2.5) == "−1.50"


def test_the_papers_numbers() -> None:
    best = {(r.data, r.radius): r.verified for r in paper.STATE_OF_THE_ART if r.method == "ibp"}
    assert best == {
        ("mnist", "0.1"): 2.23, ("mnist", "0.2"): 4.48, ("mnist", "0.3"): 8.05, ("mnist", "0.4"): 14.88,
        ("cifar10", "2-255"): 49.98, ("cifar10", "8-255"): 67.96, ("svhn", "0.01"): 37.60,
    }  # fmt: skip
    for name, radius, ibp, mip in paper.TIGHTNESS:
        assert mip == best[(name, radius)] and ibp >= mip
    for rows in (paper.STATE_OF_THE_ART, paper.ADDITIONAL):
        for row in rows:
            assert row.verified is None or row.pgd is None or row.clean <= row.pgd <= row.verified
    small = next(r for r in paper.ADDITIONAL if (r.data, r.radius, r.net, r.method) == ("mnist", "0.3", "small", "ibp"))
    assert (small.clean, small.pgd, small.verified) == (4.59, 9.09, 10.25)


def test_the_gap_is_a_real_one(smoke: Path) -> None:
    bench = Bench(smoke, smoke / "data")
    assert execute(gap_case.plan(Scale.SMOKE), bench)
    values = bench.values(gap_case.case(Scale.SMOKE))
    assert values["found"]
    target, eps = bench.load(gap_case.network(Scale.SMOKE)), float(Fraction(values["eps"]))
    image, label = data.load("digits").test.batch(torch.tensor([values["index"]]))
    assert torch.equal(torch.tensor(values["image"]), image[0])
    points = torch.tensor([values["pgd_image"], values["exact_image"]])
    assert float((points - image).abs().max()) <= eps + 1e-6
    assert points.min() >= 0 and points.max() <= 1
    found = target.model(points).argmax(1)
    assert int(found[0]) == int(label) != int(found[1])


def test_the_toy_problem() -> None:
    points, labels = polytope.toy_points(0)
    apart = (points[:, None] - points[None]).abs().amax(2) + torch.eye(13)
    assert apart.min() >= 0.16 and points.min() >= 0 and points.max() <= 1 and int(labels.sum()) == 5
    frames = polytope.evolution((0, 3), side=10)["frames"]
    assert [f["step"] for f in frames] == [0, 3]
    for frame in frames:
        outputs = torch.tensor(frame["outputs"])
        assert (outputs >= torch.tensor(frame["lower"]) - 1e-5).all()
        assert (outputs <= torch.tensor(frame["upper"]) + 1e-5).all()
    with pytest.raises(InputError, match="use a smaller one"):
        polytope.toy_points(0, 0.6)


def test_sparsity() -> None:
    assert sparsity(torch.tensor([[[[1.0, 0.0], [0.005, -0.5]]]])) == 0.5


def test_interrupting_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bench, "train", lambda self, training: False)
    result = reproduce("figure-2", "--out", tmp_path)
    assert result.exit_code == 3 and "goes on from here" in result.stderr

"""The benchmark harness measures what it says."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import ModuleType

import pytest
import torch

from benchmarks import bench_bounds, bench_linear, compare, run, schedule
from benchmarks.common import Budget, Measure, Race, Record, peak_bytes, summary

QUICK = Budget(seconds=0.0, rounds=3, sample=0.0)


def test_summary_is_median_and_half_interquartile_range() -> None:
    record = summary("x", [5.0, 1.0, 2.0, 100.0, 3.0], "ms")
    assert (record.value, record.spread) == (3.0, 1.5)
    assert summary("x", [7.0], "ms").spread == 0.0


def test_a_race_reports_times_and_ratios_to_the_first() -> None:
    race = Race("r", {"one": lambda: time.sleep(0.002), "three": lambda: time.sleep(0.006)}, {"three / one": 5.0})
    records = {r.name: r for r in race.measure(QUICK)}
    assert list(records) == ["r: one", "r: three", "r: three / one"]
    assert 2.0 < records["r: three / one"].value < 4.0
    assert records["r: three / one"].unit == "x"
    assert not records["r: three / one"].over


def test_limits_name_two_contenders() -> None:
    works = {"a": lambda: None, "b": lambda: None}
    for wrong in ("b", "b / c", "b/a"):
        with pytest.raises(ValueError, match=f"the limit '{wrong}' is no `A / B` of a, b"):
            Race("r", works, {wrong: 1.0})


@pytest.mark.parametrize("module", [bench_bounds, bench_linear], ids=lambda m: m.__name__)
def test_benchmarks_are_well_formed(module: ModuleType) -> None:
    names = [b.name for b in module.benchmarks()]
    assert len(names) > 5 and len(set(names)) == len(names)


def test_a_race_is_interleaved() -> None:
    order: list[str] = []
    contenders = {name: (lambda name=name: order.append(name)) for name in "abc"}
    list(Race("r", contenders).measure(QUICK))
    rounds = ["".join(order[i : i + 3]) for i in range(len(order) - 9, len(order), 3)]
    assert all(sorted(turn) == ["a", "b", "c"] for turn in rounds)
    assert len(set(rounds)) == 3, "the order rotates"


@pytest.mark.parametrize(("value", "over"), [(2.0, False), (2.35, False), (2.5, True), (float("nan"), True)])
def test_over_the_limit_beyond_the_spread(value: float, over: bool) -> None:
    assert Record("x", value, "x", spread=0.1, limit=2.3).over is over


def test_peak_bytes_counts_what_lives_at_the_same_time() -> None:
    mib = 2**18  # floats in one MiB

    def two_at_once() -> None:
        for _ in range(5):
            kept = torch.ones(mib)
            kept = kept + kept
            del kept

    assert peak_bytes(two_at_once) == pytest.approx(2 * 2**20, rel=0.05)


def _write(path: Path, **values: tuple[float, float]) -> Path:
    rows = [Record(name, value, "x", spread).as_json() for name, (value, spread) in values.items()]
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def test_compare_tells_clear_changes_from_noise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = _write(tmp_path / "old.json", slower=(2.0, 0.1), same=(2.0, 0.1), faster=(2.0, 0.1), gone=(1.0, 0.0))
    new = _write(tmp_path / "new.json", slower=(2.5, 0.1), same=(2.1, 0.1), faster=(1.0, 0.1))
    assert compare.main([str(old), str(new)]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert "+25.0 %" in lines["slower"]
    assert lines["slower"].rstrip().endswith("worse")
    assert lines["faster"].rstrip().endswith("better")
    assert lines["same"].rstrip().endswith("%")
    assert "gone" in lines["only"]
    assert compare.main([str(old), str(new), "--fail-above", "10"]) == 1
    assert compare.main([str(old), str(new), "--fail-above", "30"]) == 0


def test_compare_refuses_a_foreign_file(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('[{"colour": "red"}]', encoding="utf-8")
    with pytest.raises(SystemExit, match="not a file written by"):
        compare.read(path)


def test_run_prints_a_table_and_writes_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "available", lambda: ["fake"])
    monkeypatch.setattr(run, "load", lambda name: [Measure("answer", "MB", lambda: 42.0, limit=40.0)])
    out = tmp_path / "deep" / "bench.json"
    threads = torch.get_num_threads()
    try:
        assert run.main(["--out", str(out), "--threads", "1"]) == 0
        assert run.main(["--strict", "--threads", "1"]) == 1
    finally:
        torch.set_num_threads(threads)
    (record,) = json.loads(out.read_text(encoding="utf-8"))
    assert {"name", "value", "unit", "spread", "versions"} <= record.keys()
    assert (record["name"], record["value"], record["unit"]) == ("answer", 42.0, "MB")
    assert {"torch", "surebound", "commit", "python", "threads"} <= record["versions"].keys()
    assert "over" in capsys.readouterr().out


def test_run_refuses_an_unknown_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run.main(["nonsense"])
    assert "no benchmark file for nonsense; there are:" in capsys.readouterr().err


def test_the_mean_step_weighs_every_part_of_the_schedule_alike() -> None:
    dense = [schedule.Speed(step, 40.0, ordinary=False) for step in range(101, 201)]
    sparse = [schedule.Speed(step, 80.0, ordinary=False) for step in range(210, 301, 10)]  # logged less often
    warm = [schedule.Speed(step, 100.0, ordinary=True) for step in range(1, 101)]
    assert schedule.mean_step([*warm, *dense, *sparse], 0.5) == pytest.approx((1 + 2.5 + 1.25) / 3, rel=0.02)
    with pytest.raises(ValueError, match="no warm-up with kappa 1"):
        schedule.mean_step(dense, 0.5)

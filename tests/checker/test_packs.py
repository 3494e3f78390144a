"""Certificates settled together lie in one file: written, found again, replaced, damaged, read by strangers."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import surebound as sb
from surebound.certificates.archive import entries, pack_archive
from surebound.certificates.checked import checked_files
from surebound.certificates.directory import missing, note_missing
from surebound.certificates.packs import FEWEST, Held, drop, held, write_pack
from surebound.certificates.points import point_bounds
from surebound.certificates.write import Claims
from surebound.checker import check
from surebound.checker.checker import CheckedNetwork, Numbers
from surebound.cli import build_app
from surebound.graph import program_of
from surebound.report.source import ReportedRun, certified
from surebound.verdict import Status
from tests.checker.test_certificates import net_of

FILE = Path(sb.__file__).parent / "checker" / "checker.py"
COUNT = 2 * FEWEST


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Sequential, sb.LinfBall, torch.Tensor, Path]:
    net, path = net_of(6, 12, 3, 3), tmp_path_factory.mktemp("packs")
    x = torch.rand(COUNT, 6, generator=torch.Generator().manual_seed(1))
    region, labels = sb.LinfBall(x, "1/50", clip=(0, 1)), net(x).argmax(1)
    sb.verify(net, region, labels, timeout=30, certificates=path)
    return net, region, labels, path


def copied(path: Path, to: Path) -> Path:
    to.mkdir(parents=True)
    for file in path.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    return to


def test_what_is_settled_together_is_one_file(
    decided: tuple[nn.Sequential, sb.LinfBall, torch.Tensor, Path], tmp_path: Path
) -> None:
    _, region, _, path = decided
    assert list(path.glob("*.certs")) and len(held(path)) == COUNT
    assert len(list(path.iterdir())) < FEWEST  # and not a file for each image
    found = entries(path)
    assert [entry.name for entry in found] == [f"{i:05d}.eps-1-50.cert" for i in range(COUNT)]
    for i, entry in enumerate(found):
        content, network = entry.read()
        assert check(content, network)[0] in ("robust", "falsified")
        assert held(path)[entry.name].read_bytes() == content
        assert np.array_equal(point_of(content), region.x[i].numpy())
    run = CliRunner()
    done = run.invoke(build_app(), ["check", str(path), "--jobs", "2", "--pack", str(tmp_path / "all.zip")])
    assert done.exit_code == 0 and done.stdout.startswith(f"{COUNT} valid, 0 rejected"), done.output
    assert len(checked_files(path)) == COUNT
    first = (tmp_path / "all.zip").read_bytes()
    done = run.invoke(build_app(), ["check", str(tmp_path / "all.zip"), "--jobs", "3"])  # from one open file each
    assert done.exit_code == 0 and done.stdout.startswith(f"{COUNT} valid, 0 rejected"), done.output
    done = run.invoke(build_app(), ["explain", str(path / found[7].name)])
    assert done.exit_code == 0 and "The checker confirms it" in done.stdout
    done = run.invoke(build_app(), ["explain", str(path / "99999.eps-1-50.cert")])
    assert done.exit_code == 2 and "is no file" in done.stderr
    # as files of their own they are the same archive
    for entry in found:
        (tmp_path / entry.name).write_bytes(entry.read()[0])
    (tmp_path / "network.net").write_bytes((path / "network.net").read_bytes())
    pack_archive(tmp_path, tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == first


def point_of(content: bytes) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    from surebound.checker.checker import unpack

    return unpack(content)[1]["center"]


def test_a_stranger_checks_directories_and_archives(
    decided: tuple[nn.Sequential, sb.LinfBall, torch.Tensor, Path], tmp_path: Path
) -> None:
    path = decided[3]
    pack_archive(path, tmp_path / "proofs.zip")
    copied(path, tmp_path / "tree" / "a")
    for place, count in ((path, COUNT), (tmp_path / "proofs.zip", COUNT), (tmp_path, 2 * COUNT)):
        if place == tmp_path:  # a directory in a directory, and another network beside it
            (tmp_path / "proofs.zip").unlink()
            net, x = net_of(6, 12, 3, 4), torch.rand(FEWEST, 6)
            other = tmp_path / "tree" / "b"
            sb.verify(net, sb.LinfBall(x, 0, clip=(0, 1)), net(x).argmax(1), certificates=other)
            count = COUNT + FEWEST
        done = subprocess.run([sys.executable, str(FILE), str(place)], capture_output=True, text=True, cwd="/")
        assert done.returncode == 0 and done.stdout.startswith(f"{count} valid, 0 rejected; networks: "), done.stderr
    assert len(done.stdout.partition("networks: ")[2].split(", ")) == 2
    done = subprocess.run([sys.executable, str(FILE), "nowhere"], capture_output=True, text=True, cwd="/")
    assert (done.returncode, done.stdout, done.stderr) == (1, "0 valid, 0 rejected; networks: none\n", "")
    bad = next((tmp_path / "tree" / "a").glob("*.certs"))
    bad.write_bytes(b"no pack")
    (tmp_path / "tree" / "b" / "network.net").unlink()
    done = subprocess.run([sys.executable, str(FILE), str(tmp_path)], capture_output=True, text=True, cwd="/")
    assert done.returncode == 1 and f"{bad.name}: rejected: " in done.stdout
    assert f"{FEWEST + 1} rejected" in done.stdout


def test_a_stranger_is_told_of_damage_and_the_rest_is_checked(
    decided: tuple[nn.Sequential, sb.LinfBall, torch.Tensor, Path], tmp_path: Path
) -> None:
    place = copied(decided[3], tmp_path / "proofs")
    (place / "mnist.networks").mkdir()  # a directory, whatever it is called

    def told() -> tuple[int, str]:
        done = subprocess.run([sys.executable, str(FILE), str(place)], capture_output=True, text=True, cwd="/")
        return done.returncode, done.stdout + done.stderr

    code, said = told()
    assert code == 0 and said.startswith(f"{COUNT} valid, 0 rejected"), said
    pack = next(place.glob("*.certs"))
    content, name = bytearray(pack.read_bytes()), next(iter(held_in(pack)))
    content[content.index(b"surebound-certificate") + 60] ^= 1
    pack.write_bytes(content)
    code, said = told()
    assert code == 1 and f"{name}: rejected: " in said and f"{COUNT - 1} valid, 1 rejected" in said, said


def test_newer_certificates_replace_those_of_their_names(
    decided: tuple[nn.Sequential, sb.LinfBall, torch.Tensor, Path], tmp_path: Path
) -> None:
    net, region, labels, path = decided
    place = copied(path, tmp_path / "proofs")
    other = sb.LinfBall(1 - region.x, "1/50", clip=(0, 1))
    sb.verify(net, other, net(other.x).argmax(1), timeout=30, certificates=place)  # many at once: packs for packs
    assert len(entries(place)) == len(held(place)) == COUNT
    sb.verify(net, region[:3], labels[:3], timeout=30, certificates=place)  # few: files of their own
    assert len(entries(place)) == COUNT and len(list(place.glob("*.cert"))) == 3
    for i, entry in enumerate(entries(place)):
        assert np.array_equal(point_of(entry.read()[0]), (region.x if i < 3 else other.x)[i].numpy())
    inside = [name for pack in place.glob("*.certs") for name in held_in(pack)]
    assert len(inside) == len(set(inside)) == COUNT - 3
    sb.verify(net, region, labels, timeout=30, certificates=place)
    assert len(entries(place)) == COUNT and len(list(place.glob("*.cert"))) < 3
    for i, entry in enumerate(entries(place)):
        assert np.array_equal(point_of(entry.read()[0]), region.x[i].numpy())


def held_in(pack: Path) -> list[str]:
    return [name for name, each in held(pack.parent).items() if each.file == pack]


def test_a_store_goes_on_from_packs_and_not_from_damaged_ones(
    decided: tuple[nn.Sequential, sb.LinfBall, torch.Tensor, Path], tmp_path: Path
) -> None:
    net, region, labels, _ = decided
    place = tmp_path / "proofs"

    def ask() -> None:
        sb.verify(net, region, labels, timeout=30, out=tmp_path / "store", certificates=place)

    ask()
    before = {file: file.stat().st_mtime_ns for file in place.glob("*.cert*")}
    ask()
    assert {file: file.stat().st_mtime_ns for file in place.glob("*.cert*")} == before
    pack = next(place.glob("*.certs"))
    pack.write_bytes(pack.read_bytes()[:-30])
    done = CliRunner().invoke(build_app(), ["check", str(place)])
    assert done.exit_code == 1 and f"{pack.name}: rejected: not a certificate of version 1" in done.stdout
    ask()
    assert sum(each.file != pack for each in held(place).values()) == COUNT
    pack.unlink()
    assert all(check(*entry.read())[0] for entry in entries(place)) and len(entries(place)) == COUNT


def test_what_a_stopped_run_left_twice_counts_once(tmp_path: Path) -> None:
    first = write_pack(tmp_path, {"a.cert": b"old", "b.cert": b"old", "../c.cert": b"", "c.txt": b""})
    second = write_pack(tmp_path, {"b.cert": b"new", "d.cert": b"new"})
    (tmp_path / "d.cert").write_bytes(b"own")
    found = held(tmp_path)
    assert {name: each.read_bytes() for name, each in found.items()} == {
        "a.cert": b"old", "b.cert": b"new", "d.cert": b"own",
    }  # fmt: skip
    assert found["b.cert"] == Held(second, "b.cert") and found["b.cert"].uri() == f"{second.as_uri()}#b.cert"
    note_missing(tmp_path, "b", "why")
    note_missing(tmp_path, "x", "why")
    assert missing(tmp_path) == {"x": "why"}
    drop(first, ["b.cert"])
    assert sorted(held_in(first)) == ["a.cert"]
    drop(second, ["b.cert", "d.cert"])
    assert not second.exists()
    content = bytearray(first.read_bytes())
    content[content.index(b"old")] ^= 1
    first.write_bytes(content)
    assert held(tmp_path)["a.cert"].read_bytes() == b""
    drop(first, ["b.cert"])  # damaged: left as it is
    assert first.read_bytes() == content


def test_reports_link_to_packs(decided: tuple[nn.Sequential, sb.LinfBall, torch.Tensor, Path], tmp_path: Path) -> None:
    net, region, labels, path = decided
    results = sb.verify(net, region, labels, timeout=30)
    run = ReportedRun(tmp_path, "net", records=results.records, requests=({"certificates": str(path)},))
    found = certified(run)
    settled = [r for r in results if r.verdict.status.decided]
    assert len(found) == len(settled) == COUNT and {r.verdict.status for r in settled} >= {Status.ROBUST}
    for (index, eps), (_, address) in found.items():
        assert eps == Fraction(1, 50) and (".certs#" not in address or address.endswith(f"#{index:05d}.eps-1-50.cert"))


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.LeakyReLU(0.1), nn.Sigmoid(), nn.MaxPool2d(2, 1)])
def test_points_together_have_the_bounds_of_points_alone(activation: nn.Module) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, 2), nn.BatchNorm2d(4), activation, nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(),
        nn.LazyLinear(20), nn.ReLU(), nn.Linear(20, 5),
    ).eval()  # fmt: skip
    x = torch.rand(21, 1, 14, 14)
    net(x)
    net.requires_grad_(False)
    network = Claims.about(program_of(net, x[:1])).network
    low, high = point_bounds(network, x.numpy())
    outputs, exact = net(x).double().numpy(), net.double()(x.double()).numpy()
    assert (low < outputs).all() and (outputs < high).all() and (low < exact).all() and (exact < high).all()
    checked = CheckedNetwork(network, Numbers(exact=False, deployed=True))
    for i, point in enumerate(x.double().numpy()[:, None]):
        checked.over((point, point), linear=False)
        width = (checked.high[-1] - checked.low[-1]).max()
        assert np.abs(checked.low[-1] - low[i]).max() < 1e-6 * width
        assert np.abs(checked.high[-1] - high[i]).max() < 1e-6 * width

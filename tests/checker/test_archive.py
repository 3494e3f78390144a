"""Archives of certificates, also hostile ones; samples of the packaged networks; pictures; ONNX files beside them."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import surebound as sb
from surebound import zoo
from surebound.certificates.archive import entries, pack_archive
from surebound.certificates.checked import checked_files, is_checked
from surebound.certificates.explain import ProofTree, trees
from surebound.checker import Rejected, check
from surebound.cli import build_app
from surebound.errors import GraphError, InputError
from surebound.report.trees import draw_trees, layout
from surebound.vnnlib.flat_check import compare_network
from tests.checker.test_certificates import net_of


@pytest.fixture(scope="module")
def proofs(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Sequential, Path]:
    net, path = net_of(6, 12, 3, 3), tmp_path_factory.mktemp("proofs")
    x = torch.rand(4, 6, generator=torch.Generator().manual_seed(1))
    sb.verify(net, sb.LinfBall(x, "1/8", clip=(0, 1)), net(x).argmax(1), timeout=30, certificates=path)
    return net, path


def test_an_archive_holds_what_the_directory_holds(proofs: tuple[nn.Sequential, Path], tmp_path: Path) -> None:
    _, path = proofs
    archive = tmp_path / "proofs.zip"
    run = CliRunner()
    done = run.invoke(build_app(), ["check", str(path), "--pack", str(archive)])
    assert done.exit_code == 0, done.output
    names = [path.name for path in sorted(path.glob("*.cert"))]
    assert [entry.name for entry in entries(archive)] == names and names
    assert sum(name.endswith(".net") for name in zipfile.ZipFile(archive).namelist()) == 1
    done = run.invoke(build_app(), ["check", str(archive)])
    assert done.exit_code == 0 and done.stdout.startswith(f"{len(names)} valid, 0 rejected")
    first = archive.read_bytes()
    pack_archive(path, archive)
    assert archive.read_bytes() == first  # the same files are the same archive
    noted = checked_files(path)
    assert all(is_checked(name, (path / name).read_bytes(), noted) for name in names)
    assert not is_checked(names[0], (path / names[0]).read_bytes() + b"x", noted)


def rewritten(archive: Path, to: Path, change: dict[str, bytes | None]) -> Path:
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            content = change.get(name, old.read(name))
            if content is not None:
                new.writestr(name, content)
        for name in set(change) - set(old.namelist()):
            new.writestr(name, change[name] or b"")
    return to


def test_hostile_archives(proofs: tuple[nn.Sequential, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, path = proofs
    archive = tmp_path / "proofs.zip"
    pack_archive(path, archive)
    network = next(name for name in zipfile.ZipFile(archive).namelist() if name.endswith(".net"))

    def refused(changed: Path) -> None:
        for entry in entries(changed):
            if entry.name.endswith("x.cert") or changed.name.startswith("all"):
                with pytest.raises(Rejected):
                    check(*entry.read())

    refused(rewritten(archive, tmp_path / "all-none.zip", {network: None}))
    refused(rewritten(archive, tmp_path / "all-other.zip", {network: (path / "network.net").read_bytes()[:-9]}))
    refused(rewritten(archive, tmp_path / "up.zip", {"../../x.cert": b"surebound", "/etc/x.cert": b""}))
    assert not (tmp_path.parent / "x.cert").exists() and not (tmp_path.parent.parent / "x.cert").exists()
    bomb = rewritten(archive, tmp_path / "bomb.zip", {"x.cert": bytes(50_000_000)})
    monkeypatch.setattr("surebound.certificates.zips.LARGEST_FILE", 10_000_000)
    with pytest.raises(Rejected, match="too large"):
        next(entry for entry in entries(bomb) if entry.name == "x.cert").read()
    monkeypatch.setattr("surebound.certificates.zips.MOST_BYTES", 1000)
    with pytest.raises(InputError, match="refused"):
        entries(rewritten(archive, tmp_path / "large.zip", {}))
    with zipfile.ZipFile(tmp_path / "twice.zip", "w") as file:
        file.writestr("a.cert", b"")
        with pytest.warns(UserWarning, match="Duplicate"):
            file.writestr("a.cert", b"")
    with pytest.raises(InputError, match="two files of one name"):
        entries(tmp_path / "twice.zip")
    (tmp_path / "text.zip").write_text("no archive")
    with pytest.raises(InputError, match="neither a directory nor an archive"):
        entries(tmp_path / "text.zip")


def test_the_network_is_compared_with_an_onnx_file(proofs: tuple[nn.Sequential, Path], tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    from surebound.graph.onnx.file import read_model
    from surebound.vnnlib.files import write_network

    net, path = proofs
    write_network(net, torch.rand(1, 6), tmp_path / "same.onnx")
    network = (path / "network.net").read_bytes()
    assert compare_network(network, read_model(tmp_path / "same.onnx")) == 8
    write_network(net_of(6, 12, 3, 4), torch.rand(1, 6), tmp_path / "other.onnx")
    with pytest.raises(GraphError, match="not the network of the certificates"):
        compare_network(network, read_model(tmp_path / "other.onnx"))
    done = CliRunner().invoke(build_app(), ["check", str(path), "--onnx", str(tmp_path / "same.onnx")])
    assert done.exit_code == 0 and "computes what same.onnx does" in done.output


def test_trees_are_drawn(proofs: tuple[nn.Sequential, Path], tmp_path: Path) -> None:
    nodes, edges = layout([3, -1, 0, -1, -1])
    assert nodes == [((0.75, 0.0), 3), ((0.0, 1.0), -1), ((1.5, 1.0), 0), ((1.0, 2.0), -1), ((2.0, 2.0), -1)]
    assert len(edges) == 4 and ((0.75, 0.0), (0.0, 1.0), -1) in edges
    tree = ProofTree("class 1", (1, -1, 0, -1, -1), ("ReLU 0:5", "ReLU 1:2"))
    draw_trees([tree, tree], tmp_path / "tree.svg")
    text = (tmp_path / "tree.svg").read_text()
    assert text.count("ReLU 0:5") == 2 and "class 1: 3 leaves" in text
    with pytest.raises(InputError, match="svg, .png or .pdf"):
        draw_trees([tree], tmp_path / "tree.txt")
    _, path = proofs
    with_tree = [file for file in path.glob("*.cert") if trees(file.read_bytes())]
    if with_tree:
        asked = ["explain", str(with_tree[0]), "--picture", str(tmp_path / "own.png")]
        assert CliRunner().invoke(build_app(), asked).exit_code == 0 and (tmp_path / "own.png").stat().st_size > 1000


@pytest.mark.parametrize("name", [entry.name for entry in zoo.entries() if entry.certificates])
def test_the_packaged_sample_is_the_one_that_is_noted(name: str) -> None:
    """Its first certificates are valid for the network in the package; `surebound zoo --check` checks all."""
    from surebound.experiment.certified import SAMPLE_BYTES, packaged_network, sample_of

    sample, noted = sample_of(name), zoo.entry(name).certificates
    found, network = entries(sample), packaged_network(name)
    assert noted is not None and len(found) == noted["count"] and sample.stat().st_size < 1.3 * SAMPLE_BYTES
    for entry in found[:3]:
        check(entry.read()[0], network)
    manifest = json.loads(zipfile.ZipFile(sample).read("manifest.json"))
    assert manifest["certificates"] == noted["count"]

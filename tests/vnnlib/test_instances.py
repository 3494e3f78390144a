"""Lists of instances: what is settled counts for the files as they are now."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from surebound.cli import build_app
from surebound.cli.exits import EXIT_ERRORS
from surebound.vnnlib.instances import read_instances, run_instances
from tests.vnnlib.nets import SUM, VERSION, between, declare, dense


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    query = VERSION + declare(2, 1) + between([0, 0], [1, 1]) + "(assert (>= Y[0,0] 3.0))"
    (tmp_path / "q.vnnlib").write_text(query)
    (tmp_path / "net.onnx").write_bytes(SUM)
    (tmp_path / "instances.csv").write_text("net.onnx,q.vnnlib,20\n")
    return tmp_path


def statuses(folder: Path) -> list[str]:
    found = run_instances(read_instances(folder / "instances.csv"), folder / "out")
    return [record.verdict.status.value for record in found]


def test_an_overwritten_or_deleted_network_does_not_keep_its_verdict(listed: Path) -> None:
    network = listed / "net.onnx"
    assert statuses(listed) == statuses(listed) == ["robust"]
    network.write_bytes(b"no network")
    assert statuses(listed) == ["error"]
    network.unlink()
    assert statuses(listed) == ["error"]
    network.write_bytes(dense([[[5.0], [5.0]]], [[0.0]]))
    assert statuses(listed) == ["falsified"]
    network.write_bytes(SUM)
    assert statuses(listed) == ["robust"]
    (listed / "q.vnnlib").write_text("(assert")
    assert statuses(listed) == ["error"]


def test_the_command_says_so_by_its_exit_code(listed: Path) -> None:
    given = ["verify", "--instances", str(listed / "instances.csv"), "--out", str(listed / "out")]
    assert CliRunner().invoke(build_app(), given).exit_code == 0
    (listed / "net.onnx").write_bytes(b"no network")
    done = CliRunner().invoke(build_app(), given)
    assert done.exit_code == EXIT_ERRORS
    assert "unsat" not in done.output and "1 of 1 instances ended in an error" in done.output


def test_unsat_lines_have_certificates(listed: Path) -> None:
    """Also those that were decided before without; of a network that the checker does not know, a note says why."""
    assert statuses(listed) == ["robust"]
    given = ["verify", "--instances", str(listed / "instances.csv"), "--out", str(listed / "out"),
             "--certificates", str(listed / "proofs")]  # fmt: skip
    done = CliRunner().invoke(build_app(), given)
    assert done.exit_code == 0 and "certificates: 1 in" in done.output
    done = CliRunner().invoke(build_app(), ["check", str(listed / "proofs")])
    assert done.exit_code == 0 and done.stdout.startswith("1 valid, 0 rejected")
    (file,) = (listed / "proofs").rglob("*.cert")
    assert file.name == "00000-q.cert" and (file.parent / "network.net").is_file()

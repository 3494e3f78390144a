"""The explorer says what the store, the network and the certificates say, and answers nobody else."""

from __future__ import annotations

import base64
import dataclasses
import http.client
import json
import re
import shutil
import socket
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

import surebound as sb
from surebound.certificates.packs import Held
from surebound.cli import build_app
from surebound.errors import InputError
from surebound.report.explore.content import image_json, index_json, ranges_json
from surebound.report.explore.page import written_page
from surebound.report.explore.proofs import certificate_json
from surebound.report.explore.server import Explorer, start
from surebound.report.explore.subject import Subject, hardest_first, open_subject
from surebound.report.source import certified as certified_files
from surebound.verdict import Status


def request(
    explorer: Explorer, path: str, *, method: str = "GET", body: str | None = None, **headers: str
) -> tuple[int, bytes, http.client.HTTPMessage]:
    """Ask under the secret address; `path` may leave it by beginning with /."""
    connection = http.client.HTTPConnection("127.0.0.1", explorer.server_address[1], timeout=60)
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path if path.startswith("/") else f"/{explorer.secret}/{path}", body, given)
    answer = connection.getresponse()
    found = answer.status, answer.read(), answer.headers
    connection.close()
    return found


def test_every_verdict_is_there_with_its_certificate(subject: Subject) -> None:
    data = index_json(subject, sorted(subject.records), served=False)
    rows = {(image["i"], data["radii"][row[0]]): row for image in data["images"] for row in image["verdicts"]}
    assert len(rows) == len(subject.run.records) == 24
    for record in subject.run.records:
        row = rows[record.index, str(record.eps)]
        assert row[1:3] == [record.verdict.status.value, record.verdict.stage]
        assert row[5:8] == [record.verdict.read_as, record.verdict.float_sound, record.verdict.status.decided]
    assert {row[1] for row in rows.values()} >= {"robust", "falsified"}
    assert data["grid"] == sorted(data["grid"], key=Fraction) and set(data["radii"]) < set(data["grid"])


def test_images_and_counterexamples_are_those_that_were_verified(subject: Subject) -> None:
    digits, broken = sb.data.load("digits").test, next(r for r in subject.run.records if r.verdict.read_as is not None)
    found = image_json(subject, broken.index)
    x = np.frombuffer(base64.b64decode(found["x"]), "<f4").reshape(found["shape"])
    assert np.array_equal(x, digits.batch(torch.tensor([broken.index]))[0][0].numpy())
    witness = np.frombuffer(base64.b64decode(found["witnesses"][str(broken.eps)]), "<f4").reshape(found["shape"])
    assert subject.model is not None
    assert int(subject.model(torch.tensor(witness)[None]).argmax()) == broken.verdict.read_as != broken.label


def test_ranges_are_the_methods_own(subject: Subject) -> None:
    index = next(iter(subject.records))
    x, label = subject.image(index), next(iter(subject.records[index].values())).label
    assert x is not None and subject.model is not None
    found = ranges_json(subject, index, Fraction(1, 20))
    assert list(found) == ["interval", "crown-ibp", "crown", "alpha-crown"]
    ball = sb.LinfBall(x[None], "1/20", clip=(0, 1))
    box = sb.interval_bounds(subject.model, ball)
    assert found["interval"]["lower"] == pytest.approx(box.lower[0].tolist(), rel=1e-3, abs=1e-4)
    margins = sb.worst_margins(subject.model, ball, torch.tensor([label]), method="crown-ibp")[0]
    assert found["crown-ibp"]["margin"] == pytest.approx(margins.tolist(), rel=1e-3, abs=1e-4)
    assert found["crown-ibp"]["proved"] == bool((margins <= 0).all())
    point = subject.outputs(index)
    assert point is not None
    for each in found.values():
        assert all(
            lo <= v + 1e-4 and v <= up + 1e-4 for lo, v, up in zip(each["lower"], point, each["upper"], strict=True)
        )


def test_trees_have_the_leaves_that_the_checker_counts(subject: Subject) -> None:
    split = [
        certificate_json(path)
        for record in subject.run.records
        if record.verdict.stage == "branch-and-bound" and record.verdict.status is Status.ROBUST
        if (path := subject.certificate(record.index, record.eps)) is not None
    ]
    trees = [proof for found in split for proof in found["proofs"] if "tree" in proof]
    assert trees and all(found["state"] == "valid" and found["worst"] <= 0 for found in split)
    for found in split:
        assert sum(proof.get("leaves", len(proof["classes"])) for proof in found["proofs"]) == found["leaves"]
    for proof in trees:
        assert proof["tree"].count(-1) == proof["leaves"] == sum(unit >= 0 for unit in proof["tree"]) + 1
        assert sum(row[-1] for row in proof["neurons"]) <= proof["leaves"] - 1


def test_a_damaged_certificate_is_rejected(subject: Subject, tmp_path: Path) -> None:
    found = next(p for r in subject.run.records if (p := subject.certificate(r.index, r.eps)) is not None)
    shutil.copy(found.file.with_name("network.net"), tmp_path)
    content = bytearray(found.read_bytes())
    content[-20] ^= 1
    (tmp_path / found.name).write_bytes(content)
    damaged = Held(tmp_path / found.name, found.name)
    assert certificate_json(damaged)["state"] == "rejected"
    (tmp_path / "network.net").unlink()
    assert certificate_json(damaged)["state"] == "unchecked"


def test_a_certificate_of_another_image_is_not_shown(subject: Subject, tmp_path: Path) -> None:
    first, second = (r for r in list(subject.run.records)[:2] if subject.certificate(r.index, r.eps) is not None)
    own, other = (subject.certificate(r.index, r.eps) for r in (first, second))
    assert own is not None and other is not None
    (tmp_path / own.name).write_bytes(other.read_bytes())
    moved = dataclasses.replace(subject, certificates=tmp_path)
    assert moved.certificate(first.index, first.eps) is None
    run = dataclasses.replace(subject.run, requests=({"certificates": str(tmp_path)},))
    assert certified_files(run) == {}
    (tmp_path / own.name).write_bytes(own.read_bytes())
    assert moved.certificate(first.index, first.eps) == Held(tmp_path / own.name, own.name)
    assert list(certified_files(run)) == [(first.index, first.eps)]


def test_another_network_is_not_asked(certified: Path, run_dir: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    changed = {key: value * 1.01 for key, value in load_file(run_dir / "final.safetensors").items()}
    save_file(changed, tmp_path / "w.safetensors")
    found = open_subject(certified, network=str(run_dir), weights=tmp_path / "w.safetensors", data="digits")
    assert found.model is None and "not those that were verified" in " ".join(found.notes)
    assert open_subject(certified, network=str(run_dir), data="digits", clip=(0, 2)).model is None
    without = open_subject(certified, data="digits")
    assert without.model is None and "--network NET" in " ".join(without.notes)
    data = index_json(without, sorted(without.records), served=True)
    assert data["methods"] == [] and data["live"] is False


def test_one_file_with_the_hardest_images(subject: Subject) -> None:
    page = written_page(subject, most=5)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page) and "connect-src &#x27;none&#x27;" in page
    text = re.search(r'<script type="application/json" id="known" nonce="[^"]+">(.*?)</script>', page, re.DOTALL)
    assert text is not None
    known = json.loads(text[1])
    assert {int(i) for i in known["images"]} == set(hardest_first(subject)[:5])
    assert all(set(found) == {str(eps) for eps in subject.grid} for found in known["ranges"].values())
    assert known["certificates"] and all(each["state"] == "valid" for each in known["certificates"].values())


def test_names_are_text_and_never_markup(subject: Subject) -> None:
    evil = "</script><script>alert(1)</script>{{js}}<!--"
    run = dataclasses.replace(subject.run, name=evil)
    page = written_page(dataclasses.replace(subject, run=run, classes=(evil,) * 10, model=None), most=2)
    assert "alert(1)</script>" not in page and page.count("<script") == 3
    assert "innerHTML" not in page and "insertAdjacentHTML" not in page and "document.write" not in page


def test_the_page_and_its_answers(explorer: Explorer, subject: Subject) -> None:
    status, body, headers = request(explorer, "")
    assert status == 200 and b"surebound explorer" in body
    assert headers["X-Frame-Options"] == "DENY" and headers["Cache-Control"] == "no-store"
    index, eps = next((r.index, r.eps) for r in subject.run.records if r.verdict.status.decided)
    assert json.loads(request(explorer, f"image?i={index}")[1]) == image_json(subject, index)
    first, again = (request(explorer, f"ranges?i={index}&eps={eps}") for _ in range(2))
    assert first[0] == 200 and first[1] == again[1]
    assert json.loads(request(explorer, f"certificate?i={index}&eps={eps}")[1])["state"] == "valid"
    path = subject.certificate(index, eps)
    assert path is not None
    found = request(explorer, f"certificate.cert?i={index}&eps={eps}")
    assert found[1] == path.read_bytes() and path.name in found[2]["Content-Disposition"]
    assert list(json.loads(request(explorer, f"thumbnails?i={index}")[1])) == [str(index)]


def test_it_answers_nobody_else(explorer: Explorer, subject: Subject) -> None:
    assert explorer.server_address[0] == "127.0.0.1"
    index = next(iter(subject.records))
    assert request(explorer, "", Host="evil.example")[0] == 403, "a name that was made to lead here"
    assert request(explorer, "", Host="localhost:1234")[0] == 200
    assert request(explorer, f"image?i={index}", Sec_Fetch_Site="cross-site")[0] == 403
    for path in ("/", "/wrong/", f"/{explorer.secret[:-1]}/", f"/{explorer.secret}"):
        status, body, _ = request(explorer, path)
        assert status == (200 if path.endswith(explorer.secret) else 404), path
        assert path.endswith(explorer.secret) or b"terminal" in body


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("../../etc/passwd", 404),
        ("..%2f..%2fetc%2fpasswd", 404),
        ("config.toml", 404),
        ("image?i=../../etc/passwd", 404),
        ("image?i=99999", 404),
        ("image", 404),
        ("certificate.cert?i=0&eps=../x", 400),
        ("certificate.cert?i=0&eps=1/999", 404),
        ("ranges?i=0&eps=1e999999999", 400),
        ("ranges?i=0&eps=1/0", 400),
    ],
)
def test_nothing_else_can_be_read(explorer: Explorer, path: str, status: int) -> None:
    assert request(explorer, path)[0] == status


def test_an_address_that_is_none(explorer: Explorer, capfd: pytest.CaptureFixture[str]) -> None:
    """The answer is an error; the terminal stays the user's."""
    with socket.create_connection(explorer.server_address[:2]) as asked:
        asked.sendall(b"GET http://[::1/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert b" 400 " in asked.makefile("rb").readline()
    assert "Traceback" not in capfd.readouterr().err


def test_asking_again(explorer: Explorer, subject: Subject) -> None:
    def ask(body: Any, kind: str = "application/json") -> tuple[int, dict[str, Any]]:
        text = body if isinstance(body, str) else json.dumps(body)
        status, found, _ = request(explorer, "verify", method="POST", body=text, Content_Type=kind)
        return status, json.loads(found)

    proved = next(r for r in subject.run.records if r.verdict.status is Status.ROBUST)
    status, found = ask({"i": proved.index, "eps": "1/1000", "seconds": 5})
    assert status == 200 and found["status"] == "robust" and found["bound"] <= 0 and found["sound"]
    status, found = ask({"i": proved.index, "eps": "0.5", "seconds": 5})
    assert found["status"] == "falsified" and found["readAs"] != proved.label
    witness = np.frombuffer(base64.b64decode(found["witness"]), "<f4")
    x = subject.image(proved.index)
    assert x is not None and float(np.abs(witness - x.flatten().numpy()).max()) <= 0.5 + 1e-6
    assert len(open_subject(subject.run.path).run.records) == len(subject.run.records), "nothing is kept"
    assert ask({"i": proved.index, "eps": "1/10", "seconds": 1e9})[0] == 400
    assert ask({"i": proved.index, "eps": "1/10"})[0] == ask("{")[0] == ask({"i": 0}, "text/plain")[0] == 400
    assert ask("[" * 4000)[0] == ask({"i": 0, "eps": "1/10", "seconds": 10**1000})[0] == 400
    assert ask("x" * 5000)[0] == 413
    assert explorer._asking.acquire(blocking=False)
    try:
        assert ask({"i": proved.index, "eps": "1/10", "seconds": 1})[0] == 429
    finally:
        explorer._asking.release()


def test_commands(certified: Path, run_dir: Path, surebound: Callable[..., Result], tmp_path: Path) -> None:
    page = tmp_path / "explore.html"
    surebound("explore", certified, "--network", run_dir, "--data", "digits", "--out", page, "--images", 2)
    assert "branch-and-bound" in page.read_text(encoding="utf-8")
    result = surebound("report", certified, "--out", tmp_path / "report.html", "--explore")
    assert f"explorer: {page}" in result.output
    empty = CliRunner().invoke(build_app(), ["explore", str(tmp_path)])
    assert empty.exit_code == 2
    with pytest.raises(InputError, match="--certificates .* is no directory"):
        open_subject(certified, certificates=tmp_path / "none")


def test_a_port_that_is_taken(explorer: Explorer, subject: Subject) -> None:
    with pytest.raises(InputError, match="cannot be used .*--port 0 takes a free one"):
        start(subject, explorer.server_address[1])

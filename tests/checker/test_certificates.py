"""Certificates as users meet them: of verdicts, specifications and queries, resumed, explained, on the command line."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import surebound as sb
from surebound.certificates.asked import AskedLabel
from surebound.certificates.directory import CertificateDirectory, certificate_name, missing
from surebound.certificates.explain import explained
from surebound.certificates.files import pack
from surebound.certificates.trees import box_tree, split_tree
from surebound.checker import Rejected, check
from surebound.checker.checker import unpack
from surebound.cli import build_app
from surebound.errors import BoundError, GraphError, InputError, StoreError
from surebound.graph import program_of
from surebound.search.cascade import Cascade
from surebound.search.question import Finding
from surebound.search.signs import inner
from surebound.search.stages import BranchAndBound, Clean, CrownBounds, LinearRelaxation, branch
from surebound.verify.mistaken import of_another_question


def net_of(inputs: int, hidden: int, outputs: int, seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs)
    ).requires_grad_(False)
    for layer in net:
        if isinstance(layer, nn.Linear):
            layer.weight.normal_(0, (2 / layer.in_features) ** 0.5)
    return net


def checked(path: Path) -> list[tuple[str, float, int]]:
    network = (path / "network.net").read_bytes()
    return [check(file.read_bytes(), network) for file in sorted(path.glob("*.cert"))]


def test_every_decided_image_has_a_valid_certificate(tmp_path: Path) -> None:
    net = net_of(10, 12, 3, 0)
    x = torch.rand(20, 10, generator=torch.Generator().manual_seed(1))
    balls = [sb.LinfBall(x, eps, clip=(0, 1)) for eps in ("1/50", "1/12")]
    results = sb.verify(net, balls, net(x).argmax(1), timeout=20, certificates=tmp_path)
    decided = [record for record in results if record.verdict.status.decided]
    assert len(decided) == 40
    assert {record.verdict.status.value for record in decided} == {"robust", "falsified"}
    found = checked(tmp_path)
    assert len(found) == len(decided)
    assert [kind for kind, *_ in found] == [
        record.verdict.status.value for record in sorted(decided, key=lambda r: (r.index, r.eps.denominator))
    ]


def test_what_has_no_certificate_yet_is_decided_again(tmp_path: Path) -> None:
    net, x = net_of(6, 8, 3, 3), torch.rand(5, 6, generator=torch.Generator().manual_seed(2))
    region, labels = sb.LinfBall(x, "1/100", clip=(0, 1)), net(x).argmax(1)
    sb.verify(net, region, labels, out=tmp_path / "store")
    kept = tmp_path / "proofs"
    sb.verify(net, region, labels, out=tmp_path / "store", certificates=kept)
    assert len(checked(kept)) == 5
    files = {file: file.stat().st_mtime_ns for file in kept.glob("*.cert")}
    next(iter(files)).unlink()
    sb.verify(net, region, labels, out=tmp_path / "store", certificates=kept)
    again = {file: file.stat().st_mtime_ns for file in kept.glob("*.cert")}
    assert len(again) == 5
    assert sum(files[file] == time for file, time in again.items()) == 4


def test_a_certificate_of_another_question_is_not_taken_for_ones_own(tmp_path: Path) -> None:
    """Files are named by index and radius: other images, and another clip range, have the same names."""
    net, kept = net_of(6, 8, 3, 3), tmp_path / "proofs"
    first, second = torch.rand(2, 3, 6, generator=torch.Generator().manual_seed(2))
    for number, (x, clip) in enumerate(((first, (0, 1)), (second, (0, 1)), (second, (-1, 2)))):
        region, labels, store = sb.LinfBall(x, "1/100", clip), net(x).argmax(1), tmp_path / f"store{number}"
        sb.verify(net, region, labels, out=store)
        results = sb.verify(net, region, labels, out=store, certificates=kept)
        for record in results:
            file = kept / f"{certificate_name(record.index, record.eps)}.cert"
            header, arrays = unpack(file.read_bytes())
            assert np.array_equal(arrays["center"], x[record.index].numpy())
            assert header["region"]["clip"] == [str(end) for end in clip]
            assert not of_another_question(file.read_bytes(), record)
            other = kept / f"{certificate_name((record.index + 1) % 3, record.eps)}.cert"
            assert of_another_question(other.read_bytes(), record)
    # what cannot be certified leaves no other question's file under its name
    directory = CertificateDirectory(kept, program_of(net, first))
    eps = Fraction(1, 100)
    name, own = certificate_name(0, eps), AskedLabel(second[0].numpy(), int(labels[0]), eps, (-1, 2))
    directory.label_open(name, own, "too hard")
    assert (kept / f"{name}.cert").exists()
    directory.label_open(name, AskedLabel(first[0].numpy(), 0, eps, (0, 1)), "too hard")
    assert not (kept / f"{name}.cert").exists() and missing(kept)[name] == "too hard"


def test_a_directory_belongs_to_one_network(tmp_path: Path) -> None:
    x = torch.rand(2, 6)
    for seed in (0, 1):
        net = net_of(6, 8, 3, seed)
        ask = lambda net=net: sb.verify(net, sb.LinfBall(x, 0), net(x).argmax(1), certificates=tmp_path)  # noqa: E731
        if seed == 0:
            ask()
        else:
            with pytest.raises(StoreError, match="another network"):
                ask()


def test_an_operator_that_the_checker_does_not_know_is_said_at_once(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Softmax(1), nn.Linear(4, 2))
    with pytest.raises(GraphError, match="softmax.* has no certificate"):
        sb.verify(net, sb.LinfBall(torch.rand(1, 4), 0), torch.tensor([0]), certificates=tmp_path)


class Sum(nn.Module):
    """The bias is a row of a batch of one: PyTorch adds it to every example."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(3, 4), nn.Parameter(torch.rand(4, 2))
        self.bias = nn.Parameter(torch.tensor([[0.0, 1.0]]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias, self.first(x).relu(), self.last)


def test_a_bias_with_a_batch_axis(tmp_path: Path) -> None:
    net, x = Sum().requires_grad_(False), torch.rand(3, 3, generator=torch.Generator().manual_seed(0))
    sb.verify(net, sb.LinfBall(x, "1/100"), net(x).argmax(1), certificates=tmp_path)
    assert [kind for kind, *_ in checked(tmp_path)] == ["robust"] * 3


class Centred(nn.Module):
    """Subtracts one number from several: the checker's sums are of values of one shape."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(2, 4), nn.Linear(4, 1), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x).relu()
        return self.last(h - self.middle(h))


def test_a_network_that_the_checker_cannot_read_is_refused_before_the_search(tmp_path: Path) -> None:
    net, ball = Centred().requires_grad_(False), sb.LinfBall(torch.rand(1, 2), 0)
    with pytest.raises(GraphError, match="no certificates can be written: the checker refuses the network: a sum with"):
        sb.verify(net, ball, torch.tensor([0]), certificates=tmp_path)


@pytest.mark.parametrize(("clip", "x"), [((0, 0.1), (0.1, 0.05)), ((0.7, 1), (0.7, 0.9))])
def test_ends_of_valid_inputs_that_are_no_floats(
    clip: tuple[float, float], x: tuple[float, ...], tmp_path: Path
) -> None:
    """The float32 next to 0.1 is above it, that next to 0.7 below; an image of them is in the region all the same."""
    net, image = nn.Linear(2, 2, bias=False).requires_grad_(False), torch.tensor([x])
    net.weight.copy_(torch.eye(2))
    for label, status in ((0, "robust"), (1, "falsified")) if x[0] > x[1] else ((1, "robust"), (0, "falsified")):
        path = tmp_path / status
        sb.verify(net, sb.LinfBall(image, "1/1000", clip), torch.tensor([label]), certificates=path)
        assert [kind for kind, *_ in checked(path)] == [status]
        header, arrays = unpack(next(path.glob("*.cert")).read_bytes())
        low, high = (Fraction(end) for end in header["region"]["clip"])
        assert all(low <= Fraction(float(pixel)) <= high for pixel in arrays["center"].flatten())


@pytest.mark.parametrize("stages", [("bounds", "relu-splitting"), ("bounds", "input-splitting")])
def test_specifications_of_several_rows(stages: tuple[str, ...], tmp_path: Path) -> None:
    """An output is never the largest: a case of two rows, proved by signs or by boxes, with mixtures of rows."""
    kinds, proved = set[str](), 0
    for seed in range(8):
        net = net_of(3, 16, 3, 20 + seed)
        box = sb.Box(torch.full((1, 3), 0.2), torch.full((1, 3), 0.8))
        spec = sb.Spec.never(int(net(torch.full((1, 3), 0.5))[0].argmin()))
        path = tmp_path / str(seed)
        (verdict,) = sb.decide(net, box, spec, stages=stages, timeout=20, certificates=path)
        if verdict.status is not sb.Status.ROBUST:
            continue
        proved += 1
        assert [kind for kind, *_ in checked(path)] == ["robust"]
        header, _ = unpack(next(path.glob("*.cert")).read_bytes())
        kinds |= {proof["by"] for proof in header["proofs"]}
    assert proved >= 3
    assert kinds & {"splits", "boxes"}


@pytest.mark.parametrize("kind", ["paper", "alpha-crown", "wong", "lp"])
def test_what_others_proved_is_proved_again(kind: str, tmp_path: Path) -> None:
    """A solver's word and slopes that nobody kept are no evidence; branch and bound finds some, and proves more."""
    stages = {"lp": LinearRelaxation()}.get(kind) or CrownBounds(kind)
    cascade = kind if kind == "paper" else Cascade(kind, (Clean(), stages))
    net, x = net_of(6, 8, 3, 0), torch.rand(2, 6, generator=torch.Generator().manual_seed(1))
    results = sb.verify(net, sb.LinfBall(x, "1/20", clip=(0, 1)), net(x).argmax(1), cascade, certificates=tmp_path)
    robust = [record for record in results if record.verdict.status is sb.Status.ROBUST]
    assert robust and all(record.verdict.float_sound for record in robust)
    assert [found[0] for found in checked(tmp_path)].count("robust") == len(robust)
    assert not missing(tmp_path)


def test_why_there_is_no_certificate_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branch, "again", lambda *_: Finding())
    net, x = net_of(6, 8, 3, 3), torch.rand(3, 6, generator=torch.Generator().manual_seed(2))
    ask = {"out": tmp_path / "store", "certificates": tmp_path / "proofs"}
    cascade = Cascade("slopes", (CrownBounds("alpha-crown"),))
    for _ in range(2):  # it is not tried again
        sb.verify(net, sb.LinfBall(x, "1/100", clip=(0, 1)), net(x).argmax(1), cascade, **ask)
        lines = (tmp_path / "proofs" / "missing.txt").read_text().splitlines()
        assert lines == [f"{i:05d}.eps-1-100\tproved by crown alone" for i in range(3)]
    assert set(missing(tmp_path / "proofs").values()) == {"proved by crown alone"}


def test_bounds_inside_the_network_are_evidence_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slopes of inner bounds are kept where a search goes on with them; without them the tree proves nothing."""
    for name, value in {"_AFTER": 4, "_PATIENCE": 0.0, "_LONG": 0.0}.items():
        monkeypatch.setattr(inner, name, value)
    net = net_of(6, 16, 3, 3)
    x = torch.rand(3, 6, generator=torch.Generator().manual_seed(1))
    cascade = Cascade("search", (BranchAndBound(splits=("relu-splitting",)),))
    sb.verify(net, sb.LinfBall(x, "1/6", clip=(0, 1)), net(x).argmax(1), cascade, certificates=tmp_path)
    assert not missing(tmp_path)
    network, found, needed = (tmp_path / "network.net").read_bytes(), 0, 0
    for file in tmp_path.glob("*.cert"):
        check(file.read_bytes(), network)
        header, arrays = unpack(file.read_bytes())
        header.pop("arrays")
        if not any(proof.pop("inner", None) for proof in header.get("proofs", ())):
            continue
        found += 1
        try:
            check(pack(header, arrays), network)
        except Rejected:
            needed += 1
    assert found and needed


def test_trees_are_found_from_their_leaves() -> None:
    signs = np.array([[1, 0, 1], [1, 0, -1], [-1, 1, 0], [-1, -1, 0]], dtype=np.int8)
    walk, order = split_tree(signs)
    assert walk.count(-1) == 4 and sorted(order) == [0, 1, 2, 3]
    with pytest.raises(BoundError, match="do not cover"):
        split_tree(signs[:3])
    low, high = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]]), np.array([[1.0, 2.0], [2.0, 1.0], [2.0, 2.0]])
    whole = np.zeros(2), np.full(2, 2.0)
    walk, cuts, order = box_tree(low, high, whole)
    assert (walk, cuts, order) == ([0, -1, 1, -1, -1], [1.0, 1.0], [0, 1, 2])
    with pytest.raises(BoundError, match="do not cover"):
        box_tree(low[:2], high[:2], whole)


def test_commands(tmp_path: Path) -> None:
    net = net_of(10, 12, 3, 0)
    x = torch.rand(12, 10, generator=torch.Generator().manual_seed(1))
    sb.verify(net, sb.LinfBall(x, "1/12", clip=(0, 1)), net(x).argmax(1), timeout=20, certificates=tmp_path)
    run = CliRunner()
    done = run.invoke(build_app(), ["check", str(tmp_path)])
    assert done.exit_code == 0 and done.stdout.startswith("12 valid, 0 rejected")
    for file in sorted(tmp_path.glob("*.cert")):
        text = "\n".join(explained(file.read_bytes(), (tmp_path / "network.net").read_bytes()))
        assert text.startswith("Claim: the label") and "The checker confirms it" in text
    broken = sorted(tmp_path.glob("*.cert"))[3]
    content = bytearray(broken.read_bytes())
    content[len(content) // 2] ^= 1
    broken.write_bytes(bytes(content))
    done = run.invoke(build_app(), ["check", str(tmp_path)])
    assert done.exit_code == 1 and f"{broken.name}: rejected" in done.stdout
    assert run.invoke(build_app(), ["explain", str(tmp_path / "none.cert")]).exit_code != 0
    whole = file.read_bytes()
    for damaged in (b"", whole[:40], whole[:-9], whole[:30] + b"\xff" + whole[31:], b"zip" + whole):
        with pytest.raises(InputError, match="cannot be read"):
            list(explained(damaged, (tmp_path / "network.net").read_bytes()))
    (tmp_path / "empty").mkdir()
    done = run.invoke(build_app(), ["check", str(tmp_path / "empty")])
    assert done.exit_code == 2 and "no certificates" in done.output

"""The checker against a second one, against exact maxima, and against certificates that somebody tampered with."""

from __future__ import annotations

import ast
import random
import subprocess
import sys
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import surebound as sb
from surebound.certificates.files import pack
from surebound.certificates.write import Claims
from surebound.checker import Rejected, check
from surebound.checker.checker import unpack
from surebound.graph import program_of
from surebound.search.cascade import Cascade
from surebound.search.stages import BranchAndBound, Clean, CrownBounds, IntervalBounds
from tests.checker import second

FILE = Path(sb.__file__).parent / "checker" / "checker.py"

#: No attacks: questions with a counterexample stay open or are falsified by leaves.
STAGES, LINEAR = (
    Cascade("proofs", (Clean(), IntervalBounds(), CrownBounds(method), BranchAndBound()))
    for method in ("crown-ibp", "crown")
)


def random_net(inputs: int, hidden: tuple[int, ...], outputs: int, seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    sizes = (inputs, *hidden)
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Linear(sizes[-1], outputs)).requires_grad_(False)
    for layer in net:
        if isinstance(layer, nn.Linear):
            layer.weight.normal_(0, (2 / layer.in_features) ** 0.5)
            layer.bias.normal_(0, 0.3)
    return net


def certificates(net: nn.Module, x: torch.Tensor, eps: str, path: Path, cascade: Cascade | str = STAGES) -> list[bytes]:
    labels = net(x).argmax(1)
    sb.verify(net, sb.LinfBall(x, eps, clip=(0, 1)), labels, cascade, timeout=10, certificates=path)
    return [file.read_bytes() for file in sorted(path.glob("*.cert"))]


@pytest.fixture(scope="module")
def proofs(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[bytes]]:
    """A network of three layers and certificates of all kinds about it."""
    net, found = random_net(12, (8, 8, 8), 3, 5), list[bytes]()
    x = torch.rand(14, 12, generator=torch.Generator().manual_seed(0))
    path = tmp_path_factory.mktemp("proofs")
    for eps in ("1/100", "1/30", "1/15", "1/8"):
        found = certificates(net, x, eps, path)
    found = certificates(net, x, "1/20", path, LINEAR)
    return (path / "network.net").read_bytes(), found


def kinds(certificate: bytes) -> set[str]:
    header, _ = unpack(certificate)
    return {proof["by"] for proof in header.get("proofs", ())}


def test_runs_alone_with_numpy_only(proofs: tuple[bytes, list[bytes]], tmp_path: Path) -> None:
    network, found = proofs
    (tmp_path / "network.net").write_bytes(network)
    for i, each in enumerate(found[:8]):
        (tmp_path / f"{i}.cert").write_bytes(each)
    alone = tmp_path / "checker.py"
    alone.write_text(FILE.read_text())
    block = "import sys; sys.modules.update(dict.fromkeys(('torch', 'surebound', 'scipy'))); sys.argv = sys.argv[1:]; "
    run = "exec(compile(open(sys.argv[0]).read(), 'checker', 'exec'), {'__name__': '__main__'})"
    done = subprocess.run(
        [sys.executable, "-c", block + run, str(alone), str(tmp_path)], capture_output=True, text=True, cwd="/"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("8 valid, 0 rejected")


def test_is_small_and_imports_numpy_and_the_standard_library_alone() -> None:
    text = FILE.read_text()
    names = set[str]()
    for node in ast.walk(ast.parse(text)):
        names |= {alias.name.split(".")[0] for alias in node.names} if isinstance(node, ast.Import) else set()
        names |= {str(node.module).split(".")[0]} if isinstance(node, ast.ImportFrom) else set()
    assert names - {"numpy"} <= set(sys.stdlib_module_names) | {"__future__"}
    assert sum(bool(line.strip()) for line in text.splitlines()) <= 500


def test_all_kinds_are_valid_in_both_arithmetics(proofs: tuple[bytes, list[bytes]]) -> None:
    network, found = proofs
    assert set().union(*(kinds(each) for each in found)) >= {"interval", "crown-ibp", "crown", "splits"}
    assert any(unpack(each)[0]["claim"] == "falsified" for each in found)
    for each in found[::2]:
        kind, worst, _ = check(each, network)
        exactly = check(each, network, exact=True)
        assert exactly[0] == kind
        if kind == "robust":
            assert worst <= 0 and exactly[1] <= worst + 1e-9  # rationals have less to pay


def over_the_reals(certificate: bytes) -> bytes:
    header, arrays = unpack(certificate)
    header.pop("arrays")
    return pack({**header, "mode": "real"}, arrays)


def with_inner(certificate: bytes, network: bytes, seed: int) -> bytes:
    """Give every tree slopes for bounds inside the network: any will do."""
    header, arrays = unpack(certificate)
    header.pop("arrays")
    arrays, rng = dict(arrays), np.random.default_rng(seed)
    steps, weights = (part for part in unpack(network))
    relus = [i for i, step in enumerate(steps["steps"]) if step["op"] == "relu"]
    for number, proof in enumerate(header["proofs"]):
        if proof["by"] == "splits" and len(arrays[proof["units"]]):
            proof["inner"] = []
            for relu, i in list(enumerate(relus))[1:]:
                entries = rng.permutation(len(weights[steps["steps"][i - 1]["weight"]]))[:4].astype("<i4")
                slopes = rng.integers(0, 256, (2, len(entries), len(arrays[proof["units"]])), dtype=np.uint8)
                names = [f"{kind}{number}.{relu}" for kind in ("entries", "inner")]
                arrays |= dict(zip(names, (entries, slopes), strict=True))
                proof["inner"].append([relu, *names])
    return pack(header, arrays)


def test_agrees_with_the_second_checker(proofs: tuple[bytes, list[bytes]]) -> None:
    network, found = proofs
    compared = 0
    found = [*found, *(with_inner(each, network, i) for i, each in enumerate(found) if "splits" in kinds(each))]
    for each in found:
        if unpack(each)[0]["claim"] != "robust" or "boxes" in kinds(each):
            continue
        theirs = second.bound(over_the_reals(each), network)
        ours = check(over_the_reals(each), network, exact=True)[1]
        assert theirs is None or float(theirs) == ours
        compared += 1
    assert compared > 20


def exact_maximum(net: nn.Sequential, label: int, low: Fraction, high: Fraction) -> Fraction:
    """The largest z_k - z_label of a network of one input over [low, high], in rationals: at its kinks or ends."""
    layers = [m for m in net if isinstance(m, nn.Linear)]
    points = [low, high]
    for depth in range(len(layers) - 1):
        points = sorted(set(points))
        inside = [hidden(layers, depth, x) for x in points]
        for (a, va), (b, vb) in zip(
            zip(points, inside, strict=True), list(zip(points, inside, strict=True))[1:], strict=False
        ):
            points += [a + (b - a) * p / (p - q) for p, q in zip(va, vb, strict=True) if p * q < 0]
    values = []
    for x in points:
        z = hidden(layers, len(layers) - 1, x)
        values.append(max(v - z[label] for k, v in enumerate(z) if k != label))
    return max(values)


def hidden(layers: list[nn.Linear], depth: int, x: Fraction) -> list[Fraction]:
    """Inputs of the ReLUs of a layer, or the outputs."""
    values = [x]
    for number, layer in enumerate(layers[: depth + 1]):
        values = [max(v, Fraction(0)) for v in values] if number else values
        rows, bias = layer.weight.double().tolist(), layer.bias.double().tolist()
        values = [
            sum((Fraction(w) * v for w, v in zip(row, values, strict=True)), Fraction(b))
            for row, b in zip(rows, bias, strict=True)
        ]
    return values


def damaged(header: dict, arrays: dict[str, np.ndarray], rng: random.Random) -> tuple[dict, dict[str, np.ndarray]]:
    """Change one thing of a certificate."""
    arrays = {name: value.copy() for name, value in arrays.items()}
    names = [name for name in arrays if arrays[name].size]
    name = rng.choice(names)
    value = arrays[name].reshape(-1)
    at = rng.randrange(len(value))
    kind = rng.randrange(10)
    if kind == 0:  # a wider region
        header["region"]["eps"] = str(Fraction(header["region"]["eps"]) * rng.choice((2, 4, Fraction(5, 4))))
    elif kind == 1:
        header["label"] = rng.randrange(3)
    elif kind == 2 and header["proofs"]:
        header["proofs"].pop(rng.randrange(len(header["proofs"])))
    elif kind == 3 and header["proofs"]:
        rng.choice(header["proofs"])["by"] = rng.choice(("interval", "crown-ibp", "crown", "splits", "boxes"))
    elif kind == 4 and arrays[name].ndim:  # something is missing
        arrays[name] = arrays[name][:-1]
    elif kind == 5:
        header["network"] = "0" * 64
    elif kind == 6 and header["proofs"]:
        proof = rng.choice(header["proofs"])
        proof["cases"] = [rng.randrange(-1, 3)]
    elif value.dtype.kind == "f":
        value[at] = rng.choice((-value[at], value[at] + 1, value[at] * 100, np.nan, np.inf, np.nextafter(value[at], 9)))
    else:
        value[at] = 0 if value[at] > 100 else abs(int(value[at]) + rng.choice((1, -1, -2)))
    return header, arrays


def test_whatever_is_changed_it_is_rejected_or_true(tmp_path: Path) -> None:
    """Networks of one input, whose exact maxima are known: no damaged certificate proves what is false."""
    rng, accepted, rejected = random.Random(1), 0, 0
    pool = list[tuple[nn.Sequential, bytes, bytes]]()
    for seed in range(8):
        net = random_net(1, (5, 5, 4), 3, seed)
        x = torch.rand(6, 1, generator=torch.Generator().manual_seed(seed))
        for eps in ("1/50", "1/8", "1/3"):
            path = tmp_path / f"{seed}"
            found = certificates(net, x, eps, path)
        network = (path / "network.net").read_bytes()
        pool += [(net, network, over_the_reals(each)) for each in found if unpack(each)[0]["claim"] == "robust"]
        pool += [(net, network, with_inner(each, network, 0)) for _, _, each in pool if "splits" in kinds(each)]
    assert len(pool) > 40
    for _ in range(1000):
        net, network, certificate = rng.choice(pool)
        header, arrays = unpack(certificate)
        header.pop("arrays")
        if rng.random() < 0.15:  # bytes
            data = bytearray(certificate)
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            changed = bytes(data) if rng.random() < 0.7 else bytes(data[: rng.randrange(len(data))])
        else:
            changed = pack(*damaged(header, arrays, rng))
        try:
            check(changed, network)
        except Rejected:
            rejected += 1
            continue
        accepted += 1
        header, arrays = unpack(changed)
        region = header["region"]
        center, eps = Fraction(float(arrays["center"].reshape(-1)[0])), Fraction(region["eps"])
        low, high = (min(max(v, Fraction(0)), Fraction(1)) for v in (center - eps, center + eps))
        assert exact_maximum(net, header["label"], low, high) <= 0
    assert rejected > 300 and accepted > 40  # both happen: neither everything nor nothing is believed


def test_a_claim_that_is_false_is_never_accepted(tmp_path: Path) -> None:
    """Certificates of narrow balls, put to the widest false ones just beyond: by the exact maximum."""
    refused = 0
    for seed in range(6):
        net = random_net(1, (6, 6), 3, 100 + seed)
        x = torch.tensor([[0.5]])
        label = int(net(x).argmax())
        for by in ("interval", "crown-ibp", "crown"):
            claims = Claims.about(program_of(net, x))
            for n in range(1, 40, 3):
                eps = Fraction(n, 80)
                header = {"claim": "robust", "network": claims.digest, "mode": "real", "label": label,
                          "region": {"kind": "ball", "eps": str(eps), "clip": None},
                          "proofs": [{"by": by, "cases": [0, 1]}]}  # fmt: skip
                try:
                    check(pack(header, {"center": x[0].numpy()}), claims.network)
                except Rejected:
                    refused += 1
                    continue
                assert exact_maximum(net, label, Fraction(1, 2) - eps, Fraction(1, 2) + eps) <= 0
    assert refused > 30


def layered(kind: str) -> nn.Module:
    torch.manual_seed(0)
    body: dict[str, list[nn.Module]] = {
        "padding": [nn.Conv2d(1, 3, 3, padding=1, dilation=1), nn.ReLU(), nn.Flatten(), nn.Linear(192, 4)],
        "groups": [nn.Conv2d(1, 4, 2, stride=2), nn.ReLU(), nn.Conv2d(4, 4, 2, groups=2), nn.ReLU(), nn.Flatten(),
                   nn.Linear(36, 4)],
        "norm": [nn.Conv2d(1, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 4)],
        "max": [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2, padding=1), nn.Flatten(), nn.Linear(64, 4)],
        "average": [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(36, 8), nn.ReLU(),
                    nn.Linear(8, 4)],
        "leaky": [nn.Flatten(), nn.Linear(64, 12), nn.LeakyReLU(0.1), nn.Linear(12, 12), nn.LeakyReLU(0.1),
                  nn.Linear(12, 4)],
    }  # fmt: skip
    net = nn.Sequential(*body[kind]).eval().requires_grad_(False)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    return net


@pytest.mark.parametrize("kind", ["padding", "groups", "norm", "max", "average", "leaky"])
def test_layers_are_the_networks(kind: str, tmp_path: Path) -> None:
    """Bounds over a point hold what the network computes, and hardly more; claims about balls are confirmed."""
    from surebound.checker.checker import CheckedNetwork, Numbers

    net = layered(kind)
    x = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    claims = Claims.about(program_of(net, x[:1]))
    flat = CheckedNetwork(claims.network, Numbers(exact=False, deployed=True))
    for image in x:
        point = image[None].double().numpy()
        flat.over((point, point.copy()), linear=False)
        z = net(image[None]).double().numpy()
        assert (flat.low[-1] <= z).all() and (z <= flat.high[-1]).all()
        assert (flat.high[-1] - flat.low[-1]).max() < 1e-3
    found = certificates(net, x, "1/200", tmp_path)
    assert len(found) == 6
    for each in found:
        check(each, claims.network)


@pytest.mark.parametrize("kind", ["padding", "groups", "norm", "max", "average", "leaky"])
@pytest.mark.parametrize("linear", [False, True])
def test_bounds_hold_what_is_sampled(kind: str, linear: bool) -> None:
    from surebound.checker.checker import CheckedNetwork, Numbers

    net = layered(kind)
    generator = torch.Generator().manual_seed(2)
    center, eps = torch.rand(1, 1, 8, 8, generator=generator), 0.05
    flat = CheckedNetwork(Claims.about(program_of(net, center)).network, Numbers(exact=False, deployed=True))
    low, high = (center - eps).double().numpy(), (center + eps).double().numpy()
    flat.over((low, high), linear)
    rows = np.concatenate([np.eye(4), -np.eye(4)])
    bounds = flat.back(len(flat.steps), rows)
    points = center + eps * (2 * torch.rand(2000, 1, 8, 8, generator=generator) - 1)
    corners = center + eps * torch.randn(2000, 1, 8, 8, generator=generator).sign()
    z = net(torch.cat([points, corners])).double().numpy()
    assert (z @ rows.T <= bounds).all()
    assert (flat.low[-1] <= z).all() and (z <= flat.high[-1]).all()
    assert ((z @ rows.T).max(0) >= bounds - 2.0).all()  # and they are bounds of this network


def test_another_order_of_summation_is_paid_for() -> None:
    """A sum that cancels: the claim holds over the reals, but not in some order of float32: only ``real`` is valid."""
    net = nn.Linear(3, 2, bias=False).requires_grad_(False)
    net.weight.copy_(torch.tensor([[2.0**24, 1.0, -(2.0**24)], [0.0, 0.0, 0.0]]))
    x = torch.ones(1, 3)
    claims = Claims.about(program_of(net, x))
    header = {"claim": "robust", "network": claims.digest, "label": 0, "proofs": [{"by": "interval", "cases": [0]}],
              "region": {"kind": "ball", "eps": "0", "clip": None}}  # fmt: skip
    assert check(pack({**header, "mode": "real"}, {"center": x[0].numpy()}), claims.network)[1] < -0.99
    with pytest.raises(Rejected, match="not below 0"):
        check(pack({**header, "mode": "deployed"}, {"center": x[0].numpy()}), claims.network)


def test_certificates_of_another_network_are_rejected(proofs: tuple[bytes, list[bytes]]) -> None:
    other = Claims.about(program_of(random_net(12, (8, 8, 8), 3, 6), torch.rand(1, 12)))
    with pytest.raises(Rejected, match="another network"):
        check(proofs[1][0], other.network)


def test_split_trees_must_cover_everything(proofs: tuple[bytes, list[bytes]]) -> None:
    """Without one half of a split, or with a unit split twice on a path, there is no proof."""
    network, found = proofs
    tried = 0
    for each in found:
        header, arrays = unpack(each)
        for proof in header.get("proofs", ()):
            if proof["by"] != "splits" or len(arrays[proof["tree"]]) < 3:
                continue
            for tree in ([arrays[proof["tree"]][0], -1], [-1, -1], [0, 0, -1, -1, -1], [-1]):
                changed = {**arrays, proof["tree"]: np.array(tree, "<i4")}
                with pytest.raises(Rejected):
                    check(pack({k: v for k, v in header.items() if k != "arrays"}, changed), network)
                tried += 1
    assert tried >= 4

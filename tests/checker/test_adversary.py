"""Files that were made to deceive the checker, each of which it must reject; and curves against what they compute."""

from __future__ import annotations

import random
import zlib
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from surebound.certificates.files import MAGIC, network_digest, pack
from surebound.certificates.write import Claims
from surebound.checker import Rejected, check
from surebound.checker.checker import CURVES, CheckedNetwork, Numbers, unpack
from surebound.graph import program_of

#: z = (0, x): the label 0 does not stay the largest for x > 0.
IDENTITY = {"input": [1], "steps": [{"op": "dense", "in": [0], "weight": "w"}]}


def robust(network: bytes, center: list[float], eps: str, *proofs: dict, **arrays: np.ndarray) -> bytes:
    header = {"claim": "robust", "network": network_digest(network), "mode": "real", "label": 0,
              "region": {"kind": "ball", "eps": eps, "clip": None}, "proofs": list(proofs)}  # fmt: skip
    return pack(header, {"center": np.array(center, "<f4"), **arrays})


def two_layers() -> bytes:
    """z = (0, max(x, 0)): the label does not stay the largest around 1."""
    steps = [
        {"op": "dense", "in": [0], "weight": "a", "bias": "o"},
        {"op": "relu", "in": [1], "left": 0.0},
        {"op": "dense", "in": [2], "weight": "b"},
    ]
    arrays = {"a": np.array([[1.0]], "<f4"), "o": np.array([1.0], "<f4"), "b": np.array([[0.0], [1.0]], "<f4")}
    return pack({"input": [1], "steps": steps}, arrays)


def splits(tree: list[float], leaves: int, beta: float = 0.0, dtype: str = "<i4", **others: np.ndarray) -> tuple:
    arrays = {"units": np.array([[0, 0]], "<i4"), "tree": np.array(tree, dtype), "slopes": np.zeros((leaves, 1)),
              "betas": np.full(leaves if len(tree) > 1 else 0, beta), **others}  # fmt: skip
    return {"by": "splits", "cases": [0], **{name: name for name in arrays}}, arrays


@pytest.mark.parametrize(
    ("tree", "leaves", "beta", "dtype"),
    [
        ([0, -1, -1], 2, 1e308, "<f8"),  # infinity less infinity is no bound
        ([0, -1, -1], 2, 1e308, "<i4"),
        ([0, -1, -1], 2, np.inf, "<i4"),
        ([0, -1, -1], 2, np.nan, "<i4"),
        ([-0.5], 0, 0.0, "<f8"),  # neither a leaf nor a split: nothing would be left to bound
        ([], 0, 0.0, "<i4"),
        ([0, -1, -1, -1], 3, 0.0, "<i4"),
        ([0, 0, -1, -1, -1], 3, 0.0, "<i4"),
        ([-1], 1, 0.0, "<i4"),
    ],
)
def test_trees_that_would_prove_anything(tree: list[float], leaves: int, beta: float, dtype: str) -> None:
    proof, arrays = splits(tree, leaves, beta, dtype)
    for exact, center in ((False, 1.0), (True, 1.0), (False, 3.0)):  # around 3 a multiplier's product is infinite
        with pytest.raises(Rejected):
            check(robust(two_layers(), [center], "1/2", proof, **arrays), two_layers(), exact)


@pytest.mark.parametrize("weight", [5e-324, 1e-310, 1e308, np.inf, np.nan, -1.0, 0.0])
def test_weights_too_small_or_large_to_count(weight: float) -> None:
    """The smallest weight makes every product 0: no bound of 0 comes of it."""
    network = pack({**IDENTITY}, {"w": np.array([[0.0], [0.3]], "<f4")})
    proof = {"by": "interval", "cases": [0], "weights": "weights"}
    with pytest.raises(Rejected):
        check(robust(network, [1.0], "1/2", proof, weights=np.array([[weight]])), network)


def test_a_tiny_network_is_not_taken_for_zero() -> None:
    """Products of weights that underflow in float64, one after the other."""
    steps = [{"op": "dense", "in": [i], "weight": "w"} for i in range(12)]
    network = pack({"input": [2], "steps": steps}, {"w": np.array([[1e-38, 0], [0, 1e-38]], "<f4")})
    with pytest.raises(Rejected):
        check(robust(network, [0.0, 1.0], "1/2", {"by": "crown", "cases": [0]}), network)


def conv(**changed: object) -> dict:
    return {"op": "conv", "in": [0], "weight": "w", "stride": [1, 1], "pads": [0] * 4, "dilation": [1, 1], **changed}


@pytest.mark.parametrize(
    "step",
    [
        {"op": "transpose", "in": [0], "order": [0, -1, -2]},
        {"op": "transpose", "in": [0], "order": [0, 0, 1]},
        {"op": "reshape", "in": [0], "shape": [-1]},
        {"op": "reshape", "in": [0], "shape": [4.0]},
        conv(stride=[-1, 1]), conv(stride=[0, 1]), conv(pads=[-1, 0, 0, 0]), conv(dilation=[-1, 1]), conv(groups=-1),
        conv(groups=1.0), conv(bias="wide"),
        {"op": "max", "in": [0], "kernel": [1, 1], "stride": [2, 2], "pads": [3, 3, 3, 3], "dilation": [1, 1]},
        {"op": "average", "in": [0], "kernel": [-1, 2], "stride": [1, 1], "pads": [0] * 4, "dilation": [1, 1]},
        {"op": "dense", "in": [0], "weight": "cube"},
        {"op": "dense", "in": [0], "weight": "matrix", "bias": "wide"},
        {"op": "dense", "in": [-1], "weight": "matrix"},
        {"op": "dense", "in": [1], "weight": "matrix"},
        {"op": "scale", "in": [0], "scale": "zero", "divide": True},
        {"op": "scale", "in": [0], "scale": "small", "divide": True},
        {"op": "scale", "in": [0], "scale": "wide"},
        {"op": "normalise", "in": [0], "weight": "one", "bias": "one", "mean": "one", "variance": "minus", "eps": 2.0},
        {"op": "normalise", "in": [0], "weight": "one", "bias": "one", "mean": "one", "variance": "zero", "eps": 0.0},
        {"op": "add", "in": [0], "signs": [2]}, {"op": "add", "in": [0, 0], "signs": [1]},
        {"op": "relu", "in": [0], "left": "1e-999999999"}, {"op": "relu", "in": [0], "left": -1.0},
        {"op": "relu", "in": [0], "left": float("nan")}, {"op": "curve", "in": [0], "name": "exp"},
        {"op": "relu", "in": [], "left": 0.0},
    ],
)  # fmt: skip
def test_steps_that_mean_nothing(step: dict) -> None:
    one = np.ones((1,), "<f4")
    arrays = {"w": np.ones((1, 1, 1, 1), "<f4"), "cube": np.ones((2, 2, 2), "<f4"), "matrix": np.ones((2, 2), "<f4"),
              "wide": np.ones((3, 1, 2, 2), "<f4"), "zero": 0 * one, "small": 1e-40 * one, "one": one,
              "minus": -one}  # fmt: skip
    network = pack({"input": [1, 2, 2], "steps": [step, {"op": "reshape", "in": [1], "shape": [4]}]}, arrays)
    with pytest.raises(Rejected):
        check(robust(network, np.zeros((1, 2, 2)).tolist(), "0", {"by": "interval", "cases": [0, 1, 2]}), network)


@pytest.mark.parametrize("eps", ["1e999999999", "1/0", "0.5", "nan", "-1", 0.5, None, "9" * 2000, ""])
def test_radii_that_are_no_fractions(eps: object) -> None:
    network = pack({**IDENTITY}, {"w": np.array([[0.0], [-1.0]], "<f4")})
    with pytest.raises(Rejected):
        check(robust(network, [1.0], eps, {"by": "interval", "cases": [0]}), network)  # type: ignore[arg-type]


@pytest.mark.parametrize("clip", [["-2", "-1"], ["1", "-1"], ["-1"], [], {"0": "1"}, ["nan", "1"], 1, ""])
def test_valid_inputs_that_leave_the_image_out(clip: object) -> None:
    """Nothing of the ball would be left, or a corner of the range that is not in it; x = 1 itself has another label."""
    network = pack({**IDENTITY}, {"w": np.array([[0.0], [1.0]], "<f4")})
    found = robust(network, [1.0], "1/10", {"by": "interval", "cases": [0]})
    header, arrays = unpack(found)
    header["region"]["clip"] = clip
    del header["arrays"]
    with pytest.raises(Rejected):
        check(pack(header, arrays), network)
    header["region"]["clip"], header["label"] = ["0", "1"], 1
    assert check(pack(header, arrays), network)[0] == "robust"


def raw(text: bytes, body: bytes = b"") -> bytes:
    return MAGIC + zlib.compress(len(text).to_bytes(4, "little") + text + body)


@pytest.mark.parametrize(
    "content",
    [
        b"", MAGIC, MAGIC + b"x", raw(b"[]"), raw(b"{}"), raw(b"[" * 100_000), raw(b'{"arrays": 5}'),
        raw(b'{"arrays": [["a", ">f8", [1]]]}', bytes(8)), raw(b'{"arrays": [["a", "|O", [1]]]}', bytes(8)),
        raw(b'{"arrays": [["a", "<f8", [-1]]]}', bytes(8)), raw(b'{"arrays": [["a", "<f8", [99999999999999999999]]]}'),
        raw(b'{"arrays": [["a", "<f8", [1]], ["a", "<f8", [1]]]}', bytes(16)), raw(b'{"arrays": []}', bytes(8)),
        raw(b'{"arrays": [["a", "<f8", 1]]}', bytes(8)), MAGIC + zlib.compress(b"\xff\xff\xff\xff{}"),
        raw(b'{"arrays": []}') + b"more", raw(b'{"arrays": []}')[:-3],
    ],
)  # fmt: skip
def test_files_that_are_none(content: bytes) -> None:
    network = pack({**IDENTITY}, {"w": np.array([[0.0], [-1.0]], "<f4")})
    good = robust(network, [1.0], "1/2", {"by": "interval", "cases": [0]})
    check(good, network)
    with pytest.raises(Rejected):
        check(content, network)
    with pytest.raises(Rejected):
        check(good, content)


def test_bytes_of_the_header_at_random() -> None:
    """Whatever stands there, it is rejected or it holds; and nothing else is ever raised."""
    rng, accepted = random.Random(3), 0
    network = pack({**IDENTITY}, {"w": np.array([[0.0], [1.0]], "<f4")})
    good = robust(network, [-4.0], "1/2", {"by": "crown", "cases": [0]}, spare=np.zeros(40))
    body = zlib.decompress(good[len(MAGIC) :])
    for _ in range(400):
        data = bytearray(body)
        for _ in range(rng.choice((1, 1, 2, 5))):
            data[rng.randrange(len(data))] = rng.randrange(256)
        changed = MAGIC + zlib.compress(bytes(data))
        try:
            check(changed, network)
        except Rejected:
            continue
        accepted += 1
        header, given = unpack(changed)
        top = float(given["center"][0]) + float(Fraction(header["region"]["eps"]))
        assert header["label"] == 1 or top <= 0
    assert 0 < accepted < 200


def test_a_counterexample_must_be_one_for_every_execution() -> None:
    """A sum that cancels: the point is a counterexample in some orders only."""
    net = nn.Linear(3, 2, bias=False).requires_grad_(False)
    net.weight.copy_(torch.tensor([[0.0, 0.0, 0.0], [2.0**24, 1.0, -(2.0**24)]]))
    claims, x = Claims.about(program_of(net, torch.ones(1, 3))), np.ones(3, "<f4")
    header = {"claim": "falsified", "network": claims.digest, "label": 0,
              "region": {"kind": "ball", "eps": "0", "clip": None}}  # fmt: skip
    assert check(pack({**header, "mode": "real"}, {"center": x, "witness": x}), claims.network)[0] == "falsified"
    with pytest.raises(Rejected, match="sure to hold"):
        check(pack({**header, "mode": "deployed"}, {"center": x, "witness": x}), claims.network)
    outside = np.nextafter(x, np.float32(2))
    with pytest.raises(Rejected, match="outside"):
        check(pack({**header, "mode": "real"}, {"center": x, "witness": outside}), claims.network)


MODULES = {"sigmoid": nn.Sigmoid(), "tanh": nn.Tanh(), "softplus": nn.Softplus(), "silu": nn.SiLU(), "gelu": nn.GELU(),
           "elu": nn.ELU(), "relu6": nn.ReLU6(), "hardsigmoid": nn.Hardsigmoid()}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_curves_hold_what_is_sampled(name: str) -> None:
    torch.manual_seed(0)
    act = MODULES[name]
    net = nn.Sequential(nn.Linear(2, 6), act, nn.Linear(6, 5), act, nn.Linear(5, 3)).requires_grad_(False)
    for layer in net:
        if isinstance(layer, nn.Linear):
            layer.weight.normal_(0, 2)
    generator = torch.Generator().manual_seed(2)
    for eps, width in ((0.0, 5e-3), (0.02, 2.0), (0.3, 30.0)):
        center = torch.rand(1, 2, generator=generator)
        flat = CheckedNetwork(Claims.about(program_of(net, center)).network, Numbers(exact=False, deployed=True))
        box = (center - eps).double().numpy(), (center + eps).double().numpy()
        z = net(center + eps * (2 * torch.rand(3000, 2, generator=generator) - 1)).double().numpy()
        for linear in (False, True):
            flat.over((box[0], box[1].copy()), linear)
            rows = np.concatenate([np.eye(3), -np.eye(3)])
            bounds = flat.back(len(flat.steps), rows)
            assert (flat.low[-1] <= z).all() and (z <= flat.high[-1]).all() and (z @ rows.T <= bounds).all()
        assert (bounds - (z @ rows.T).max(0)).max() < width
    exact = CheckedNetwork(Claims.about(program_of(net, center)).network, Numbers(exact=True, deployed=False))
    exact.over(tuple(np.array([[Fraction(v) for v in end[0]]], dtype=object) for end in box), linear=False)
    assert (exact.low[-1] <= z.min(0)).all() and (z.max(0) <= exact.high[-1]).all()


def test_a_softplus_is_the_identity_above_its_threshold_over_the_reals_too() -> None:
    net = nn.Sequential(nn.Linear(1, 1), nn.Softplus(), nn.Linear(1, 2)).requires_grad_(False)
    for layer in (net[0], net[2]):
        layer.weight.fill_(1)
        layer.bias.zero_()
    flat = CheckedNetwork(
        Claims.about(program_of(net, torch.zeros(1, 1))).network, Numbers(exact=False, deployed=False)
    )
    for x in (19.9, 20.0, 20.01, 25.0):
        flat.over((np.array([[x]]), np.array([[x]])), linear=False)
        computed = float(net.double()(torch.tensor([[x]], dtype=torch.float64))[0, 0])
        assert (flat.low[-1] <= computed).all() and (computed <= flat.high[-1]).all()


@pytest.mark.parametrize("name", CURVES)
def test_no_curve_bends_more_than_it_says(name: str) -> None:
    curve, bend = CURVES[name]
    x, h = np.linspace(-12, 12, 200_001), 1e-4
    second = (curve(x + h) - 2 * curve(x) + curve(x - h)) / h**2
    assert bend / 1.5 < np.abs(second).max() <= bend * (1 + 1e-4) + 1e-5

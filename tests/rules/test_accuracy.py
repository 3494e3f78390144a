"""The error stated for each elementwise function holds of PyTorch's implementations, vectorised and not."""

from __future__ import annotations

import math
from pathlib import Path

import mpmath as mp
import pytest
import torch
from torch import Tensor

from surebound.interval import Interval
from surebound.numerics import Soundness
from surebound.rules import Context, all_rules, find
from tests.rules.reference import REFERENCES

_RANGES = {
    "log": (0.0, 1e30), "log2": (0.0, 1e30), "log10": (0.0, 1e30), "sqrt": (0.0, 1e30), "rsqrt": (1e-37, 1e30),
    "log1p": (-0.9999, 1e20), "sin": (-1e6, 1e6), "cos": (-1e6, 1e6), "atan": (-1e8, 1e8), "asinh": (-1e10, 1e10),
    "reciprocal": (1e-30, 1e30), "square": (-1e15, 1e15), "exp2": (-150.0, 120.0), "sinh": (-80.0, 80.0),
    "cosh": (-80.0, 80.0),
}  # fmt: skip


def _sample(low: float, high: float, dtype: torch.dtype) -> Tensor:
    """Spread evenly, over all magnitudes down to subnormal ones, near 1 and near multiples of pi / 2."""
    g = torch.Generator().manual_seed(7)

    def uniform(n: int, a: float, b: float) -> Tensor:
        return torch.rand(n, generator=g, dtype=torch.float64) * (b - a) + a

    smallest = math.log(1e-42 if dtype == torch.float32 else 1e-310)
    logs = torch.exp(uniform(60, smallest, math.log(max(abs(low), abs(high)))))
    near_one = 1 + uniform(10, -1e-4, 1e-4)
    multiples = torch.randint(-20, 20, (15,), generator=g) * (math.pi / 2)
    x = torch.cat([uniform(40, low, high), logs, -logs, uniform(40, -6, 6), near_one, multiples])
    return x[(x >= low) & (x <= high)].to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("key", sorted(REFERENCES))
def test_error_is_as_stated(key: str, dtype: torch.dtype) -> None:
    name = key.removesuffix("tanh") if key.endswith("defaulttanh") else key
    rule = find(name)
    assert rule is not None and rule.activation is not None
    facts = rule.activation.bind(**({"approximate": "tanh"} if name != key else {}))
    short = name.split(".")[1]
    x = _sample(*_RANGES.get(short, (-120.0, 85.0)), dtype)
    info = torch.finfo(dtype)
    vectorised = facts.fn(x)
    single = torch.cat([facts.fn(value.reshape(1)) for value in x])
    with mp.workprec(160):
        for point, *found in zip(x.tolist(), vectorised.tolist(), single.tolist(), strict=True):
            true = REFERENCES[key](mp.mpf(point))
            allowed = facts.ulps * info.eps * abs(true) + facts.absolute * info.eps + facts.underflow * info.tiny
            if abs(true) > info.max:
                continue
            if facts.steep and abs(point) < info.tiny:
                continue  # may be flushed to zero; the rule allows for that
            for value in found:
                assert abs(mp.mpf(value) - true) <= allowed, f"{key} at {point!r}: {value!r}"
                assert facts.range[0] <= value <= facts.range[1]


def test_every_rounded_function_is_held_to_its_error() -> None:
    """A new elementwise function needs a reference, or is exact, or one rounding of a product."""
    simple = {
        "aten.leaky_relu.default",
        "aten.prelu.default",
        "aten.threshold.default",
        "aten.pow.Tensor_Scalar",
    }
    for rule in all_rules():
        facts = rule.activation
        if facts is None or rule.op in simple or rule.op in REFERENCES:
            continue
        assert facts.specialise is not None or (facts.ulps == 0 and facts.absolute == 0), rule.op


def test_the_documented_table_is_the_code() -> None:
    text = (Path(__file__).parents[2] / "docs" / "soundness.md").read_text(encoding="utf-8")
    rows = text.partition("| function | ulps |")[2].partition("\n\n")[0].splitlines()[2:]
    documented = {}
    for row in rows:
        name, *numbers = (cell.strip() for cell in row.strip("| ").split("|")[:4])
        documented[name] = [float(number) for number in numbers]
    keys = {key.split(".")[1] + (" (tanh)" if key.endswith("defaulttanh") else ""): key for key in REFERENCES}
    assert set(documented) == set(keys) - {"abs"}
    for name, numbers in documented.items():
        rule = find(keys[name].removesuffix("tanh") if name.endswith("(tanh)") else keys[name])
        assert rule is not None and rule.activation is not None
        facts = rule.activation.bind(**({"approximate": "tanh"} if name.endswith("(tanh)") else {}))
        assert numbers == pytest.approx([facts.ulps, facts.absolute, facts.underflow], rel=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("exponent", [2, 3, 5, -1, -2, 0.5, 0.75, -2.5, 1.5])
def test_powers(exponent: float, dtype: torch.dtype) -> None:
    rule = find("aten.pow.Tensor_Scalar")
    assert rule is not None and rule.activation is not None
    facts, info = rule.activation.bind(exponent), torch.finfo(dtype)
    x = _sample(1e-5, 1e5, dtype)
    with mp.workprec(160):
        for point, value in zip(x.tolist(), facts.fn(x).tolist(), strict=True):
            true = mp.mpf(point) ** mp.mpf(exponent)
            assert abs(mp.mpf(value) - true) <= facts.ulps * info.eps * true + facts.underflow * info.tiny


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_softmax_as_the_network_computes_it(dtype: torch.dtype) -> None:
    """PyTorch's softmax and log_softmax, and the true ones, lie within the rule's bounds of a point."""
    g = torch.Generator().manual_seed(3)
    for scale in (1.0, 30.0, 300.0):
        x = (torch.randn(4, 10, generator=g, dtype=torch.float64) * scale).to(dtype)
        with mp.workprec(200):
            rows = [[mp.mpf(v) for v in row] for row in x.tolist()]
            sums = [mp.log(sum(mp.exp(v) for v in row)) for row in rows]
            logs = [[v - s for v in row] for row, s in zip(rows, sums, strict=True)]
            for op, true in (("log_softmax", logs), ("softmax", [[mp.exp(v) for v in row] for row in logs])):
                rule = find(f"aten.{op}.int")
                assert rule is not None
                computed = getattr(torch, op)(x, 1)
                for mode in (Soundness.REAL, Soundness.DEPLOYED):
                    found = rule.interval(Context(mode), Interval(x, x), 1)
                    for i in range(4):
                        for j in range(10):
                            low, high = float(found.lower[i, j]), float(found.upper[i, j])
                            assert low <= true[i][j] <= high
                            if mode is Soundness.DEPLOYED:
                                assert low <= float(computed[i, j]) <= high

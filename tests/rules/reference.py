"""Elementwise functions in arbitrary precision: what the implementations are held to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath as mp

Reference = Callable[[Any], Any]


def _softplus(x: Any) -> Any:
    return mp.log1p(mp.exp(x))


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + mp.exp(-x))


def _gelu_tanh(x: Any) -> Any:
    return x / 2 * (1 + mp.tanh(mp.sqrt(2 / mp.pi) * (x + mp.mpf("0.044715") * x**3)))


def _elu(x: Any) -> Any:
    return x if x > 0 else mp.expm1(x)


def _selu(x: Any) -> Any:
    scale, alpha = mp.mpf("1.0507009873554804934193349852946"), mp.mpf("1.6732632423543772848170429916717")
    return scale * (x if x > 0 else alpha * mp.expm1(x))


def _ramp(x: Any) -> Any:
    return min(max(x + 3, 0), 6) / mp.mpf(6)


REFERENCES: dict[str, Reference] = {
    "aten.sigmoid.default": _sigmoid,
    "aten.tanh.default": mp.tanh,
    "aten.softplus.default": lambda x: x if x > 20 else _softplus(x),
    "aten.log_sigmoid.default": lambda x: -_softplus(-x),
    "aten.elu.default": _elu,
    "aten.celu.default": _elu,
    "aten.selu.default": _selu,
    "aten.gelu.default": lambda x: x * mp.erfc(-x / mp.sqrt(2)) / 2,
    "aten.gelu.defaulttanh": _gelu_tanh,
    "aten.silu.default": lambda x: x * _sigmoid(x),
    "aten.mish.default": lambda x: x * mp.tanh(_softplus(x)),
    "aten.hardsigmoid.default": _ramp,
    "aten.hardswish.default": lambda x: x * _ramp(x),
    "aten.exp.default": mp.exp,
    "aten.exp2.default": lambda x: mp.mpf(2) ** x,
    "aten.expm1.default": mp.expm1,
    "aten.log.default": mp.log,
    "aten.log1p.default": mp.log1p,
    "aten.log2.default": lambda x: mp.log(x, 2),
    "aten.log10.default": mp.log10,
    "aten.sqrt.default": mp.sqrt,
    "aten.rsqrt.default": lambda x: 1 / mp.sqrt(x),
    "aten.reciprocal.default": lambda x: 1 / x,
    "aten.square.default": lambda x: x * x,
    "aten.abs.default": abs,
    "aten.sin.default": mp.sin,
    "aten.cos.default": mp.cos,
    "aten.sinh.default": mp.sinh,
    "aten.cosh.default": mp.cosh,
    "aten.asinh.default": mp.asinh,
    "aten.atan.default": mp.atan,
    "aten.erf.default": mp.erf,
    "aten.erfc.default": mp.erfc,
}

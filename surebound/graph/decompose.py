"""Operators that are written as others while tracing: normalisation by own statistics, attention, recurrent layers.

A decomposition computes the same function over the reals. What an execution in one kernel rounds otherwise is covered
by ``about(y, size, roundings)``: y up to so many roundings of numbers as large as ``size`` (docs/soundness.md, "Fused
operators").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from surebound.graph.quantised import quantised

Decomposition = Callable[..., Any]

#: The name of ``about`` in a Program.
ABOUT = "surebound.about.default"


@torch.library.custom_op("surebound::about", mutates_args=())
def about(y: Tensor, size: Tensor, roundings: float) -> Tensor:
    """Return y: ``size`` and ``roundings`` say how far an execution may be from it."""
    return y.clone()


@about.register_fake
def _shape_of_about(y: Tensor, size: Tensor, roundings: float) -> Tensor:
    return torch.empty_like(y)


def as_traced(y: Tensor, size: Tensor, roundings: float) -> Tensor:
    """Compute ``about`` in a program, with gradients."""
    return y


def table() -> dict[Any, Decomposition]:
    """Return the decompositions by operator, as torch.export takes them."""
    return {**_table(), **quantised(about)}


@cache
def _table() -> dict[Any, Decomposition]:
    aten = torch.ops.aten
    return {
        aten.layer_norm.default: _layer_norm,
        aten.group_norm.default: _group_norm,
        aten.instance_norm.default: _instance_norm,
        aten.rms_norm.default: _rms_norm,
        aten.scaled_dot_product_attention.default: _attention,
        aten.lstm.input: lambda x, hx, *rest: _unrolled(_lstm_cell, x, hx, *rest),
        aten.gru.input: _layers(_gru_cell),
        aten.rnn_tanh.input: _layers(_plain_cell(torch.tanh)),
        aten.rnn_relu.input: _layers(_plain_cell(torch.relu)),
        aten.lstm_cell.default: lambda x, hx, *weights: _lstm_cell(*weights)(x, *hx),
        aten.gru_cell.default: _one_step(_gru_cell),
        aten.rnn_tanh_cell.default: _one_step(_plain_cell(torch.tanh)),
        aten.rnn_relu_cell.default: _one_step(_plain_cell(torch.relu)),
    }


def _standardised(x: Tensor, dims: list[int], eps: float) -> tuple[Tensor, Tensor]:
    """Return (x - mean) / sqrt(variance + eps) over dims, and the size of what an execution may add up to it.

    Sums in any order, Welford's recurrence and E x^2 - (E x)^2 differ from the exact statistics by at most 4 n + 16
    roundings of the largest |x|, and of its square.
    """
    count = math.prod(int(x.shape[d]) for d in dims)
    largest = x.abs().amax(dims, True)
    mean = about(x.mean(dims, True), largest, 4.0 * count + 16)
    apart = x - mean
    variance = torch.relu(about((apart * apart).mean(dims, True), largest * largest, 4.0 * count + 16))
    scale = torch.rsqrt(variance + eps)
    return apart * scale, largest * scale * 2.0


def _scaled(y: Tensor, size: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Return y weight + bias, up to roundings of size |weight| + |bias|."""
    if weight is not None:
        y, size = y * weight, size * weight.abs()
    if bias is not None:
        y, size = y + bias, size + bias.abs()
    made: Tensor = about(y, size, 16.0)
    return made


def _layer_norm(
    x: Tensor,
    shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    return _scaled(*_standardised(x, list(range(-len(shape), 0)), eps), weight, bias)


def _per_channel(value: Tensor | None, x: Tensor) -> Tensor | None:
    return None if value is None else value.reshape(-1, *([1] * (x.dim() - 2)))


def _group_norm(
    x: Tensor,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:
    apart: Tensor = torch.unflatten(x, 1, (groups, -1))
    dims = list(range(2, apart.dim()))
    y, size = _standardised(apart, dims, eps)
    return _scaled(y.flatten(1, 2), size.expand_as(y).flatten(1, 2), _per_channel(weight, x), _per_channel(bias, x))


def _instance_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Any:
    if not use_input_stats:
        return NotImplemented
    made = _standardised(x, list(range(2, x.dim())), eps)
    return _scaled(*made, _per_channel(weight, x), _per_channel(bias, x))


def _rms_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    square = (x * x).mean(list(range(-len(shape), 0)), True)
    y = x * torch.rsqrt(square + eps)
    y = y if weight is None else y * weight
    made: Tensor = about(y, y, 16.0)
    return made


def masked_scores(scores: Tensor, mask: Tensor, size: Tensor, width: int) -> Tensor:
    """Return scores where a boolean mask holds, or their sum with a mask of numbers; else -inf.

    -inf is no number to bound a sum with. An execution may start the sum of ``width`` products, ``size`` large, from
    the mask's number.
    """
    if mask.dtype == torch.bool:
        return scores.masked_fill(mask.logical_not(), -math.inf)
    gone = mask == -math.inf
    added = mask.masked_fill(gone, 0.0)
    made: Tensor = about(scores + added, size + added.abs(), width + 16.0)
    return made.masked_fill(gone, -math.inf)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Write attention as softmax(q k^T scale + mask) v, row by row where it is causal.

    An execution may scale q or k first, divide by the sum of exponentials last, and rescale partial sums.
    """
    if dropout_p > 0.0:
        return NotImplemented
    if enable_gqa:  # groups of heads share keys and values
        together = int(query.shape[-3]) // int(key.shape[-3])
        key, value = (v.repeat_interleave(together, -3) for v in (key, value))
    scale = 1.0 / math.sqrt(int(query.shape[-1])) if scale is None else scale
    size = query.abs().sum(-1, True) * (key.abs().amax((-2, -1), True) * abs(scale))
    scores = about(torch.matmul(query, key.transpose(-2, -1)) * scale, size, 16.0)
    if attn_mask is not None:
        scores = masked_scores(scores, attn_mask, size, int(query.shape[-1]))
    largest = value.abs().amax(-2, True)
    roundings = 128.0 + 8 * int(key.shape[-2])
    if not is_causal:
        return about(torch.matmul(torch.softmax(scores, -1), value), largest, roundings)
    rows = [
        torch.matmul(torch.softmax(scores[..., i : i + 1, : i + 1], -1), value[..., : i + 1, :])
        for i in range(int(query.shape[-2]))
    ]
    return about(torch.cat(rows, -2), largest, roundings)


Step = Callable[..., tuple[Tensor, ...]]  # (x, *state) -> state; its first part is the output
Cell = Callable[..., Step]  # (w_x, w_h, b_x, b_h) -> Step: what weights have to be joined is joined once


def _joint(w_x: Tensor, w_h: Tensor, *biases: Tensor | None) -> Callable[[Tensor, Tensor], Tensor]:
    """Return W_x x + b_x + W_h h + b_h as one product, so that the sum may be taken in any order."""
    columns = [bias.unsqueeze(1) for bias in biases if bias is not None]
    weight = torch.cat([w_x, w_h, *columns], 1)

    def product(x: Tensor, h: Tensor) -> Tensor:
        ones = [torch.ones_like(x[:, :1])] * len(columns)
        return torch.nn.functional.linear(torch.cat([x, h, *ones], 1), weight)

    return product


def _lstm_cell(*weights: Tensor) -> Step:
    gates = _joint(*weights)

    def step(x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        enter, forget, new, leave = gates(x, h).chunk(4, 1)
        c = torch.sigmoid(forget) * c + torch.sigmoid(enter) * torch.tanh(new)
        return torch.sigmoid(leave) * torch.tanh(c), c

    return step


def _gru_cell(w_x: Tensor, w_h: Tensor, b_x: Tensor | None = None, b_h: Tensor | None = None) -> Step:
    """Return new + update (h - new); (1 - update) new + update h differs by few roundings of |new| + |h|."""
    parts = [2 * int(w_h.shape[1]), int(w_h.shape[1])]
    (gates_x, new_x), (gates_h, new_h) = torch.split(w_x, parts), torch.split(w_h, parts)
    of_x, of_h = ((None, None) if bias is None else torch.split(bias, parts) for bias in (b_x, b_h))
    gates, linear = _joint(gates_x, gates_h, of_x[0], of_h[0]), torch.nn.functional.linear

    def step(x: Tensor, h: Tensor) -> tuple[Tensor]:
        reset, update = torch.sigmoid(gates(x, h)).chunk(2, 1)
        new = torch.tanh(linear(x, new_x, of_x[1]) + reset * linear(h, new_h, of_h[1]))
        return (about(new + update * (h - new), new.abs() + h.abs(), 16.0),)

    return step


def _plain_cell(function: Callable[[Tensor], Tensor]) -> Cell:
    def cell(*weights: Tensor) -> Step:
        product = _joint(*weights)
        return lambda x, h: (function(product(x, h)),)

    return cell


def _one_step(cell: Cell) -> Decomposition:
    """Return the decomposition of ATen's cell with one state."""
    return lambda x, h, *weights: cell(*weights)(x, h)[0]


def _layers(cell: Cell) -> Decomposition:
    """Return the decomposition of ATen's recurrent layers with one state: a cell, unrolled over a sequence."""
    return lambda x, h, params, *settings: _unrolled(cell, x, (h,), params, *settings)


def _unrolled(
    cell: Cell,
    x: Tensor,
    state: Sequence[Tensor],
    params: Sequence[Tensor],
    biases: bool,
    count: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    ways, each = 1 + bool(bidirectional), 4 if biases else 2
    if len(params) != count * ways * each:  # projections
        return NotImplemented
    inputs = list(x.unbind(1 if batch_first else 0))
    last: list[tuple[Tensor, ...]] = []
    for layer in range(count):
        outputs = []
        for way in range(ways):
            at = layer * ways + way
            step, now = cell(*params[at * each : (at + 1) * each]), tuple(part[at] for part in state)
            found = []
            for value in reversed(inputs) if way else inputs:
                now = step(value, *now)
                found.append(now[0])
            outputs.append(found[::-1] if way else found)
            last.append(now)
        inputs = [torch.cat(both, 1) for both in zip(*outputs, strict=True)] if ways > 1 else outputs[0]
    return torch.stack(inputs, 1 if batch_first else 0), *(torch.stack(part) for part in zip(*last, strict=True))

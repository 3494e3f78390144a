"""Training's fast column: clean value, centre and radius through a block of layers in few calls, without dead channels.

A block is a weighted layer, BatchNorm and ReLU, each of them optional, with the gradient written out. Images have
NHWC order. A channel (before a fully connected layer: a unit) that is dead for the whole batch, its
upper bound <= 0, is exactly 0 after the ReLU and gets exactly no gradient: leaving it out changes neither loss nor
gradients. So a block hands on only live channels, the next product reads only those, and the backward products work on
those live at both ends. Which channels are live is counted in every batch, not timed: a resumed run does the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from surebound.kernels import balance, blocks
from surebound.rules.layouts import (
    WeightedLayer,
    channels_last,
    flattened,
    from_rows,
    reorder,
    spread,
    to_rows,
    unflattened,
)
from surebound.rules.scaling import Norm, Scaling

#: Dead channels are left out when at most this share is live; with more, gathering weights costs what it saves.
PAYS_BELOW = 0.75


@dataclass
class Block:
    """A block's settings, and what was found out while running it."""

    layer: WeightedLayer | None = None
    norm: Norm | None = None
    relu: bool = False
    flat: bool = False  # hand on (B, units) after the ReLU
    keep_clean: bool = True  # hand on the clean values, too, not only use them for statistics
    record: bool = False  # moments of the bounds that enter the ReLU, too (kernels/balance.py)
    on_in: Tensor | None = None  # the channels (axis 1 of the weight) that the value holds; None: all
    order_in: tuple[int, int] | None = None  # (positions, channels): all units, with the channel innermost
    # Found: the channels (flat: units, numbered as flatten does) that are handed on, the units that enter the ReLU,
    # and the statistics used.
    on: Tensor | None = None
    units: int = 0
    order: tuple[int, int] | None = None
    scaling: Scaling | None = None


def run(
    block: Block,
    both: Tensor,
    radius: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run a block on both (B or 2B, C, ...), clean values over centres, and radius (B, C, ...); return them after it.

    Also the moments (8,) that were to be recorded; (0,) if none.
    """
    result: tuple[Tensor, Tensor, Tensor] = _apply(_Run, both, radius, weight, bias, gamma, beta, block)
    return result


def _apply(function: Any, *args: Any) -> Any:
    """Call ``function.apply``, which PyTorch leaves untyped."""
    return function.apply(*args)


class _Run(torch.autograd.Function):
    """The block. P stands for the parts of a stacked tensor (clean, centres), R for rows = examples x positions."""

    @staticmethod
    def forward(
        ctx: Any,
        both: Tensor,
        radius: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        gamma: Tensor | None,
        beta: Tensor | None,
        block: Block,
    ) -> tuple[Tensor, Tensor, Tensor]:
        z, z_radius = both, radius = channels_last(both), channels_last(radius)
        used = absolute = None
        if block.layer is not None and weight is not None:
            if block.order_in is not None and not _moves_weight(weight, both):
                both, radius = reorder(both, *block.order_in), reorder(radius, *block.order_in)
            used = _columns_of(weight, block, both)
            absolute = channels_last(used.abs())
            z = block.layer.product(both, used, bias)
            z_radius = block.layer.product(radius, absolute, None)
        examples, channels, *_ = z_radius.shape
        rows, rows_radius = to_rows(z), to_rows(z_radius)  # (P R, C), (R, C)
        if block.norm is not None:
            block.scaling = Scaling.of(block.norm, rows[: rows_radius.shape[0]], gamma, beta)
        sums, block.units = radius.new_empty(0, dtype=torch.float64), rows_radius.numel()
        if block.record:
            sums = balance.moments(rows[-rows_radius.shape[0] :], rows_radius, *_scale(block))
        kept = rows if block.keep_clean else rows[-rows_radius.shape[0] :]
        out, out_radius, mask, columns = _activate(block, kept, rows_radius, examples)
        ctx.set_materialize_grads(False)
        ctx.block, ctx.columns, ctx.channels, ctx.size = block, columns, channels, z_radius.shape[2:]
        ctx.has_bias, ctx.inputs = bias is not None, None if weight is None else weight.shape[1]
        ctx.moved_weight = weight is not None and _moves_weight(weight, both)
        ctx.affine = gamma is not None, beta is not None
        # A large weight's copy is made again in the backward pass: it would take as much memory as the activations.
        ctx.copied = used is not None and _is_copy(used, weight) and 4 * used.numel() > both.numel()
        of_layer = (None, None, None) if used is None else (both, radius, weight if ctx.copied else used)
        of_norm = (rows, rows_radius) if block.norm is not None or block.record else (None, None)
        ctx.save_for_backward(*of_layer, *of_norm, mask)
        if not block.flat:
            stacked = examples * (out.shape[0] // out_radius.shape[0])
            out, out_radius = from_rows(out, stacked, ctx.size), from_rows(out_radius, examples, ctx.size)
        ctx.shapes = out.shape, out_radius.shape
        return out, out_radius, sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g_both: Tensor | None, g_radius: Tensor | None, g_sums: Tensor | None) -> Any:
        block: Block = ctx.block
        both, radius, used, rows, rows_radius, mask = ctx.saved_tensors
        some = next((v for v in (g_both, g_radius, g_sums) if v is not None), None)
        if some is None:  # nothing depends on it
            return (None,) * 7
        if g_both is None or g_radius is None:
            like = rows if some is g_sums else some
            g_both = like.new_zeros(ctx.shapes[0]) if g_both is None else g_both
            g_radius = like.new_zeros(ctx.shapes[1]) if g_radius is None else g_radius
        examples, on, channels = g_radius.shape[0], ctx.columns, ctx.channels
        g, gr = to_rows(g_both), to_rows(g_radius)
        if g_sums is not None and on is not None:  # dead channels have a gradient, too
            g, gr = blocks.relu_backward(g, gr, mask, on, channels * (ctx.size.numel() if block.flat else 1))
            on = None
        elif block.flat and on is not None:
            on, to = unflattened(on, channels)
            g, gr = blocks.relu_backward(g, gr, mask, to, on.numel() * ctx.size.numel())
        elif mask is not None:
            g, gr = blocks.relu_backward(g, gr, mask)
        if block.flat:
            alive = channels if on is None else on.numel()
            g, gr = g.view(-1, alive), gr.view(-1, alive)
        if g_sums is not None:
            centers = rows[-rows_radius.shape[0] :]
            balance.add_gradient(centers, rows_radius, g[-rows_radius.shape[0] :], gr, g_sums, *_scale(block))
        g_gamma = g_beta = None
        if block.scaling is not None:
            g, gr, g_gamma, g_beta = block.scaling.backward(g, gr, rows, rows_radius, on)
            g_gamma = spread(g_gamma, 0, on, channels) if ctx.affine[0] else None
            g_beta = spread(g_beta, 0, on, channels) if ctx.affine[1] else None
        stacked = examples * (g.shape[0] // gr.shape[0])
        if used is None or block.layer is None:
            gx = from_rows(spread(g, 1, on, channels), stacked, ctx.size)
            gx_radius = from_rows(spread(gr, 1, on, channels), examples, ctx.size)
            return gx, gx_radius, None, None, g_gamma, g_beta, None
        g_bias = spread(g.sum(0), 0, on, channels) if ctx.has_bias else None
        if ctx.copied:
            used = _columns_of(used, block, both)
        if on is not None:
            used = used.index_select(0, on)
        need, need_radius, *_ = ctx.needs_input_grad
        below_radius, at = None, from_rows(gr, examples, ctx.size)
        if need_radius:  # |W| is gone before the gradient of the weight needs as much again
            below_radius = block.layer.input_gradient(at, radius, channels_last(used.abs()))
        _, ga = block.layer.backward(at, radius, used, False)
        below, gw = block.layer.backward(from_rows(g, stacked, ctx.size), both, used, need)
        gw = spread(blocks.add_signed(gw, ga, used), 1, block.on_in, ctx.inputs)
        if block.order_in is not None and ctx.moved_weight:
            gw = reorder(gw, *block.order_in)
        elif block.order_in is not None:
            back = block.order_in[::-1]
            below = None if below is None else reorder(below, *back)
            below_radius = None if below_radius is None else reorder(below_radius, *back)
        return below, below_radius, spread(gw, 0, on, channels), g_bias, g_gamma, g_beta, None


def _is_copy(used: Tensor, weight: Tensor | None) -> bool:
    """Does a weight lie in other memory than the parameter itself?"""
    return weight is None or used.data_ptr() != weight.data_ptr()


def _scale(block: Block) -> tuple[Tensor | None, Tensor | None]:
    """Return the factor of each channel before the ReLU and what is added to it, (C,) each or None."""
    return (None, None) if block.scaling is None else (block.scaling.scale, block.scaling.shift)


def _moves_weight(weight: Tensor, both: Tensor) -> bool:
    """Is it cheaper to bring a matrix into the order of the units than to bring the units into its own?"""
    return weight.shape[0] < 1.5 * both.shape[0]


def _columns_of(weight: Tensor, block: Block, both: Tensor) -> Tensor:
    """Return the weight for the channels that a value holds, in their order, laid out for the product."""
    if block.on_in is not None:
        weight = weight.index_select(1, block.on_in)
    elif block.order_in is not None and _moves_weight(weight, both):
        weight = reorder(weight, *block.order_in[::-1])
    return channels_last(weight)


def _activate(
    block: Block, rows: Tensor, radius: Tensor, examples: int
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Scale rows (P R, C) and apply the ReLU: return both, radius, its mask, and the live columns (None: all)."""
    if not block.relu:
        scaled = (rows, radius) if block.scaling is None else block.scaling.apply(rows, radius)
        return *scaled, None, None
    channels, positions = rows.shape[1], radius.shape[0] // examples
    scale, shift = _scale(block)
    if block.flat:
        rows, radius = rows.view(-1, positions * channels), radius.view(examples, -1)
        scale = None if scale is None else scale.repeat(positions)
        shift = None if shift is None else shift.repeat(positions)
    on = blocks.columns_on(rows, radius, scale, shift, int(PAYS_BELOW * rows.shape[1]))
    if on is not None:
        on = on.nonzero().squeeze(1)
        if on.numel() == 0:  # a network that is dead altogether hands on one column of zeros
            on = torch.zeros(1, dtype=torch.long, device=rows.device)
    out, out_radius, mask = blocks.relu(
        rows,
        radius,
        scale,
        shift,
        on,
        owned=block.layer is not None and block.norm is None and not block.record,
    )
    if block.flat and on is None:
        block.order = positions, channels
    else:
        block.on = flattened(on, channels, positions) if block.flat and on is not None else on
    return out, out_radius, mask, on

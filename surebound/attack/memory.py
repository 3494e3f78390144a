"""How many rows fit into a given amount of memory, measured on the network itself."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from surebound.attack.network import AttackedNetwork, Model
from surebound.errors import InputError

DEFAULT_MEMORY = 256 * 2**20
"""Bytes that the rows in flight may take when nothing else is said."""

#: Tensors of the input's size that a row keeps: iterate, box, worst iterate, gradient, two moments,
#: temporaries.
_INPUT_COPIES = 12

#: Larger batches are not faster on a CPU (the caches are full); an accelerator wants more.
_MOST_ROWS = {"cpu": 256}
_MOST_ROWS_ELSEWHERE = 8192


def rows_within(model: Model, example: Tensor, memory: int) -> int:
    """Count the rows whose forward and backward pass fit into ``memory`` bytes; at least one. ``example`` is (1, ...).

    Counted once on a single input, from what autograd keeps for the backward pass: the same number on every
    machine, whatever else is running there.

    >>> rows_within(nn.Linear(4, 2), torch.zeros(1, 4), memory=2000)
    8
    """
    if isinstance(memory, bool) or not isinstance(memory, int) or memory < 1:
        raise InputError(f"memory={memory!r} bytes; give a positive integer, e.g. memory=256 * 2**20")
    fixed = {p.untyped_storage().data_ptr() for p in _constants(model)}
    kept: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in fixed:
            kept[storage.data_ptr()] = storage.nbytes()
        held.append(tensor)  # alive until the end, or a reused address would be counted once
        return tensor

    held: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        AttackedNetwork(model).ascent(example, lambda logits: logits.max(1).values)
    sizes = list(kept.values()) or [0]
    # While one layer is differentiated, its two gradients are there as well.
    per_row = sum(sizes) + 2 * max(sizes) + _INPUT_COPIES * example.numel() * example.element_size()
    most = _MOST_ROWS.get(example.device.type, _MOST_ROWS_ELSEWHERE)
    return max(1, min(most, memory // per_row))


def _constants(model: Model) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()] if isinstance(model, nn.Module) else []

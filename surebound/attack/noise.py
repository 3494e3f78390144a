"""Random numbers by counter: a pure function of the seed, the example, the trial and the step.

No generator is advanced, so neither the chunk size nor the examples that have dropped out change what a row
draws. The mixing function is the finaliser of SplitMix64 (Steele, Lea and Flood, *Fast Splittable
Pseudorandom Number Generators*, OOPSLA 2014).
"""

from __future__ import annotations

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_BITS_PER_WORD = 32


def row_keys(seed: int, *parts: Tensor | int) -> Tensor:
    """Make one 64-bit key per row from the seed and whatever tells the rows apart: (R,).

    >>> row_keys(0, torch.arange(2)).unique().numel(), row_keys(0, torch.arange(2), 1).unique().numel()
    (2, 2)
    """
    key = _mix(torch.tensor([_signed(seed)]))
    for part in parts:
        part = part if isinstance(part, Tensor) else torch.tensor([part])
        # The constant keeps 0, a fixed point of the mixing, from leaving the key as it was.
        key = _mix(key.to(part.device) + _signed(_GOLDEN) ^ _mix(part + _signed(_GOLDEN)))
    return key


def uniform(keys: Tensor, count: int) -> Tensor:
    """Draw numbers in [0, 1), multiples of 2^-24: (R, count) float32.

    >>> draw = uniform(row_keys(0, torch.arange(100)), 100)
    >>> bool((draw >= 0).all() and (draw < 1).all()), round(float(draw.mean()), 2)
    (True, 0.5)
    """
    return _shift(_words(keys, count), 40).float() * 2.0**-24


def signs(keys: Tensor, count: int) -> Tensor:
    """Draw fair -1 or +1: (R, count) float32; one word gives 32 of them."""
    words = _shift(_words(keys, -(-count // _BITS_PER_WORD)), 64 - _BITS_PER_WORD)
    bits = words.unsqueeze(-1) >> torch.arange(_BITS_PER_WORD, device=keys.device)
    return (bits & 1).flatten(1)[:, :count].float().mul_(2).sub_(1)


def _words(keys: Tensor, count: int) -> Tensor:
    """Return word number j of every row's stream: (R, count)."""
    counter = torch.arange(1, count + 1, device=keys.device) * _signed(_GOLDEN)
    return _mix(keys.unsqueeze(1) + counter)


def _mix(state: Tensor) -> Tensor:
    """Turn counters into bits that look independent; int64 arithmetic modulo 2^64."""
    state = (state ^ _shift(state, 30)) * _signed(_FIRST)
    state = (state ^ _shift(state, 27)) * _signed(_SECOND)
    return state ^ _shift(state, 31)


def _shift(value: Tensor, bits: int) -> Tensor:
    """Shift right logically: torch's shift is arithmetic."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    """Return the int64 with the same 64 bits."""
    value %= 1 << 64
    return value - (1 << 64) if value >= 1 << 63 else value

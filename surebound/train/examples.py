"""What the loop asks of data, and a user's own tensors in that form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.utils.data
from torch import Tensor

from surebound.data.types import Dataset, Split
from surebound.errors import InputError
from surebound.region import Region


class Examples(Protocol):
    """Inputs and labels by index, on one device; `surebound.data.Split` is one."""

    @property
    def labels(self) -> Tensor: ...

    @property
    def device(self) -> torch.device: ...

    def __len__(self) -> int: ...

    def pixels(self, indices: Tensor) -> Tensor:
        """Inputs (B, ...) as stored: bytes, or floats as the network takes them."""
        ...

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs (B, ...) as the network takes them, and labels (B,)."""
        ...


@dataclass(frozen=True, eq=False)
class TensorExamples:
    """Float inputs of any shape (N, ...) with labels (N,), for data that are not images."""

    inputs: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if not self.inputs.is_floating_point() and self.inputs.dtype != torch.uint8 and self.inputs.dim() >= 2:
            raise InputError(
                f"inputs are {self.inputs.dtype}: numbers of tokens or categories have no neighbours within a radius; "
                "give what they are embedded to, embedding(ids) as floats, and train the layers after the embedding. "
                "Measurements that happen to be whole: inputs.float()"
            )
        if self.inputs.dim() < 2 or not self.inputs.is_floating_point():
            raise InputError(
                "inputs must be floating point of shape (N, ...), "
                f"got {self.inputs.dtype} of shape {tuple(self.inputs.shape)}"
            )
        if self.labels.dtype != torch.int64 or self.labels.shape != self.inputs.shape[:1]:
            raise InputError(
                f"labels must be int64 of shape ({len(self.inputs)},), one per input, "
                f"got {self.labels.dtype} of shape {tuple(self.labels.shape)}"
            )

    @property
    def device(self) -> torch.device:
        """The device of the inputs."""
        return self.inputs.device

    def __len__(self) -> int:
        return len(self.inputs)

    def pixels(self, indices: Tensor) -> Tensor:
        """Inputs (B, ...) at `indices` (B,)."""
        return self.inputs[indices.to(self.device)]

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs (B, ...) and labels (B,) at `indices` (B,)."""
        return self.pixels(indices), self.labels[indices.to(self.device)]


def examples_of(data: object, what: str, device: torch.device) -> Examples:
    """Accept a Split, a pair (inputs, labels) of tensors, or a sequence of (input, label) pairs."""
    if isinstance(data, Split):
        return data.to(device)
    if isinstance(data, Dataset):
        raise InputError(f"{what} must be one split of a dataset, for example data.train; got the whole dataset")
    if isinstance(data, Region) or (isinstance(data, tuple) and any(isinstance(part, Region) for part in data)):
        raise InputError(
            f"{what} holds a region; training makes its own balls, of the plan's radius, around inputs: "
            "give the pair (images, labels) and sb.Plan(eps_train=...)"
        )
    if isinstance(data, tuple) and len(data) == 2 and all(isinstance(part, Tensor) for part in data):
        return _pair(data[0], data[1], device)
    if isinstance(data, Sequence | torch.utils.data.Dataset):
        return _stacked(data, what, device)
    raise InputError(
        f"{what} is a {type(data).__name__}; give a surebound.data.Split, a pair of tensors (inputs, labels), "
        "or a torch Dataset whose items are (tensor, label)"
    )


def _pair(inputs: Tensor, labels: Tensor, device: torch.device) -> Examples:
    if inputs.dtype == torch.uint8:
        return Split(inputs.to(device), labels.to(device))
    return TensorExamples(inputs.to(device), labels.to(device))


def _stacked(data: Any, what: str, device: torch.device) -> Examples:
    """Read a torch Dataset into memory, once."""
    try:
        empty = len(data) == 0
    except TypeError:
        raise InputError(f"{what} is a dataset without a length; read it into tensors (inputs, labels)") from None
    if empty:
        raise InputError(f"{what} is empty; training needs at least one example")
    items = [data[i] for i in range(len(data))]
    if not all(isinstance(item, tuple | list) and len(item) == 2 and isinstance(item[0], Tensor) for item in items):
        raise InputError(f"the items of {what} must be pairs (tensor, label); its first is {type(items[0]).__name__}")
    return _pair(torch.stack([x for x, _ in items]), torch.tensor([int(y) for _, y in items]), device)

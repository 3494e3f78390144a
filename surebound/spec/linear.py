"""Specifications: what must hold of the outputs, as c.z + d <= 0 (Gowal et al. 2018, eq. 2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from surebound.errors import SpecError


@dataclass(frozen=True)
class LinearSpec:
    """Rows c.z + d <= 0 that must all hold; shared by the batch or one set per example.

    >>> LinearSpec(torch.tensor([[1.0, -1.0]])).rows(batch=3, outputs=2)[0].shape
    torch.Size([3, 1, 2])
    """

    c: Tensor  # (S, K) or (B, S, K)
    d: Tensor | None = None  # (S,) or (B, S); zero when None

    def __post_init__(self) -> None:
        if self.c.dim() not in (2, 3) or not self.c.is_floating_point():
            raise SpecError(
                f"c has shape {tuple(self.c.shape)} and dtype {self.c.dtype}; give floating point (S, K) or (B, S, K)"
            )
        if self.d is not None and self.d.shape not in (self.c.shape[:-1], self.c.shape[-2:-1]):
            raise SpecError(
                f"d has shape {tuple(self.d.shape)} but c has {tuple(self.c.shape)}; give {tuple(self.c.shape[:-1])}"
            )
        if bool(torch.isnan(self.c).any()) or (self.d is not None and bool(torch.isnan(self.d).any())):
            raise SpecError("the specification contains NaN; every coefficient must be a number")

    def rows(self, batch: int, outputs: int) -> tuple[Tensor, Tensor]:
        """Coefficients (B, S, K) and offsets (B, S) for a batch, checked against the network's outputs."""
        if self.c.shape[-1] != outputs:
            raise SpecError(
                f"the specification has {self.c.shape[-1]} coefficients per row but the network {outputs} outputs"
            )
        if self.c.dim() == 3 and self.c.shape[0] not in (1, batch):
            raise SpecError(f"the specification is for {self.c.shape[0]} examples but the region holds {batch}")
        c = self.c.expand(batch, -1, -1)
        d = torch.zeros_like(c[..., 0]) if self.d is None else self.d.to(c).expand(batch, c.shape[1])
        return c, d

    def __repr__(self) -> str:
        return f"LinearSpec({tuple(self.c.shape)} {self.c.dtype}{'' if self.d is None else ', with offsets'})"

    def __getitem__(self, index: slice | Tensor) -> LinearSpec:
        """Return the specification of some examples of the batch."""
        if self.c.dim() == 2:
            return self
        return LinearSpec(self.c[index], self.d[index] if self.d is not None and self.d.dim() == 2 else self.d)


def check_labels(labels: Tensor, batch: int, classes: int) -> Tensor:
    """Labels as int64 (B,), or an error that says what is wrong with them."""
    if not isinstance(labels, Tensor) or labels.dim() != 1 or labels.is_floating_point() or labels.dtype == torch.bool:
        given = f"{labels.dtype} {tuple(labels.shape)}" if isinstance(labels, Tensor) else type(labels).__name__
        raise SpecError(f"labels are {given}; give an integer tensor of shape (B,)")
    if labels.shape[0] != batch:
        raise SpecError(f"{labels.shape[0]} labels for {batch} examples; give one label per example")
    if batch and (int(labels.min()) < 0 or int(labels.max()) >= classes):
        raise SpecError(
            f"labels lie in [{int(labels.min())}, {int(labels.max())}] but the network has {classes} outputs: "
            f"labels must be in 0..{classes - 1}"
        )
    return labels.long()


def classification(labels: Tensor, classes: int, dtype: torch.dtype) -> LinearSpec:
    """Return rows z_k - z_true <= 0 for every class k; the true class's own row is zero (eq. 3).

    >>> classification(torch.tensor([1]), 3, torch.float32).c
    tensor([[[ 1., -1.,  0.],
             [ 0.,  0.,  0.],
             [ 0., -1.,  1.]]])
    """
    eye = torch.eye(classes, dtype=dtype, device=labels.device)
    return LinearSpec(eye - eye[labels].unsqueeze(1))


def other_classes(labels: Tensor, outputs: int) -> Tensor:
    """Return the classes (B, K - 1) that are not the label, in order.

    >>> other_classes(torch.tensor([1, 0]), 3)
    tensor([[0, 2],
            [1, 2]])
    """
    first = torch.arange(outputs - 1, device=labels.device)
    return first + (first >= labels.unsqueeze(1)).to(labels.dtype)

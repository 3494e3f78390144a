"""Losses on logits and on worst-case margins.

Margins (B, K) are upper bounds of z_k - z_true, 0 at the true class. Read as logits they are the paper's worst-case
logits shifted by the true one, which cross-entropy does not see (section 3, "Training loss").
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy(margins: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of margins or logits (B, K) against labels (B,), mean over the batch."""
    return F.cross_entropy(margins, labels)


def softplus(margins: Tensor, labels: Tensor) -> Tensor:
    """Return log(1 + e^m), mean over the batch and the K - 1 specifications."""
    return F.softplus(others(margins, labels)).mean()


def hinge(margins: Tensor, labels: Tensor) -> Tensor:
    """Return max(0, 1 + m), mean over the batch and the K - 1 specifications."""
    return F.relu(1.0 + others(margins, labels)).mean()


def others(margins: Tensor, labels: Tensor) -> Tensor:
    """Return the margins (B, K-1) of the wrong classes; of logits, their differences to the true logit."""
    differences = margins - margins.gather(1, labels[:, None])  # (B, K), 0 at the true class
    wrong = torch.ones_like(margins, dtype=torch.bool).scatter_(1, labels[:, None], False)
    return differences[wrong].view(margins.shape[0], -1)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross_entropy": cross_entropy,
    "softplus": softplus,
    "hinge": hinge,
}


def error(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the share of wrong predictions, a 0-d tensor; ties and NaN are wrong."""
    return misclassified(logits, labels).to(logits.dtype).mean()


def verified_error(margins: Tensor, labels: Tensor) -> Tensor:
    """Return the share of examples whose worst margin is not <= 0, a 0-d tensor; NaN is never proved."""
    return unproved(margins, labels).to(margins.dtype).mean()


def misclassified(logits: Tensor, labels: Tensor) -> Tensor:
    """Say which examples (B,) are not classified right beyond doubt: another logit is not below the true one."""
    below = logits < logits.gather(1, labels[:, None])  # (B, K), False for NaN and for the true class itself
    return below.sum(1) < logits.shape[1] - 1


def unproved(margins: Tensor, labels: Tensor) -> Tensor:
    """Say which examples (B,) have a margin that is not <= 0, NaN among them."""
    return ~(margins <= margins.gather(1, labels[:, None])).all(1)

"""A batch in parts, one after the other: the gradients of the whole, in the memory of one part.

Every loss is a mean over examples, so gradients of parts, weighed by their sizes and added up, are those of the batch
to rounding. What looks at several examples at once looks at a part: BatchNorm's statistics (its running ones are
updated once per part) and the regulariser's means. An attack draws its starts part by part: others than for the batch
at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from surebound.train.methods.base import Loss


@dataclass
class PartSums:
    """Sums of the parts' values, weighed by their share of the batch."""

    sums: dict[str, Tensor] = field(default_factory=dict)

    def add(self, loss: Loss, share: float) -> None:
        """Add a part's loss and what its method reports."""
        for name, value in {"loss": loss.value.detach(), **loss.scalars}.items():
            part = value if share == 1.0 else value * share
            self.sums[name] = self.sums[name] + part if name in self.sums else part


def add_gradients(
    loss_of: Callable[[Tensor, Tensor], Loss], images: Tensor, labels: Tensor, parts: int
) -> dict[str, Tensor]:
    """Add the gradients of a batch's loss to the parameters', in so many parts; return "loss" and what is reported.

    images (B, ...), labels (B,); the means of the whole batch are returned.
    """
    sums = PartSums()
    for x, y in zip(images.chunk(parts), labels.chunk(parts), strict=True):
        loss, share = loss_of(x, y), len(y) / len(labels)
        sums.add(loss, share)
        value = loss.value if share == 1.0 else loss.value * share
        value.backward()  # type: ignore[no-untyped-call]
    return sums.sums
